"""`Executor`: where the rows of a checked batch are stepped; by default in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.results import Future, Stats


class SubmitOptions(NamedTuple):
    """Options of `Executor.submit`, mainly about the result that it returns.

    Parameters
    ----------
    states, observations : bool
        Whether the result includes states and observations.
    blocking : bool
        ``False``: return a `Future` of the result.
    masked : bool
        Report failed rows in the result, instead of raising their exceptions.
    audit : bool
        Whether this is an audit, which steps rows a second time. They are not counted in `stats`.
    processes : int array ``(N,)``, optional
        The process that steps each row: 0 for this one, and i + 1 for worker i. A batch writes
        them. An audit reads them, and if possible, other processes step the rows again.
    """

    states: bool = True
    observations: bool = True
    blocking: bool = True
    masked: bool = False
    audit: bool = False
    processes: NDArray[np.int32] | None = None


class Executor(Protocol):
    """Steps checked batches: in this process, in worker processes, or on a Ray cluster."""

    @property
    def stats(self) -> Stats:
        """Counters of all batches so far."""

    @property
    def isolated(self) -> bool:
        """Whether only other processes step rows."""

    @property
    def can_audit(self) -> bool:
        """Whether audits make sense now: they can step a row somewhere else than the batch did."""

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch; return its result, or a `Future` of it.

        `inputs` is the result of `Layout.check`. The checksum of a state is verified before its row
        is stepped.
        """

    def close(self) -> None:
        """Release processes and memory; results already returned stay valid."""


class ExecutorOptions(Protocol):
    """The picklable options of an executor; call `make` to create the executor."""

    @property
    def n_workers(self) -> int | None:
        """The number of processes that step rows.

        ``None`` means only this process, or, on a Ray cluster, one process per core.
        """

    @property
    def isolated(self) -> bool:
        """Whether only other processes step rows."""

    def make(self, make_stepper: Callable[[], RowStepper]) -> Executor:
        """Make the executor; `make_stepper` makes the simulator of this process, and its stepper.

        Processes are started before, so that they import modules meanwhile.
        """


class SerialExecutor:
    """Steps all rows in this process, before `submit` returns.

    Parameters
    ----------
    stepper : RowStepper
        Steps the rows.
    stats : Stats, optional
        The counters to update.
    """

    isolated = False
    can_audit = True

    def __init__(self, stepper: RowStepper, stats: Stats | None = None) -> None:
        self._stepper = stepper
        self.stats = Stats() if stats is None else stats

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch; see `Executor.submit`."""
        layout = self._stepper.layout
        layout.verify(inputs)
        if not options.blocking:
            return Future.of(partial(self.submit, inputs, options._replace(blocking=True)))
        stepper = self._stepper.for_audits() if options.audit else self._stepper
        begun = time.perf_counter()
        rows = layout.allocate(inputs, states=options.states, observations=options.observations)
        errors = stepper.run_rows(rows, 0, inputs.count, masked=options.masked, audit=options.audit)
        result = layout.result(rows, errors)
        if not options.audit:
            self.stats.seconds_here += time.perf_counter() - begun
        return result

    def close(self) -> None:
        """Do nothing: the environment closes its simulator."""


class SerialOptions:
    """Makes a `SerialExecutor`."""

    n_workers: int | None = None
    isolated = False

    def make(self, make_stepper: Callable[[], RowStepper]) -> SerialExecutor:
        """Return the executor."""
        return SerialExecutor(make_stepper())

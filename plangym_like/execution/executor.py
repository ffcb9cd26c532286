"""`Executor`: where the rows of a checked batch are stepped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from plangym_like.batches import Inputs
from plangym_like.row_stepper import RowStepper
from plangym_like.stats import Stats


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
        Whether this is an audit, which steps rows a second time: if possible, in other workers than
        the first time. The rows are not counted in `stats`.
    """

    states: bool = True
    observations: bool = True
    blocking: bool = True
    masked: bool = False
    audit: bool = False


class Executor(Protocol):
    """Steps checked batches: in this process, in worker processes, or on a Ray cluster."""

    @property
    def stats(self) -> Stats:
        """Counters of all batches so far."""

    @property
    def n_workers(self) -> int | None:
        """The number of processes that step rows; ``None`` if only this process steps them."""

    @property
    def isolated(self) -> bool:
        """Whether only other processes step rows."""

    @property
    def can_audit(self) -> bool:
        """Whether audits make sense now: they can step a row somewhere else than the batch did."""

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch; return its result, or a `Future` of it.

        `inputs` is the result of `Layout.check`. Checksums that `Layout.check` did not verify are
        verified here.
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

    def prepare(self) -> None:
        """Start processes early, while the simulator of this process is being made."""

    def trials(self) -> AbstractContextManager[None]:
        """Return a context in which the simulator of this process is made.

        If batches are isolated, a worker runs the trial of the environment.
        """

    def make(self, stepper: RowStepper) -> Executor:
        """Make the executor for the environment that `stepper` steps in this process."""

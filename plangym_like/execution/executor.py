"""`Executor`: where the rows of a checked batch are stepped; by default in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from plangym_like.batch.arrays import Inputs, SubmitOptions
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.results import Stats
from plangym_like.states.rows import Row


class Executor(Protocol):
    """Steps checked batches: in this process (`RowStepper`), in workers, or on a Ray cluster."""

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

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return `Simulator.state_difference` of two payloads, found where rows are stepped."""

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

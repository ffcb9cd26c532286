"""`PartStepper`: begins a step of the lanes of one process, and ends it later."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

from plangym_like.vector.lanes import Lanes
from plangym_like.vector.lanes_worker import Job, LanesWorker
from plangym_like.vector.process_lanes import ProcessLanes
from plangym_like.vector.step_call import StepCall
from plangym_like.vector.step_runner import StepRunner


class PartOutcome(NamedTuple):
    """The results of a call that are not written into arrays.

    Attributes
    ----------
    finals : dict of int to (observation, info)
        The result of `Lanes.step_same`.
    infos : dict of int to dict
        The new infos, by lane.
    """

    finals: dict[int, Any]
    infos: dict[int, dict[str, Any]]


class PartStepper(abc.ABC):
    """Steps the lanes of one process; `begin` does not wait for the results, `end` does.

    Parameters
    ----------
    lanes : range
        The lanes of this part.

    Attributes
    ----------
    lanes : range
    call : StepCall or None
        The call that `begin` has begun and `end` has not ended yet.
    """

    def __init__(self, lanes: range) -> None:
        self.lanes = lanes
        self.call: StepCall | None = None

    def begin(self, call: StepCall) -> None:
        """Begin to step the lanes named in `call`, all of which belong to this part."""
        self.call = call

    @abc.abstractmethod
    def is_over(self) -> bool:
        """Return whether `end` would return without waiting."""

    def end(self) -> PartOutcome:
        """Wait until the call is done, and write its results into its arrays.

        Raises
        ------
        Exception
            An error of an environment.
        """
        call, self.call = self.call, None
        assert call is not None
        return self._end(call)

    @abc.abstractmethod
    def _end(self, call: StepCall) -> PartOutcome:
        """Implement `end`."""


class LocalStepper(PartStepper):
    """Steps the lanes in this process, which have the lowest numbers.

    They are stepped in `end`, not in `begin`.

    Parameters
    ----------
    lanes : Lanes
    """

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(range(lanes.num_lanes))
        self._lanes = lanes

    def is_over(self) -> bool:
        return False

    def _end(self, call: StepCall) -> PartOutcome:
        finals, told = call.run_here(self._lanes)
        infos = self._lanes.infos
        return PartOutcome(finals, {lane: infos[lane] for lane in told})


class WorkerStepper(PartStepper):
    """Steps the lanes of another process.

    Parameters
    ----------
    lanes : ProcessLanes
    worker : LanesWorker
    """

    def __init__(self, lanes: ProcessLanes, worker: LanesWorker) -> None:
        super().__init__(range(worker.start, worker.stop))
        self._runner: StepRunner = lanes.runner
        self._pool, self._worker = lanes.parts.pool, worker
        self._job: Job | None = None

    def begin(self, call: StepCall) -> None:
        self._job = self._runner.begin(self._worker, call)
        super().begin(call)

    def is_over(self) -> bool:
        return self._pool.is_over(self._worker)

    def _end(self, call: StepCall) -> PartOutcome:
        assert self._job is not None
        report = self._runner.end(self._worker, call, self._job)
        return PartOutcome(report.finals, self._runner.infos(call, report))


def steppers_of(lanes: Lanes) -> tuple[LocalStepper, list[WorkerStepper]]:
    """Return the stepper of the lanes in this process, and one for each other process."""
    if not isinstance(lanes, ProcessLanes):
        return LocalStepper(lanes), []
    workers = [WorkerStepper(lanes, worker) for worker in lanes.parts.pool.workers]
    return LocalStepper(lanes.parts.local), workers

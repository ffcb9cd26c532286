"""`LanesWorker`: a process that hosts some of the lanes, and the data needed to replace it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plangym_like.batch.ownership import owned
from plangym_like.processes.child import processor_seconds
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle
from plangym_like.processes.wire import loads
from plangym_like.vector.bell import Bell
from plangym_like.vector.hosted_lanes import StepReply
from plangym_like.vector.shared_columns import SharedColumns

# Methods of `HostedLanes`: those that write observations, those that change nothing, and those that
# are called again if the lanes had to begin new episodes.
_WRITE = frozenset(("start", "reset", "step"))
_READ = frozenset(("get_states", "traits", "spaces", "formats", "are_wrapped"))
_REPEAT = frozenset(("start", "reset", "set_states", "set_attr")) | _READ - {"get_states"}
# A repeated call of these methods may have a different effect, so states are saved after each call.
_SAVE = frozenset(("start", "call", "set_attr"))


class KeptCall(NamedTuple):
    """A call of a method of `HostedLanes` that may be repeated, and whether it raised an error."""

    method: str
    args: tuple[Any, ...]
    raised: bool


class Job(NamedTuple):
    """One call of a method of `HostedLanes`.

    Attributes
    ----------
    method : str
    args : tuple
    kept_args : callable, optional
        Returns arguments for repeating the call later; needed if `args` refer to memory that
        changes.
    """

    method: str
    args: tuple[Any, ...]
    kept_args: Callable[[], tuple[Any, ...]] | None = None

    @property
    def starts(self) -> bool:
        """Whether the job begins new episodes in all lanes."""
        return self.method == "start"

    @property
    def writes(self) -> bool:
        """Whether the job writes observations."""
        return self.method in _WRITE

    @property
    def reads(self) -> bool:
        """Whether the job only reads data, and changes nothing."""
        return self.method in _READ

    @property
    def repeats(self) -> bool:
        """Whether to repeat the job even if the lanes had to begin new episodes."""
        return self.method in _REPEAT

    @property
    def saves(self) -> bool:
        """Whether states are saved right after the job, if they are saved at all."""
        return self.method in _SAVE

    @property
    def is_shared(self) -> bool:
        """Whether the job is a step of all lanes with all data in shared memory; see `Bell`."""
        return self.method == "step" and all(each is None for each in self.args[1:])

    def kept(self, *, raised: bool) -> KeptCall:
        """Return the method and copied arguments, for repeating the job later."""
        args = owned(self.args) if self.kept_args is None else self.kept_args()
        return KeptCall(self.method, args, raised)


class Loss(NamedTuple):
    """Data of lanes that had to begin new episodes because their process died.

    Attributes
    ----------
    last : tree of array
        The last observations before the process died.
    first : tree of array
        The first observations of the new episodes.
    infos : list of dict
        The first infos of the new episodes.
    """

    last: Any
    first: Any
    infos: list[dict[str, Any]]


class Outcome(NamedTuple):
    """The outcome of a job.

    Attributes
    ----------
    reply : object
        The value that the job's method returned.
    error : Exception or None
        The exception that the job raised.
    loss : Loss or None
        Set if the lanes had to begin new episodes.
    """

    reply: Any = None
    error: Exception | None = None
    loss: Loss | None = None


class LanesWorker(WorkerHandle):
    """A process that hosts the lanes ``start:stop``.

    Attributes
    ----------
    start, stop : int
    rows : slice
        The same lanes as a slice.
    fresh : bool
        Whether the lanes of the process have not been started or restored yet.
    busy_with_job : bool
        Whether a job that may change the lanes was sent, and its outcome is not known yet.
    sent_at : float
        When the task was sent.
    bell : Bell or None
        Requests steps from the process through shared memory.
    columns : SharedColumns or None
        The info columns of its lanes.
    rung : bool
        Whether a step was requested through `bell`, and its reply has not been taken yet.
    slot : int
        The slot that holds the observations of the last call; see `LaneArrays.recent`.
    saved : int
        The slot that holds the last saved states; see `LaneArrays.saved`.
    saving : bool
        Whether the current task saves states.
    log : list of KeptCall or None
        The calls since states were saved; ``None`` if the states cannot be restored.
    seeds : list of int or None
        The last seed that each lane was given.
    num_losses : int
        How often the lanes had to begin new episodes.
    loss : Loss or None
        The last such loss, until `LaneResults.note_loss` has recorded it.
    """

    def __init__(self, process: ExternalProcess, index: int, start: int, stop: int) -> None:
        super().__init__(process, index)
        self.start, self.stop = start, stop
        self.rows = slice(start, stop)
        self.fresh = True
        self.busy_with_job = self.saving = False
        self.sent_at = 0.0
        self.bell: Bell | None = None
        self.columns: SharedColumns | None = None
        self.rung = False
        self.slot = self.saved = 0
        self.log: list[KeptCall] | None = None
        self.seeds: list[int | None] = [None] * (stop - start)
        self.num_losses = 0
        self.loss: Loss | None = None
        self._processor_seconds: float | None = 0.0
        self._ran_at = 0.0
        # The last usual reply, pickled and unpickled.
        self._usual: tuple[bytes, StepReply | None] = b"", None

    @property
    def num_lanes(self) -> int:
        """The number of lanes that the process hosts."""
        return self.stop - self.start

    @property
    def is_unsettled(self) -> bool:
        """Whether a call has not been completed, perhaps because it was interrupted."""
        return self.busy_with_job or self.task is not None

    def last_ran_at(self) -> float:
        """Return when a call of this method last found that the process had used the processor.

        If this is not known, the process counts as running.
        """
        seconds = processor_seconds(self.process.pid)
        if seconds is None or seconds != self._processor_seconds:
            self._processor_seconds, self._ran_at = seconds, time.monotonic()
        return self._ran_at

    def own(self, lanes: Sequence[int] | None) -> list[int] | None:
        """Return which of `lanes` this process hosts, counted from 0; ``None`` means all."""
        if lanes is None:
            return None
        return [lane - self.start for lane in lanes if self.start <= lane < self.stop]

    def numbers(self, own: Sequence[int] | None) -> Sequence[int]:
        """Return the numbers among all lanes of the lanes `own`, numbered within this process.

        ``None`` means all lanes of the process.
        """
        if own is None:
            return range(self.start, self.stop)
        return [self.start + lane for lane in own]

    def keep_seeds(self, own: Sequence[int] | None, seeds: Sequence[int | None] | None) -> None:
        """Record the seeds that the lanes `own` were reset with; ``None`` changes nothing."""
        if seeds is not None:
            lanes = range(self.num_lanes) if own is None else own
            for lane, seed in zip(lanes, seeds, strict=True):
                self.seeds[lane] = self.seeds[lane] if seed is None else seed

    def unpickled(self, reply: Any) -> Any:
        """Unpickle a reply; if it equals the last usual reply, return the cached result."""
        pickled, usual = self._usual
        if pickled and reply == pickled:
            return usual
        found = loads(reply)
        if isinstance(found, StepReply) and found.is_usual:
            self._usual = bytes(reply), found
        return found

    def start_task(self, fn: Callable[..., Any], *args: Any, fds: Sequence[int] = ()) -> None:
        """Call ``fn(hosted, *args)`` in the process."""
        self.sent_at = time.monotonic()
        super().start_task(fn, *args, fds=fds)

    def restart(self) -> None:
        """Replace the process with a new one, whose lanes have not been started."""
        self.fresh, self.rung = True, False
        super().restart()

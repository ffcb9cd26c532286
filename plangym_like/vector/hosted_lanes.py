"""`HostedLanes`: the lanes of a `ProcessLanes` that one process hosts, and their shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.errors import WorkerDiedError
from plangym_like.execution.known_ids import KnownIds, know
from plangym_like.processes.remote_errors import is_portable
from plangym_like.processes.shared_memory import WRITES_IN_ORDER
from plangym_like.processes.wire import dumps, loads
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.states.rows import Row, StateFormat
from plangym_like.vector.lanes import Finals, Flags, Lanes, StepArrays, Which, add_note
from plangym_like.vector.make_lanes import EnvSource, lanes_from
from plangym_like.vector.tree import (
    NUMERIC_KINDS,
    Leaf,
    attach_arrays,
    has_objects,
    take,
    tree_map,
    write_rows,
)

# An id or factory for all lanes, or one for each lane.
Sources = EnvSource | Sequence[EnvSource]
_DIED = {"worker_died": True}

# For each lane: the words of a `LaneChannel`, and the bytes of its replies; longer ones are sent in
# messages.
_NUM_WORDS, _REPLY_NBYTES = 16, 4096
_ALIGNMENT = 16
# The words that the caller writes and those that the worker writes are in different cache lines.
_RUNG, _HAS_FINALS = range(2)
_DONE, _WATCHING, _REPLY, _LAYOUT = range(8, 12)
# A reply that is not pickled: a `Reply` that has only columns, in the layout of an earlier reply.
_COLUMNS = -1


class LaneArrays(NamedTuple):
    """Arrays with one row for each lane, either of all lanes or of the lanes of one process.

    Attributes
    ----------
    observations, actions : tree of array or None
        ``None`` if they have leaves of dtype ``object``, which are sent in messages.
    rewards : array float64
    terminated, truncated : array bool
    words, replies : array int64, array uint8
        The memory of `LaneChannel`s, one for each process.
    """

    observations: Any
    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any
    words: Any
    replies: Any


def lane_layout(observations: Any, actions: Any, num_lanes: int) -> LaneArrays:
    """Return the layout of the shared memory of lanes, from those of an observation and action."""
    flag, byte = Leaf((), np.dtype(np.bool_)), np.dtype(np.uint8)
    layout = LaneArrays(
        None if has_objects(observations) else observations,
        None if has_objects(actions) else actions,
        Leaf((), np.dtype(np.float64)),
        flag,
        flag,
        Leaf((_NUM_WORDS,), np.dtype(np.int64)),
        Leaf((_REPLY_NBYTES,), byte),
    )
    with_lanes: LaneArrays = tree_map(
        lambda leaf: Leaf((num_lanes, *leaf.shape), leaf.dtype), layout
    )
    return with_lanes


class LaneChannel:
    """Carries steps of all lanes of one process, and the replies, through shared memory.

    Sending and receiving messages takes a considerable part of the time of short steps. So while a
    worker polls for its next message, it also polls its channel.

    Parameters
    ----------
    arrays : LaneArrays
        The arrays of the n lanes of the process, zero-filled at first.
    """

    def __init__(self, arrays: LaneArrays) -> None:
        # Items of a memoryview are read and written several times as fast as those of an array.
        self._words: Any = arrays.words[0].data
        self._replies = arrays.replies.reshape(-1).data
        self._actions = arrays.actions
        # The arrays in `_replies`, by the name of an info, and the number of this layout.
        self._columns: dict[str, NDArray[Any]] = {}
        self._layout = -1

    # For the caller

    def ring(self, lanes: Any, actions: Any, ended: Any, has_finals: bool) -> bool:
        """If the worker polls, request `HostedLanes.step`; return whether that was requested.

        A worker that stops polling at this moment may not notice the request; then
        `HostedLanes.collect` answers it.
        """
        words, shared = self._words, self._actions
        if not words[_WATCHING] or lanes is not None or ended is not None:
            return False
        if type(shared) is not np.ndarray or shared.dtype != actions.dtype:
            return False
        shared[...] = actions
        words[_HAS_FINALS] = has_finals
        words[_RUNG] += 1
        return True

    def is_done(self) -> bool:
        """Return whether the request has been answered, or has raised an error."""
        words = self._words
        done: bool = words[_DONE] == words[_RUNG]
        return done

    def reply(self) -> Any:
        """Return the fields of the `Reply`; ``None`` if it must be requested by message."""
        words = self._words
        nbytes = words[_REPLY]
        if nbytes == _COLUMNS:
            return (self._columns, {}, None, None, 0) if words[_LAYOUT] == self._layout else None
        if not nbytes:
            return None
        reply = loads(self._replies[:nbytes])
        self.note(reply)
        return reply

    def note(self, reply: Any) -> None:
        """Prepare for replies with columns like those of a reply to the last request."""
        if _has_only_columns(reply):
            self._lay_out(reply[0])

    # For the worker

    def begin(self) -> None:
        """Discard any request that was made to an earlier process of these lanes."""
        words = self._words
        words[_DONE], words[_WATCHING] = words[_RUNG], 0
        words[_LAYOUT] += 1

    def has_rung(self, watching: bool) -> bool:
        """Return whether there is a request; `watching` says if the worker continues to poll."""
        words = self._words
        words[_WATCHING] = watching and WRITES_IN_ORDER
        rung: bool = words[_RUNG] != words[_DONE]
        return rung

    def request(self) -> Any:
        """Return what was given to `ring`."""
        return None, self._actions, None, bool(self._words[_HAS_FINALS])

    def answer(self, reply: bytes | None) -> None:
        """Answer the request; a `reply` of ``None`` means that it raised an error."""
        words, nbytes = self._words, len(reply or b"")
        if nbytes > len(self._replies):
            nbytes = 0
        elif reply:
            self._replies[:nbytes] = reply
        words[_REPLY] = nbytes
        words[_DONE] = words[_RUNG]

    def answer_columns(self, columns: dict[str, NDArray[Any]]) -> bool:
        """Answer with arrays like those of an earlier reply; return False if they are not alike."""
        views = self._columns
        if len(columns) != len(views) or self._layout != self._words[_LAYOUT]:
            return False
        for (name, column), (known, view) in zip(columns.items(), views.items(), strict=True):
            if name != known or column.dtype != view.dtype or column.shape != view.shape:
                return False
        for name, column in columns.items():
            views[name][...] = column
        words = self._words
        words[_REPLY] = _COLUMNS
        words[_DONE] = words[_RUNG]
        return True

    def begin_layout(self, columns: dict[str, NDArray[Any]]) -> None:
        """Prepare for replies with columns like these; the caller does the same in `note`."""
        self._words[_LAYOUT] += 1
        self._lay_out(columns)

    def _lay_out(self, columns: dict[str, NDArray[Any]]) -> None:
        # No layout is known until all columns have their places, in case of an interrupt.
        self._layout, self._columns, place = -1, {}, 0
        for name, column in columns.items():
            end = place + -(-column.nbytes // _ALIGNMENT) * _ALIGNMENT
            if end > len(self._replies):
                return
            view = np.frombuffer(self._replies, column.dtype, column.size, place)
            self._columns[name], place = view.reshape(column.shape), end
        self._layout = self._words[_LAYOUT]


class Reply(NamedTuple):
    """The results of a step or reset that are not in the arrays in shared memory.

    Attributes
    ----------
    columns : dict of str to array
        The infos of all lanes as arrays ``(n, ...)``, if `Lanes.info_columns` returns any.
    infos : dict of int to dict
        Otherwise: the non-empty infos of the lanes that were stepped or reset. Lanes are counted
        from 0 within the process.
    finals : dict of int to (observation, info), or None
        See `Lanes.step`; lanes are counted in the same way.
    observations : tree of array or None
        The observations of these lanes, if they are not in shared memory.
    num_lost : int
        How many of these lanes have ended because their process died.
    """

    columns: dict[str, NDArray[Any]]
    infos: dict[int, dict[str, Any]]
    finals: Finals | None
    observations: Any
    num_lost: int


def _has_only_columns(reply: Any) -> bool:
    """Return whether all fields of a `Reply` but the first are empty."""
    _, infos, finals, observations, num_lost = reply
    return not (infos or finals or num_lost) and observations is None


class HostedLanes:
    """The lanes ``start:stop``, which one process hosts; their results are in shared memory.

    Parameters
    ----------
    sources : str, callable or sequence of them
        The ids or factories for the environments of these lanes.
    start, stop : int
    vectorise : bool
        See `lanes_from`.

    Attributes
    ----------
    lanes : Lanes
    """

    def __init__(self, sources: Sources, start: int, stop: int, vectorise: bool) -> None:
        self._start, self._stop = start, stop
        self.lanes: Lanes = lanes_from(sources, stop - start, vectorise=vectorise)
        self.lanes.first_lane = start
        self._channel: LaneChannel | None = None
        self._arrays: Any = None
        # The observations, if they are objects of another process.
        self._objects: Any = None
        # The lanes whose episodes were lost with an earlier process, and that have not been reset
        # or set to a state since.
        self._lost: set[int] = set()
        # The result of the last request through the channel, or the exception that it raised.
        self._kept: Any = None

    # Requests of the caller

    def perform(self, method: str, args: Sequence[Any]) -> bytes:
        """Call a method of this object or of its lanes, and return the pickled result."""
        return self._pickled(self.run(method, args))

    def run(self, method: str, args: Sequence[Any]) -> Any:
        """Call a method of this object or, if it has none of this name, of its lanes."""
        target = self if hasattr(self, method) else self.lanes
        return getattr(target, method)(*args)

    def attend_bell(self, watching: bool) -> bool:
        """Do the step that was requested in shared memory; return whether there was one."""
        channel = self._channel
        if channel is None or not channel.has_rung(watching):
            return False
        try:
            reply = self._kept = self.step(*channel.request())
            if not (alone := _has_only_columns(reply)) or not channel.answer_columns(reply.columns):
                content = self._pickled(reply)
                if alone:
                    channel.begin_layout(reply.columns)
                channel.answer(content)
        except BaseException as error:
            self._kept = error
            channel.answer(None)
        return True

    def collect(self) -> bytes:
        """Return the pickled reply to the last request in shared memory, or raise its error."""
        self.attend_bell(False)
        kept, self._kept = self._kept, None
        if isinstance(kept, BaseException):
            raise kept
        return self._pickled(kept)

    def attach(
        self,
        layout: LaneArrays,
        attributes: dict[str, Sequence[Any]],
        *,
        fds: Sequence[int] = (),
    ) -> None:
        """Attach to the memory of all lanes, whose descriptor is in `fds`; set `attributes`."""
        self.use(attach_arrays(fds[0], layout))
        self._channel = LaneChannel(self._arrays)
        self._channel.begin()
        for name, values in attributes.items():
            self.lanes.set_attr(name, values)

    def use(self, arrays: LaneArrays) -> None:
        """Use `arrays` of all lanes; if they have observations, these may be objects."""
        self._arrays = take(arrays, slice(self._start, self._stop))
        if self._arrays.observations is None:
            self._objects = self.lanes.new_observations()

    def begin_again(self, seeds: Any, objects: Any) -> None:
        """Begin new episodes in place of those that were lost with an earlier process.

        `objects` are the last observations, if they are not in shared memory.
        """
        self.lanes.start(seeds, None)
        self._lost = set(range(self.lanes.num_lanes))
        self._objects = objects

    # Methods that `run` calls

    def describe(self) -> tuple[list[tuple[Any, Any]], list[StateFormat]]:
        """Return the spaces of each environment, and the state format of each lane."""
        formats = self.lanes.formats if self.lanes.has_states else []
        return self.lanes.spaces, formats * self.lanes.num_lanes if len(formats) == 1 else formats

    def start(self, lanes: Sequence[int], seeds: Any, options: Any) -> Reply:
        """Reset all lanes, which are `lanes`."""
        obs = self.lanes.start(seeds, options)
        write_rows(self._observations, ..., obs)
        self._lost.clear()
        return self._reply(lanes, None, {})

    def reset(self, lanes: Sequence[int], seeds: Any, options: Any) -> Reply:
        """Start new episodes in `lanes`."""
        self.lanes.reset(self._observations, lanes, seeds=seeds, options=options)
        self._lost.difference_update(lanes)
        return self._reply(lanes, None, {})

    def step(
        self, lanes: Sequence[int] | None, actions: Any, ended: Any, has_finals: bool
    ) -> Reply:
        """Step lanes; see `Lanes.step`.

        `has_finals` says whether `finals` is given.
        """
        finals: Finals | None = {} if has_finals else None
        lost = self.advance(lanes, actions, ended, finals)
        return self._reply(lanes, finals, lost)

    def advance(
        self, lanes: Sequence[int] | None, actions: Any, ended: Flags | None, finals: Finals | None
    ) -> dict[int, dict[str, Any]]:
        """Step lanes into shared memory; see `Lanes.step`.

        Return the infos of lanes that were not stepped because their episodes were lost.
        """
        arrays = self._arrays
        out = StepArrays(self._observations, arrays.rewards, arrays.terminated, arrays.truncated)
        running, lost = lanes, list[int]()
        if self._lost:
            if ended is not None:
                self._lost.difference_update(np.flatnonzero(ended).tolist())
            chosen = range(self.lanes.num_lanes) if lanes is None else lanes
            running = [lane for lane in chosen if lane not in self._lost]
            lost = [lane for lane in chosen if lane in self._lost]
        if running is None or len(running):
            self.lanes.step(actions, out, running, ended=ended, finals=finals)
        return self._end_lost(lost, out, finals)

    def _end_lost(
        self, lanes: Sequence[int], out: StepArrays, finals: Finals | None
    ) -> dict[int, dict[str, Any]]:
        """End the lost episodes of `lanes` with their last observations; return the infos."""
        if not lanes:
            return {}
        infos = {lane: dict(_DIED) for lane in lanes}
        out.rewards[lanes], out.terminated[lanes], out.truncated[lanes] = 0.0, False, True
        if finals is not None:
            for lane in lanes:
                finals[lane] = tree_map(owned, take(out.obs, lane)), infos[lane]
            self.lanes.reset(out.obs, lanes)
            infos = {lane: {**self.lanes.infos[lane], **_DIED} for lane in lanes}
            self._lost.difference_update(lanes)
        return infos

    def call(self, name: str, args: Any, kwargs: Any, lanes: Sequence[int]) -> list[Any]:
        """See `Lanes.call`."""
        self._check_not_lost(lanes)
        return self.lanes.call(name, *args, lanes=lanes, **kwargs)

    def get_states(self, lanes: Sequence[int]) -> Row:
        """See `Lanes.get_states`."""
        self._check_not_lost(lanes)
        return self.lanes.get_states(lanes)

    def set_states(self, states: Row, lanes: Sequence[int], seeds: Any) -> None:
        """See `Lanes.set_states`."""
        self.lanes.set_states(states, lanes, seeds)
        self._lost.difference_update(lanes)

    def _check_not_lost(self, lanes: Sequence[int]) -> None:
        lost = sorted(self._start + lane for lane in self._lost.intersection(lanes))
        if lost:
            raise WorkerDiedError(
                f"the states of lanes {lost} were lost with their process; step or reset these "
                "lanes first"
            )

    def close(self) -> None:
        """Close the environments, and use the memory no more."""
        try:
            self.lanes.close()
        finally:
            self._arrays = self._channel = None

    # Replies

    @property
    def _observations(self) -> Any:
        shared = self._arrays.observations
        return self._objects if shared is None else shared

    def _reply(self, lanes: Which, finals: Finals | None, lost: dict[int, dict[str, Any]]) -> Reply:
        columns = {} if lost else self.lanes.info_columns() or {}
        if any(column.dtype.kind not in NUMERIC_KINDS for column in columns.values()):
            columns = {}
        infos = {}
        if not columns:
            chosen = range(self.lanes.num_lanes) if lanes is None else lanes
            each = self.lanes.infos
            infos = {lane: info for lane in chosen if (info := lost.get(lane, each[lane]))}
        obs = None
        if self._arrays.observations is None:
            obs = self._objects if lanes is None else take(self._objects, np.asarray(lanes, int))
        return Reply(columns, infos, finals, obs, len(lost))

    def _pickled(self, value: Any) -> bytes:
        if not isinstance(value, Reply):
            return dumps(value)
        try:
            # A plain tuple is pickled and unpickled in half the time.
            return dumps(tuple(value))
        except BaseException as error:
            finals = {lane: info for lane, (_, info) in (value.finals or {}).items()}
            for lane, info in (*value.infos.items(), *finals.items()):
                for key, each in info.items():
                    if not is_portable(each):
                        number = self._start + lane
                        add_note(error, f"the info {key!r} of lane {number} cannot be pickled")
            raise


def host_lanes(
    ids: KnownIds, trials: list[Any], sources: Sources, start: int, stop: int, vectorise: bool
) -> HostedLanes:
    """Make `HostedLanes` in another process.

    `ids` are those that the caller has registered, and `trials` the entries of its `KnownTrials`.
    """
    know(ids)
    known = KnownTrials()
    known.entries += trials
    with trials_shared(known):
        return HostedLanes(sources, start, stop, vectorise)

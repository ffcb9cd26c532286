"""`HostedLanes`: the lanes of a `ProcessLanes` that one other process hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plangym_like.execution.known_ids import KnownIds, know
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.remote_errors import is_portable
from plangym_like.processes.wire import dumps
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.states.rows import StateFormat
from plangym_like.vector.lanes import Lanes, Which, add_note
from plangym_like.vector.make_lanes import (
    EnvSource,
    Sample,
    compare_sample,
    lanes_from,
)
from plangym_like.vector.memory import LaneArrays, LaneChannel, attach_arrays
from plangym_like.vector.step_arrays import Step, StepArrays
from plangym_like.vector.tree import NUMERIC_KINDS, take

# An id or factory for all lanes, or one for each lane.
Sources = EnvSource | Sequence[EnvSource]

# The spaces of each environment, and the state format of each lane.
Description = tuple[list[tuple[Any, Any]], list[StateFormat]]

# The methods that `HostedLanes` has itself; all others are those of its lanes.
_OWN = frozenset(("start", "reset", "step", "describe"))


class Reply(NamedTuple):
    """The results of a step or reset that are not in the arrays in shared memory.

    Attributes
    ----------
    columns : tuple of (name, dtype, shape, bytes)
        The infos of all lanes as arrays ``(n, ...)``, if `Lanes.info_columns` returns any.
    infos : dict of int to dict
        Otherwise: the non-empty infos of the lanes that were stepped or reset. Lanes are counted
        from 0 within the process.
    finals : dict of int to (observation, info)
        The result of `Lanes.step_same`, by lane, counted in the same way.
    observations : tree of array or None
        The observations of these lanes, if they are not in shared memory.
    """

    columns: tuple[tuple[str, str, tuple[int, ...], bytes], ...]
    infos: dict[int, dict[str, Any]]
    finals: dict[int, tuple[Any, dict[str, Any]]]
    observations: Any


class HostedLanes:
    """The lanes that one process hosts; results are written to memory that all processes share.

    Parameters
    ----------
    sources : str, callable or sequence of them
        The ids or factories for the environments of these lanes.
    start, stop : int
        The process hosts the lanes ``start:stop``.
    vectorise : bool
        See `lanes_from`.
    ids : KnownIds, optional
        Ids that the environments may need, in addition to those registered in this process.
    expected : (Sample, ShortEpisode), optional
        How to make one environment, and the results of a short episode of it in the caller.
    trials : list, optional
        The entries of `KnownTrials` that the caller has.

    Attributes
    ----------
    lanes : Lanes
    """

    def __init__(
        self,
        sources: Sources,
        start: int,
        stop: int,
        vectorise: bool,
        ids: KnownIds | None = None,
        expected: tuple[Sample, ShortEpisode] | None = None,
        trials: Sequence[Any] = (),
    ) -> None:
        if ids is not None:
            know(ids)
        self._start, self._stop = start, stop
        known = KnownTrials()
        known.entries += trials
        with trials_shared(known):
            if expected is not None:
                compare_sample(*expected)
            self.lanes = make_part(sources, start, stop, vectorise=vectorise)
        self._channel: LaneChannel | None = None
        self._arrays: LaneArrays
        # The observations, if they are objects, which are not in shared memory.
        self._objects: Any = None
        # The reply to the last step requested through the channel, or the exception that it raised.
        self._kept: bytes | BaseException = b""

    def perform(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Call a method of this object or of its lanes, and return the pickled result."""
        try:
            target = self if method in _OWN else self.lanes
            return self._pickled(getattr(target, method)(*args, **kwargs))
        except BaseException as error:
            add_note(error, f"raised in the process of lanes {self._start} to {self._stop - 1}")
            raise

    def pass_by(self) -> None:
        """Run the step that was requested through the `LaneChannel`, if there is one."""
        self.attend_bell(False)

    def attend_bell(self, watching: bool) -> bool:
        """If a step was requested in shared memory, run it; return whether one was requested."""
        channel = self._channel
        if channel is None or not channel.has_rung(watching):
            return False
        try:
            method, actions = channel.arguments()
            self._kept = self.perform("step", (method, None, actions), {})
            channel.answer(self._kept)
        except BaseException as error:
            self._kept = error
            channel.answer(None)
        return True

    def collect(self) -> bytes:
        """Return the reply to the last step requested in shared memory, or raise its error."""
        self.attend_bell(False)
        kept, self._kept = self._kept, b""
        if isinstance(kept, BaseException):
            raise kept
        return kept

    def attach(
        self,
        layout: LaneArrays | None,
        attributes: dict[str, Sequence[Any]],
        *,
        fds: Sequence[int] = (),
    ) -> None:
        """Attach to the memory of all lanes, if it exists, and set `attributes`.

        If it exists, `layout` is not ``None`` and `fds` holds its descriptor.
        """
        if layout is not None:
            arrays = attach_arrays(fds[0], layout)
            self._arrays = take(arrays, slice(self._start, self._stop))
            self._channel = LaneChannel(self._arrays)
            self._channel.begin()
        for name, values in attributes.items():
            self.lanes.set_attr(name, values)

    # Methods that `perform` calls

    def describe(self) -> Description:
        """Return the spaces and the state formats of the lanes."""
        return described(self.lanes)

    def start(self, seeds: Any, options: Any) -> tuple[Any, Any, list[dict[str, Any]]]:
        """Reset all lanes; return the layout of their observations, the observations and the infos.

        Nothing is written to shared memory.
        """
        self._objects = self.lanes.start(seeds, options)
        return self.lanes.observation_layout, self._objects, list(self.lanes.infos)

    def reset(self, lanes: Which, seeds: Any, options: Any) -> Reply:
        """Start new episodes in `lanes`."""
        self.lanes.reset(self._observations, lanes, seeds=seeds, options=options)
        return self._reply(lanes, {})

    def step(self, method: str, lanes: Sequence[int] | None, actions: Any) -> Reply:
        """Do a `Step`.

        Parameters
        ----------
        method, lanes
            See `Step`.
        actions : str or tree of array
            The field of `LaneArrays` that holds the actions, or the actions themselves.
        """
        arrays = self._arrays
        out = StepArrays(self._observations, arrays.rewards, arrays.terminated, arrays.truncated)
        actions = getattr(arrays, actions) if isinstance(actions, str) else actions
        step = Step(method, actions, out, lanes, arrays.ended)
        self.lanes.collect(step)
        return self._reply(lanes, step.finals)

    def close(self) -> None:
        """Close the environments."""
        self.lanes.close()

    @property
    def _observations(self) -> Any:
        shared = self._arrays.observations
        return self._objects if shared is None else shared

    def _reply(self, lanes: Which, finals: Any) -> Reply:
        found = self.lanes.info_columns() or {}
        columns: Any = ()
        # Arrays themselves take longer to pickle.
        if all(column.dtype.kind in NUMERIC_KINDS for column in found.values()):
            columns = tuple((k, v.dtype.str, v.shape, v.tobytes()) for k, v in found.items())
        infos = {}
        if not columns:
            chosen = range(self.lanes.num_lanes) if lanes is None else lanes
            each = self.lanes.infos
            infos = {lane: info for lane in chosen if (info := each[lane])}
        obs = None
        if self._arrays.observations is None:
            obs = self._objects if lanes is None else take(self._objects, np.asarray(lanes, int))
        return Reply(columns, infos, finals, obs)

    def _pickled(self, value: Any) -> bytes:
        try:
            # A plain tuple is pickled and unpickled in half the time.
            return dumps(tuple(value) if isinstance(value, Reply) else value)
        except BaseException as error:
            infos = list(enumerate(self.lanes.infos))
            if isinstance(value, Reply):
                infos += [(lane, info) for lane, (_, info) in value.finals.items()]
            for lane, info in infos:
                for key, each in info.items():
                    if not is_portable(each):
                        number = self._start + lane
                        add_note(error, f"the info {key!r} of lane {number} cannot be pickled")
            raise


def described(lanes: Lanes) -> Description:
    """Return `Lanes.spaces`, and the state format of each lane, if they have states."""
    formats = lanes.formats if lanes.has_states else []
    return lanes.spaces, formats * lanes.num_lanes if len(formats) == 1 else formats


def make_part(sources: Sources, start: int, stop: int, *, vectorise: bool = True) -> Lanes:
    """Make the lanes ``start:stop`` from `sources`, the result of `sources_of_part`."""
    lanes = lanes_from(sources, stop - start, vectorise=vectorise)
    lanes.first_lane = start
    return lanes


def sources_of_part(sources: Sources, start: int, stop: int) -> Sources:
    """Return the ids or factories for the lanes ``start:stop``."""
    if isinstance(sources, str) or callable(sources):
        return sources
    return list(sources[start:stop])

"""`HostedLanes`: the lanes of a `ProcessLanes` that one other process hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from plangym_like.execution.known_ids import KnownIds, know
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.remote_errors import is_portable
from plangym_like.processes.wire import dumps
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.states.rows import Row, StateFormat
from plangym_like.vector.bell import Bell
from plangym_like.vector.lane_memory import LaneArrays, LaneForm
from plangym_like.vector.lanes import Lanes, Which, add_note
from plangym_like.vector.make_lanes import (
    EnvSource,
    Sample,
    compare_sample,
    lanes_from,
    make_envs,
    make_lanes,
)
from plangym_like.vector.shared_columns import Form, SharedColumns
from plangym_like.vector.step_arrays import StepArrays
from plangym_like.vector.tree import copy_rows, take

# An id or factory for all lanes, or one for each lane.
Sources = EnvSource | Sequence[EnvSource]


class Traits(NamedTuple):
    """Properties of lanes.

    Attributes
    ----------
    has_states : bool
        As in `Lanes`.
    """

    has_states: bool


class StepReply(NamedTuple):
    """The results of a step that are sent in a message, not through shared memory.

    Attributes
    ----------
    infos : dict of int to dict
        The non-empty infos by lane; lanes are counted from 0 within the process.
    columns : dict of str to array, or None
        The result of `Lanes.info_columns`, if it is not in shared memory.
    form : tuple
        The form of the columns in shared memory; ``()`` if there are none. `infos` is empty if
        there are any columns.
    finals : dict of int to (observation, info)
        The result of `Lanes.step_same`.
    observations : tree of array or None
        The observations of the lanes that were stepped; ``None`` if they are in shared memory.
    """

    infos: dict[int, dict[str, Any]]
    columns: dict[str, Any] | None
    form: Form
    finals: dict[int, Any]
    observations: Any

    @property
    def is_usual(self) -> bool:
        """Whether this reply says only that columns are in shared memory, as after most steps."""
        return bool(self.form) and not self.finals and self.observations is None


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
        self.lanes.hide()
        self._form: LaneForm | None = None
        self._arrays: LaneArrays | None = None
        self._shares_observations = False
        self._bell: Bell | None = None
        self._columns: SharedColumns
        # The form of the last usual reply (see `StepReply.is_usual`), and that reply, pickled.
        self._usual: tuple[Form, bytes] = (), b""
        # The reply to the last step requested through the bell, or the exception that it raised.
        self._kept: bytes | BaseException = b""

    def perform(
        self, method: str, args: Sequence[Any], slot: int, publish: bool, save: int
    ) -> bytes:
        """Call a method of this object, and return its pickled reply.

        Parameters
        ----------
        method : str
        args : sequence
        slot : int
            The slot of `LaneArrays.recent` that observations are written to.
        publish : bool
            Whether observations are also written to `LaneArrays.observations`.
        save : int
            The slot of `LaneArrays.saved` that states are saved to afterwards; -1 to save none.
        """
        try:
            reply = getattr(self, method)(slot, publish, *args)
            if save >= 0:
                self._save(save)
            return self._pickled(reply)
        except BaseException as error:
            add_note(error, f"raised in the process of lanes {self._start} to {self._stop - 1}")
            raise

    def pass_by(self) -> None:
        """Run the step that was requested through the `Bell`, if there is one."""
        self.attend_bell(False)

    def attend_bell(self, watching: bool) -> bool:
        """If a step was requested through the `Bell`, run it; return whether one was requested."""
        bell = self._bell
        if bell is None or not bell.has_rung(watching):
            return False
        method, slot, publish = bell.arguments()
        try:
            self._kept = self.perform("step", (method, None, None, None), slot, publish, -1)
            bell.answer(self._kept)
        except BaseException as error:
            self._kept = error
            bell.answer(None)
        return True

    def collect(self) -> bytes:
        """Return the reply to the last step requested through the `Bell`, or raise its error."""
        self.attend_bell(False)
        kept, self._kept = self._kept, b""
        if isinstance(kept, BaseException):
            raise kept
        return kept

    def attach(
        self,
        form: LaneForm | None,
        attributes: dict[str, Sequence[Any]],
        save: int,
        *,
        fds: Sequence[int] = (),
    ) -> None:
        """Attach to the memory of all lanes, if it exists; set `attributes`; save states if asked.

        If it exists, `form` is not ``None`` and `fds` holds its descriptor. `save`: see `perform`.
        """
        if form is not None:
            self._form, self._arrays = form, form.attach(fds[0], self._start, self._stop)
            self._shares_observations = form.shares_observations
            self._bell, self._columns = self._arrays.bell(), self._arrays.columns()
            self._bell.begin()
        for name, values in attributes.items():
            self._set_attr(name, values)
        if save >= 0:
            self._save(save)

    def restore(
        self, slot: int, saved: int, log: Sequence[tuple[str, Sequence[Any], bool]], seeds: Any
    ) -> None:
        """Restore the states in slot `saved`, and repeat the calls that were made after saving.

        `log` holds the method and arguments of each call, and whether the call raised an error. If
        it did, any error of the repeated call is ignored. `seeds` are the lanes' last seeds, which
        are needed because some states hold no ``np_random_seed``.

        Raises
        ------
        Exception
            An error of a repeated call that raised no error the first time.
        """
        self.lanes.start(seeds)
        self.lanes.set_states(self._memory.saved[saved])
        for method, args, raised in log:
            try:
                getattr(self, method)(slot, False, *args)
            except Exception:
                if not raised:
                    raise

    # Methods of `Lanes`, which `perform` calls

    def traits(self, slot: int, publish: bool) -> Traits:
        """Return the `Traits` of the lanes."""
        return traits_of(self.lanes)

    def spaces(self, slot: int, publish: bool) -> list[tuple[Any, Any]]:
        """Return the observation and action space of each environment."""
        return self.lanes.spaces

    def start(
        self, slot: int, publish: bool, seeds: Any, options: Any
    ) -> tuple[Any, Any, list[dict[str, Any]]]:
        """Reset all lanes; return the layout of their observations, the observations and the infos.

        If the observations are in shared memory, ``None`` is returned in their place.
        """
        obs = self.lanes.start(seeds, options)
        infos = list(self.lanes.infos)
        if self._arrays is None or self._form is None:
            return self.lanes.observation_layout, obs, infos
        copy_rows(self._arrays.recent[slot], obs)
        self._publish(slot, publish, None)
        return self.lanes.observation_layout, None if self._form.shares_observations else obs, infos

    def reset(
        self, slot: int, publish: bool, lanes: Which, seeds: Any, options: Any
    ) -> StepReply | None:
        """Start new episodes in `lanes`."""
        obs = self._rows_to_write(slot, lanes)
        self.lanes.reset(obs, lanes, seeds=seeds, options=options)
        return self._reply(slot, publish, lanes, self._all(lanes), {})

    def step(
        self, slot: int, publish: bool, method: str, actions: Any, lanes: Which, ended: Any
    ) -> StepReply | None:
        """Call `method` of the lanes: ``step``, ``step_next`` or ``step_same``.

        If `actions` or `ended` is ``None``, the array in the shared memory is used.
        """
        arrays = self._memory
        obs = self._rows_to_write(slot, lanes)
        out = StepArrays(obs, arrays.rewards, arrays.terminated, arrays.truncated)
        actions = arrays.actions if actions is None else actions
        finals: dict[int, Any] = {}
        if method == "step":
            self.lanes.step(actions, out, lanes)
        elif method == "step_next":
            ended = arrays.ended if ended is None else ended
            self.lanes.step_next(actions, out, ended, lanes)
        else:
            finals = self.lanes.step_same(actions, out, lanes)
        return self._reply(slot, publish, lanes, self._all(lanes), finals)

    def get_states(self, slot: int, publish: bool, lanes: Which) -> Row:
        """Return state rows of `lanes`."""
        return self.lanes.get_states(lanes)

    def set_states(self, slot: int, publish: bool, rows: Row, lanes: Which, seeds: Any) -> None:
        """Set the states of `lanes`; if `seeds` are given, replace the random generators too."""
        self.lanes.set_states(rows, lanes, seeds)

    def formats(self, slot: int, publish: bool) -> list[StateFormat]:
        """Return the state format of each lane."""
        return formats_of(self.lanes)

    def call(
        self, slot: int, publish: bool, name: str, args: Any, kwargs: Any, lanes: Which
    ) -> list[Any]:
        """Return attribute `name` of each environment of `lanes`, or the result of calling it."""
        try:
            return self.lanes.call(name, *args, lanes=lanes, **kwargs)
        finally:
            self._refresh()

    def set_attr(self, slot: int, publish: bool, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every environment."""
        self._set_attr(name, values)

    def are_wrapped(self, slot: int, publish: bool, wrapper_class: type) -> list[bool]:
        """Return whether each environment has a wrapper of this class."""
        return self.lanes.are_wrapped(wrapper_class)

    def close(self) -> None:
        """Close the environments."""
        self.lanes.close()

    @property
    def _memory(self) -> LaneArrays:
        assert self._arrays is not None
        return self._arrays

    def _set_attr(self, name: str, values: Sequence[Any]) -> None:
        try:
            self.lanes.set_attr(name, values)
        finally:
            self._refresh()

    def _refresh(self) -> None:
        self.lanes = self.lanes.refreshed()
        self.lanes.hide()

    def _all(self, lanes: Which) -> Sequence[int]:
        return range(self.lanes.num_lanes) if lanes is None else [int(lane) for lane in lanes]

    def _rows_to_write(self, slot: int, lanes: Which) -> Any:
        """Return the arrays of `slot`, to write observations into.

        If only some lanes will be written, first copy the last observations of all lanes there.
        """
        recent = self._memory.recent
        if lanes is not None:
            copy_rows(recent[slot], recent[1 - slot])
        return recent[slot]

    def _reply(
        self, slot: int, publish: bool, lanes: Which, informed: Sequence[int], finals: Any
    ) -> StepReply | None:
        infos, columns = {}, self.lanes.info_columns() if informed else None
        form: Form = ()
        if not columns:
            infos = {lane: info for lane in informed if (info := self.lanes.infos[lane])}
        elif found := self._columns.write(columns):
            form, columns = found, None
        self._publish(slot, publish, lanes)
        if not self._shares_observations:
            rows = slice(None) if lanes is None else np.asarray(lanes, np.intp)
            return StepReply(infos, columns, form, finals, take(self._memory.recent[slot], rows))
        has_more = infos or columns or form or finals
        return StepReply(infos, columns, form, finals, None) if has_more else None

    def _pickled(self, reply: Any) -> bytes:
        usual = isinstance(reply, StepReply) and reply.is_usual
        if usual and reply.form == self._usual[0]:
            return self._usual[1]
        try:
            pickled = dumps(reply)
            self._usual = (reply.form, pickled) if usual else self._usual
            return pickled
        except BaseException as error:
            infos = list(enumerate(self.lanes.infos))
            if isinstance(reply, StepReply):
                infos += [(lane, info) for lane, (_, info) in reply.finals.items()]
            for lane, info in infos:
                for key, value in info.items():
                    if not is_portable(value):
                        number = self._start + lane
                        add_note(error, f"the info {key!r} of lane {number} cannot be pickled")
            raise

    def _publish(self, slot: int, publish: bool, lanes: Which) -> None:
        if publish:
            rows = ... if lanes is None else np.asarray(lanes, np.intp)
            copy_rows(self._memory.observations, self._memory.recent[slot], rows)

    def _save(self, slot: int) -> None:
        self.lanes.get_states(out=self._memory.saved[slot])


def traits_of(lanes: Lanes) -> Traits:
    """Return the `Traits` of `lanes`."""
    return Traits(lanes.has_states)


def formats_of(lanes: Lanes) -> list[StateFormat]:
    """Return the state format of each lane."""
    found = lanes.formats
    return found if len(found) == lanes.num_lanes else found * lanes.num_lanes


def make_part(sources: Sources, start: int, stop: int, *, vectorise: bool = True) -> Lanes:
    """Make the lanes ``start:stop`` from `sources`, the result of `sources_of_part`."""
    lanes: Lanes
    if isinstance(sources, str) or callable(sources):
        lanes = lanes_from(sources, stop - start, vectorise=vectorise)
    else:
        envs = [env for source in sources for env in make_envs(source, 1)]
        lanes = make_lanes(envs, vectorise=vectorise)
    lanes.first_lane = start
    return lanes


def sources_of_part(sources: Sources, start: int, stop: int) -> Sources:
    """Return the ids or factories for the lanes ``start:stop``."""
    if isinstance(sources, str) or callable(sources):
        return sources
    return list(sources[start:stop])

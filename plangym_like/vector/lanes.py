"""`Lanes`: stateful environments that are stepped together; `Step` and `StepArrays`: one step."""

from __future__ import annotations

import abc
import operator
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard
from weakref import WeakValueDictionary

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned_info
from plangym_like.batch.spaces import put
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError, SnapshotError, StateError, StateFormatError
from plangym_like.snapshots.chains import links
from plangym_like.states.rows import Row, StateFormat
from plangym_like.vector.tree import layout_of_space, zeros

# The lanes that a call concerns; ``None`` for all.
Which = Sequence[int] | NDArray[np.intp] | None
# A seed, and options for ``reset``, for each of these lanes; ``None`` for none.
Seeds = Sequence[int | None] | None
Options = Sequence[dict[str, Any] | None] | None
Flags = NDArray[np.bool_]
# The last observation and info of each episode that ended in a step, by lane.
Finals = dict[int, tuple[Any, dict[str, Any]]]
# Which lanes last started each environment of this process, by ``id(env)``. Lanes keep their
# environments alive, so no other object gets their ids.
_users: WeakValueDictionary[int, Lanes] = WeakValueDictionary()


class StepArrays(NamedTuple):
    """The results of one step: arrays with one row for each lane.

    Attributes
    ----------
    obs : tree of array ``(n, ...)``
        These arrays may hold the last observations before the step.
    rewards : array ``(n,)`` of numbers
    terminated, truncated : array ``(n,) bool``

    Examples
    --------
    >>> from plangym_like.vector.make_lanes import lanes_from
    >>> lanes = lanes_from("CartPole-v1", 4)
    >>> obs = lanes.start(seeds=range(4))
    >>> out = StepArrays(obs, np.empty(4), np.empty(4, bool), np.empty(4, bool))
    >>> lanes.step(np.array([0, 1, 0, 1]), out)
    >>> out.rewards
    array([1., 1., 1., 1.])
    """

    obs: Any
    rewards: NDArray[Any]
    terminated: Flags
    truncated: Flags


class Step(NamedTuple):
    """The arguments of `Lanes.step`, which passes them to `Lanes.submit` and `Lanes.collect`.

    Actions must not change until the step is collected.
    """

    actions: Any
    out: StepArrays
    lanes: Which = None
    ended: Flags | None = None
    finals: Finals | None = None


@dataclass(slots=True)
class LaneStats:
    """Counters of processes that died or were restarted, and of the lanes affected.

    Attributes
    ----------
    deaths : int
        Processes that died, or were killed because they hung.
    timeouts : int
        Processes that were killed because they hung.
    restarts : int
        Processes that were started again.
    lanes_ended : int
        Episodes that steps have reported as ended because the process of their lane died.
    """

    deaths: int = 0
    timeouts: int = 0
    restarts: int = 0
    lanes_ended: int = 0


class Lanes(abc.ABC):
    """n environments that are stepped together, each in its own state.

    Lanes are never reset automatically: a lane whose episode has ended stays in its final state
    until `reset` or `set_states` is called for it. Results are written into the caller's trees of
    arrays ``(n, ...)``, row i for lane i. Results do not depend on where or in which form lanes are
    stepped.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
        The environments of the lanes, or a single one for all lanes.
    num_lanes : int
        The number of lanes, n.

    Attributes
    ----------
    envs : list
    num_lanes : int
    observation_space, action_space : gymnasium.Space
        The spaces of one lane.
    observation_layout, action_layout : tree of Leaf
        The layouts of one observation and of one action. Elements of spaces that are not arrays of
        one shape, such as text, are leaves of dtype ``object``.
    first_lane : int
        The number of lane 0 in error messages, if these lanes are part of a larger group.
    has_states : bool
        Whether lanes have state rows, as lanes of a `PlanEnv` do.
    """

    def __init__(self, envs: Sequence[Any], num_lanes: int) -> None:
        self.envs = list(envs)
        self.num_lanes = num_lanes
        self.observation_space: Space[Any] = self.envs[0].observation_space
        self.action_space: Space[Any] = self.envs[0].action_space
        self.first_lane = 0
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_lanes)]
        self.has_states = all(map(is_plan_env, self.envs))

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The info from the last reset or step of each lane."""
        return self._infos

    @property
    def pids(self) -> list[int]:
        """The process ids of the other processes that step lanes, if any."""
        return []

    @property
    def stats(self) -> LaneStats:
        """Counters of events in the other processes that step lanes."""
        return LaneStats()

    @property
    def spaces(self) -> list[tuple[Space[Any], Space[Any]]]:
        """The observation and action space of every environment."""
        return [(env.observation_space, env.action_space) for env in self.envs]

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        """Return the infos of the last step as arrays ``(n, ...)``; ``None`` if impossible.

        Lanes whose infos are always empty return ``{}``.
        """
        return None

    @cached_property
    def observation_layout(self) -> Any:
        """The layout of one observation, a tree of `Leaf`."""
        return layout_of_space(self.observation_space)

    @cached_property
    def action_layout(self) -> Any:
        """The layout of one action, a tree of `Leaf`."""
        return layout_of_space(self.action_space)

    def start(self, seeds: Seeds = None, options: Options = None) -> Any:
        """Reset all lanes and return their observations, a tree of new arrays ``(n, ...)``.

        `seeds` and `options`, one for each lane, are passed to the environments' ``reset``. This
        method may be called again.
        """
        for env in self.envs:
            _users[id(env.unwrapped)] = self
        obs = self.new_observations()
        # Not the method of a subclass, which may leave out what only the first reset needs.
        Lanes.reset(self, obs, seeds=seeds, options=options)
        return obs

    def new_observations(self) -> Any:
        """Return a tree of arrays ``(n, ...)`` of zeros for observations."""
        return zeros(self.observation_layout, (self.num_lanes,))

    def reset(
        self, obs: Any, lanes: Which = None, *, seeds: Seeds = None, options: Options = None
    ) -> None:
        """Start new episodes in `lanes`, and write the first observations into their rows of `obs`.

        `seeds` and `options` have one entry for each of `lanes`, in their order. Without a seed, a
        lane continues with its environment's random generator.

        Raises
        ------
        ObservationError
            An observation does not fit its space.
        RuntimeError
            An environment raised `StopIteration`. All other exceptions are raised unchanged.
        """
        chosen = self._chosen(lanes)
        nones = [None] * len(chosen)
        for lane, seed, given in zip(chosen, seeds or nones, options or nones, strict=True):
            try:
                value, info = self._reset(lane, seed, given)
                self.infos[lane] = owned_info(info)
                # Copied before the next reset: environments may return the same array again.
                put(self.observation_space, obs, lane, value)
            except BaseException as error:
                add_note(error, f"raised while lane {self.first_lane + lane} was reset")
                raise

    @abc.abstractmethod
    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Start a new episode in `lane`; return its first observation and info."""

    def step(
        self,
        actions: Any,
        out: StepArrays,
        lanes: Which = None,
        *,
        ended: Flags | None = None,
        finals: Finals | None = None,
    ) -> None:
        """Step `lanes` with their rows of `actions`; write the results into their rows of `out`.

        Rows of other lanes are not changed.

        Parameters
        ----------
        actions : tree of array ``(n, ...)``
        out : StepArrays
        lanes : sequence of int, optional
            Which lanes are stepped; by default all.
        ended : array ``(n,) bool``, optional
            Lanes that begin a new episode instead of being stepped: their actions are ignored, and
            they have a reward of 0 and no flags. It must be false for all lanes but `lanes`.
        finals : dict, optional
            If given, each lane whose episode ends is reset at once; ``out.obs`` and `infos` hold
            the first observation and info of the new episode, and ``finals[lane]`` is set to the
            last ones of the old.

        Raises
        ------
        ObservationError, RewardError, EnvApiError
            An observation does not fit its space, or a reward or flag is not a single number.
        RuntimeError
            An environment raised `StopIteration`. All other exceptions are raised unchanged.
        """
        step = Step(actions, out, lanes, ended, finals)
        self.submit(step)
        self.collect(step)

    # Steps that need not be waited for

    @property
    def parts(self) -> list[range]:
        """The lanes of each process that steps lanes; this process steps the first part."""
        return [range(self.num_lanes)]

    def submit(self, step: Step) -> None:
        """Begin a step in other processes, without waiting; `collect` completes it.

        Several steps may have been submitted, but only one for each of `parts`.
        """

    def is_done(self, step: Step) -> bool:
        """Return whether the other processes have done a step, so that `collect` won't wait.

        This is false if this process has to do a part of the step.
        """
        return False

    @abc.abstractmethod
    def collect(self, step: Step) -> None:
        """Complete a step that was submitted; see `step`."""

    def wait(self, seconds: float) -> None:
        """Wait until another process has done its part of a step, but at most `seconds`."""

    def check_not_used_elsewhere(self) -> None:
        """Raise `InputError` if another `Lanes` object has started the environments since `start`.

        Lanes of environments that nobody else can reach check nothing.
        """

    # The environments

    def expose(self) -> None:
        """Prepare for other code that may read or change the environments from now on."""

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        """Return attribute `name` of each environment of `lanes`, or the result of calling it.

        A callable attribute is called with `args` and `kwargs`. `gymnasium.Env.get_wrapper_attr`
        looks the attribute up, in the outermost wrapper first.
        """
        values = []
        for lane in self._chosen(lanes):
            value = open_env_of(self.envs[lane]).get_wrapper_attr(name)
            values.append(value(*args, **kwargs) if callable(value) else value)
        return values

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set attribute `name` of each environment, by `gymnasium.Env.set_wrapper_attr`.

        `values` has one entry for each environment.
        """
        self.expose()
        for env, value in zip(self.envs, values, strict=True):
            open_env_of(env).set_wrapper_attr(name, value)

    def are_wrapped(self, wrapper_class: type) -> list[bool]:
        """Return, for each environment, whether it has a wrapper of this class."""
        chains = [links(gym_env_of(env)) for env in self.envs]
        found = [any(isinstance(link, wrapper_class) for link in chain) for chain in chains]
        return found if len(found) == self.num_lanes else found * self.num_lanes

    # States

    @property
    def formats(self) -> list[StateFormat]:
        """The state format of each environment."""
        self._check_has_states()
        return [env.layout.format for env in self.envs]

    @property
    def state_nbytes(self) -> int:
        """The number of bytes of one state row."""
        self._check_has_states()
        return int(self.envs[0].state_nbytes)

    def get_states(self, lanes: Which = None) -> Row:
        """Return the state rows of `lanes`, each as `PlanEnv.get_state` returns it.

        Raises
        ------
        SnapshotError
            The lanes have no state rows.
        InputError
            The rows have different lengths.
        """
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = self._new_rows(chosen)
        for place, lane in enumerate(chosen):
            rows[place] = self._get_state(lane)
        return rows

    def _new_rows(self, lanes: Sequence[int]) -> Row:
        """Return an array for the state rows of `lanes`, which must have the same length."""
        formats = self.formats
        own = [formats[lane] for lane in lanes] if len(formats) > 1 else []
        widths = {each.state_nbytes for each in own or formats[:1]}
        if len(widths) > 1:
            raise InputError(
                f"the state rows of these lanes have different lengths, {sorted(widths)} bytes; "
                "get rows of equal length in one call, and other rows in further calls"
            )
        return np.empty((len(lanes), widths.pop()), np.uint8)

    def set_states(self, states: Row, lanes: Which = None, seeds: Any = None) -> None:
        """Set the states of `lanes` to the rows `states`, one for each or one for all.

        No observations are returned; keep the ones received with the states. If `seeds` are
        given, one for each of `lanes`, each lane gets a new random generator.

        Raises
        ------
        StateError
            A row is malformed, or is not a state of its lane's environment; no lane has changed.
        InputError
            The lengths do not match, or a seed is not a whole number of at least 0.
        SnapshotError
            The lanes have no state rows.
        """
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = checked_states(states, self.formats, chosen)
        numbers = checked_reseeds(seeds, len(chosen))
        for place, lane in enumerate(chosen):
            row = rows[place if len(rows) > 1 else 0]
            self._set_state(lane, row, None if numbers is None else numbers[place])

    def _get_state(self, lane: int) -> Row:
        row: Row = self.envs[lane].get_state()
        return row

    def _set_state(self, lane: int, row: Row, seed: int | None = None) -> None:
        env = self.envs[lane]
        env.set_state(row)
        if seed is not None:
            env.simulator.reseed(seed)

    def _check_has_states(self) -> None:
        if not self.has_states:
            raise SnapshotError(
                "lanes of plain Gymnasium environments have no state rows: give an id, or a "
                "factory such as lambda: plangym_like.make(...)"
            )

    def _chosen(self, lanes: Which) -> Sequence[int]:
        return range(self.num_lanes) if lanes is None else [int(lane) for lane in lanes]

    def close(self) -> None:
        """Close all environments, even if one raises an error."""
        with ExitStack() as stack:
            for env in reversed(self.envs):
                stack.callback(env.close)


def last_user(env: Any) -> Lanes | None:
    """Return the lanes that last started `env`; ``None`` if they do not exist any more."""
    return _users.get(id(env.unwrapped))


def is_plan_env(env: Any) -> TypeGuard[PlanEnv]:
    """Return whether `env` is a `PlanEnv`."""
    return isinstance(env, PlanEnv)


def gym_env_of(env: Any) -> Any:
    """Return the Gymnasium environment inside a `PlanEnv`; return any other `env` unchanged."""
    return env.simulator.env if is_plan_env(env) else env


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception that an environment raised.

    If the exception is a `StopIteration`, which would silently end the caller's loop, raise a
    `RuntimeError` instead.
    """
    if isinstance(error, StopIteration):
        failure = RuntimeError("an environment raised StopIteration")
        failure.add_note(note)
        raise failure from error
    error.add_note(note)


def open_env_of(env: Any) -> Any:
    """Return the same as `gym_env_of`, for code that may change the environment."""
    return env.gym_env if is_plan_env(env) else env


def checked_states(states: Any, formats: Sequence[StateFormat], lanes: Sequence[int]) -> Row:
    """Return `states` as rows ``(K, state_nbytes)``, or one row for all ``(1, state_nbytes)``.

    Parameters
    ----------
    states : array ``(K, state_nbytes) uint8``, or one row
    formats : sequence of StateFormat
        The format of each environment, or a single one for all.
    lanes : sequence of int
        The K lanes.

    Raises
    ------
    StateError
        A row is malformed, or is not a state of its lane's environment.
    InputError
        The number of rows is neither K nor 1.
    """
    own = [formats[lane] for lane in lanes] if len(formats) > 1 else []
    if len(set(own)) > 1:
        try:
            rows: Row = np.atleast_2d(states)
        except ValueError as error:
            raise StateFormatError("the states are rows of several lengths") from error
    else:
        rows, own = (own or formats)[0].check(states), []
    if len(rows) not in (1, len(lanes)):
        raise InputError(
            f"{len(rows)} states were given for {len(lanes)} lanes: give one for each, one for "
            "all, or the indices of the lanes to set"
        )
    for place, each in enumerate(own):
        try:
            each.check_row(rows[place if len(rows) > 1 else 0])
        except StateError as error:
            error.add_note(f"raised for lane {lanes[place]}, whose environment differs from others")
            raise
    return rows


def checked_reseeds(seeds: Any, count: int) -> list[int] | None:
    """Return one seed for each of `count` lanes; ``None`` if `seeds` is ``None``.

    Raises
    ------
    InputError
        There are not `count` seeds, or one is not a whole number of at least 0.
    """
    if seeds is None:
        return None
    given = [seeds] if np.ndim(seeds) == 0 else list(seeds)
    if len(given) != count or None in given:
        raise InputError(f"seeds must have one entry for each of {count} lanes, got {seeds!r}")
    return [seed for seed in whole_seeds(given) if seed is not None]


def whole_seeds(seeds: Iterable[Any]) -> list[int | None]:
    """Return seeds as Python integers, which Gymnasium needs; ``None`` stays ``None``.

    Raises
    ------
    InputError
        A seed is neither ``None`` nor a whole number of at least 0.

    Examples
    --------
    >>> whole_seeds(np.arange(3))
    [0, 1, 2]
    """
    whole: list[int | None] = []
    for seed in seeds:
        try:
            number = None if seed is None else operator.index(seed)
        except TypeError:
            number = -1
        if number is not None and number < 0:
            raise InputError(f"seeds must be whole numbers of at least 0, got {seed!r}")
        whole.append(number)
    return whole


def seed_after_loss(seed: int | None, num_losses: int) -> int | None:
    """Return the new seed for a lane whose environment was lost with its process.

    The new seed depends on the last seed that the lane was given, and on how often the lane has
    been lost. If the lane was never given a seed, return ``None``.

    >>> seed_after_loss(5, 1) != seed_after_loss(5, 2)
    True
    """
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, num_losses]).generate_state(1)[0])

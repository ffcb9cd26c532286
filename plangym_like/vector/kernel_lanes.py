"""Lanes of one kind of environment that are stepped together.

`KernelLanes` have an environment for each lane, and a `LaneKernel`: `ClassicKernel` for classic
control, `robot_kernel.RobotLaneKernel` for MuJoCo's robots. `RowLanes` are state rows of one
`PlanEnv`, stepped by the kernel of its family, or by its workers.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from gymnasium.spaces import Space
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.envs.classic.env import agrees
from plangym_like.envs.classic.equations import DYNAMICS, Motions
from plangym_like.envs.kernel import NotVectorisableError, has_replaced_methods
from plangym_like.envs.wrapping import is_plain
from plangym_like.errors import InputError
from plangym_like.results import STEP_COUNTS, BatchInfo
from plangym_like.snapshots.chains import chain, links
from plangym_like.states.rows import Row
from plangym_like.vector.lanes import (
    Lanes,
    Options,
    Seeds,
    Step,
    StepArrays,
    Which,
    gym_env_of,
    is_plan_env,
    open_env_of,
)
from plangym_like.vector.sequential_lanes import SequentialLanes
from plangym_like.vector.tree import take, tree_map

_NUMBERS = (bool, int, float)
# Methods that change nothing, and types of values that give no access to the state or the settings
# of an environment.
_READING = ("get_wrapper_attr", "has_wrapper_attr")
_HARMLESS = (*_NUMBERS, str, type(None), np.generic, np.random.Generator, Space)


class LaneKernel(abc.ABC):
    """Steps the environments of all lanes together, with the results of their own ``step``.

    Attributes
    ----------
    steps_ended : bool
        Whether it costs less to step all lanes than to leave out those that begin a new episode.
    info_types : dict of str to type
        The types of the values of infos; empty if infos are always empty.
    """

    steps_ended: ClassVar[bool] = False
    info_types: dict[str, type]

    @abc.abstractmethod
    def step(
        self, actions: Any, out: StepArrays, lanes: NDArray[np.intp] | None
    ) -> dict[str, NDArray[Any]] | None:
        """Step `lanes` (``None``: all); return their infos as arrays.

        Return ``None``, with nothing changed, if the environments must be stepped themselves.
        """

    @abc.abstractmethod
    def read(self, lane: int) -> None:
        """Continue from the state of the lane's environment."""

    @abc.abstractmethod
    def write(self, lane: int) -> None:
        """Put the lane's environment into the state of the lane."""

    def reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the environment without its wrappers; return ``None`` if they are needed."""
        return None


def collect_together(
    lanes: Lanes, step_some: Callable[[Any, StepArrays, Which], None], step: Step
) -> None:
    """Do a step; see `Lanes.step`.

    ``step_some(actions, out, lanes)`` steps lanes together, none of which begins a new episode.
    """
    actions, out, which, ended, finals = step
    if ended is None or not np.count_nonzero(ended):
        if which is None or len(which):
            step_some(actions, out, which)
    else:
        running = np.arange(lanes.num_lanes) if which is None else np.asarray(which, np.intp)
        running = running[~ended[running]]
        if len(running):
            step_some(actions, out, running)
        restart(lanes, out, np.flatnonzero(ended))
    if finals is not None:
        over = np.flatnonzero(out.terminated | out.truncated)
        over = over if which is None else np.intersect1d(over, which)
        for lane in over.tolist():
            finals[lane] = tree_map(owned, take(out.obs, lane)), lanes.infos[lane]
        if len(over):
            lanes.reset(out.obs, over)


def restart(lanes: Lanes, out: StepArrays, which: NDArray[np.intp]) -> None:
    """Begin new episodes in place of a step."""
    out.rewards[which], out.terminated[which], out.truncated[which] = 0.0, False, False
    lanes.reset(out.obs, which)


class KernelLanes(SequentialLanes):
    """Lanes that are stepped together by a kernel.

    The environments themselves are used for resets and random numbers. Once other code may read or
    change their states or settings, they are stepped one by one.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
    kernel : LaneKernel
        A kernel that was made for these environments.
    """

    def __init__(self, envs: Sequence[Any], kernel: LaneKernel) -> None:
        super().__init__(envs)
        self._kernel: LaneKernel | None = kernel
        self._is_started = False
        # The infos of the last step, until they are requested, and the lanes of that step.
        self._columns: dict[str, NDArray[Any]] = {}
        self._stepped: Sequence[int] = ()
        self._every = range(self.num_lanes)

    @property
    def infos(self) -> list[dict[str, Any]]:
        columns, kernel = self._columns, self._kernel
        if columns and kernel is not None:
            self._columns = {}
            for place, lane in enumerate(self._stepped):
                info = {name: column[place] for name, column in columns.items()}
                # NumPy's types follow from the columns.
                info.update({k: info[k].item() for k in info if kernel.info_types[k] in _NUMBERS})
                self._infos[lane] = info
        return self._infos

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        if self._kernel is not None and not self._kernel.info_types:
            return {}
        is_whole = self._columns and isinstance(self._stepped, range)
        return self._columns if is_whole else None

    # Episodes

    def start(self, seeds: Seeds = None, options: Options = None) -> Any:
        self._is_started = False
        obs = super().start(seeds, options)
        self._is_started = True
        return obs

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        kernel, result = self._kernel, None
        # The first reset must go through the wrappers, but later ones need not.
        lost = self.has_states and self.envs[lane].row_stepper.current.lost
        if kernel is not None and self._is_started and not lost:
            gym_env_of(self.envs[lane])  # restores a current state that was set aside
            result = kernel.reset(lane, seed, options)
        if result is None:
            result = super()._reset(lane, seed, options)
        if kernel is not None:
            kernel.read(lane)
        return result

    def collect(self, step: Step) -> None:
        kernel = self._kernel
        if kernel is None:
            super().collect(step)
            return
        actions, out, lanes, ended, finals = step
        if lanes is None and finals is None:  # the usual case, in less time than the general one
            reset = None if ended is None or not np.count_nonzero(ended) else np.flatnonzero(ended)
            given = actions
            if reset is not None:
                given = actions.copy()
                given[reset] = 0
            columns = kernel.step(given, out, None) if kernel.steps_ended or reset is None else None
            if columns is not None:
                self._columns, self._stepped = columns, self._every
                if reset is not None:
                    restart(self, out, reset)
                return
        collect_together(self, self._step, step)

    def _step(self, actions: Any, out: StepArrays, lanes: Which) -> None:
        kernel, chosen = self._kernel, self._chosen(lanes)
        assert kernel is not None
        if lanes is not None:
            _ = self.infos  # stores the infos of the previous step, which other lanes keep
        columns = kernel.step(actions, out, None if lanes is None else np.asarray(chosen, np.intp))
        if columns is not None:
            self._columns, self._stepped = columns, chosen
            return
        _ = self.infos
        self._write(chosen)
        try:
            super().collect(Step(actions, out, lanes))
        finally:
            self._read(chosen)

    # The environments

    def _write(self, lanes: Sequence[int]) -> None:
        for lane, kernel in self._kernel_of(lanes):
            kernel.write(lane)

    def _read(self, lanes: Sequence[int]) -> None:
        for lane, kernel in self._kernel_of(lanes):
            kernel.read(lane)

    def _kernel_of(self, lanes: Sequence[int]) -> Iterator[tuple[int, LaneKernel]]:
        """Yield each of `lanes`, and the kernel that holds its state, if there is one."""
        kernel = self._kernel
        if kernel is not None and self._is_started:
            for lane in lanes:
                gym_env_of(self.envs[lane])  # restores a current state that was set aside
                yield lane, kernel

    def expose(self) -> None:
        _ = self.infos
        self._write(range(self.num_lanes))
        self._kernel = None

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        if self._kernel is None:
            return super().call(name, *args, lanes=lanes, **kwargs)
        self._write(range(self.num_lanes))
        is_harmless = False
        try:
            values = super().call(name, *args, lanes=lanes, **kwargs)
            is_read = name in _READING or not callable(
                gym_env_of(self.envs[0]).get_wrapper_attr(name)
            )
            is_harmless = is_read and _are_harmless(values)
        finally:
            if not is_harmless:
                _ = self.infos
                self._kernel = None
        return values

    # States

    def _get_state(self, lane: int) -> Row:
        self._write([lane])
        return super()._get_state(lane)

    def _set_state(self, lane: int, row: Row, seed: int | None = None) -> None:
        super()._set_state(lane, row, seed)
        self._read([lane])


def _are_harmless(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, _HARMLESS) or (isinstance(value, tuple) and _are_harmless(value))
        for value in values
    )


class ClassicKernel(LaneKernel):
    """Steps environments of Gymnasium's classic control, with their states in arrays.

    Constants of the dynamics are read when the kernel is made. `read` and `reset` raise an
    `InputError` if they have been changed since. Use `make`.
    """

    steps_ended = True

    def __init__(self, envs: Sequence[Any]) -> None:
        self.info_types = {}
        self._bases: list[Any] = [env.unwrapped for env in envs]
        self._limits = list(map(time_limit, envs))
        self._settings = _settings_of(envs[0])
        self._limit = self._settings[2]
        base, count = self._bases[0], len(envs)
        self._dynamics = dynamics = DYNAMICS[type(base)](base)
        self._states = Motions(
            np.empty((len(dynamics.order), count)),
            np.full(count, dynamics.no_hidden),
            np.zeros(count, bool) if dynamics.takes_single else None,
            np.zeros(count, np.int64),
        )
        self._order = np.array(dynamics.order)
        self._places: list[int] = np.argsort(self._order).tolist()
        self._saved = np.empty_like(self._states.x), np.empty_like(self._states.hidden)
        self._turned = np.empty((count, len(dynamics.order)))
        self._rewards = np.empty(count)

    @classmethod
    def make(cls, envs: Sequence[Any]) -> Self | None:
        """Return a kernel of `envs`; ``None`` if no kernel steps all of them as they are now."""
        if len(set(map(is_plan_env, envs))) > 1 or not all(map(shows_its_base, envs)):
            return None
        gym_envs = list(map(gym_env_of, envs))
        base = gym_envs[0].unwrapped
        dynamics = DYNAMICS.get(type(base))
        if dynamics is None or not all(map(is_bare, gym_envs)):
            return None
        first = _settings_of(gym_envs[0])
        if any(_settings_of(env) != first for env in gym_envs) or not agrees(base):
            return None
        return cls(gym_envs)

    @property
    def fewest_lanes(self) -> int:
        """The smallest number of environments for which this is faster than ``env.step``."""
        return self._dynamics.fewest_lanes

    def reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        result = self._bases[lane].reset(seed=seed, options=options)
        if self._limits[lane] is not None:
            self._limits[lane]._elapsed_steps = 0
        return result

    def read(self, lane: int) -> None:
        base, states, limit = self._bases[lane], self._states, self._limits[lane]
        if _settings_of(base, limit) != self._settings:
            raise InputError(
                "an attribute of an environment was changed directly, which its vectorised form "
                "does not notice: change it with set_attr, or before lanes are made, or give "
                "vectorise=False"
            )
        state = np.asarray(base.state)  # a user may have set a tuple
        states.x[:, lane] = state[self._order]
        if states.single is not None:
            states.single[lane] = state.dtype == np.float32
        hidden = getattr(base, self._dynamics.hidden) if self._dynamics.hidden else None
        states.hidden[lane] = self._dynamics.no_hidden if hidden is None else hidden
        assert states.elapsed is not None
        states.elapsed[lane] = 0 if limit is None else limit._elapsed_steps

    def write(self, lane: int) -> None:
        base, states, limit = self._bases[lane], self._states, self._limits[lane]
        state = np.empty(len(self._order))
        state[self._order] = states.x[:, lane]
        single = states.single is not None and states.single[lane]
        base.state = state.astype(np.float32) if single else state
        if self._dynamics.hidden:
            hidden = self._dynamics.as_hidden(states.hidden[lane])
            setattr(base, self._dynamics.hidden, hidden)
        if limit is not None:
            assert states.elapsed is not None
            limit._elapsed_steps = int(states.elapsed[lane])

    def step(
        self, actions: Any, out: StepArrays, lanes: NDArray[np.intp] | None
    ) -> dict[str, NDArray[Any]] | None:
        if lanes is None:
            return {} if self._advance(self._states, actions, out) else None
        part, found = self._states.take(lanes), take(out, lanes)
        if not self._advance(part, actions[lanes], found):
            return None
        for target, values in zip(out, found, strict=True):
            target[lanes] = values
        self._states.put(lanes, part)
        return {}

    def _advance(self, states: Motions, actions: NDArray[Any], out: StepArrays) -> bool:
        """Step `states`; return False, with them unchanged, if this is not possible."""
        dynamics, count = self._dynamics, len(actions)
        is_done = 0 < count <= dynamics.most_singly and self._advance_few(states, actions, out)
        if not is_done and not self._advance_many(states, actions, out):
            return False
        assert states.elapsed is not None
        states.elapsed += 1
        if self._limit is None:
            out.truncated.fill(False)
        else:
            np.greater_equal(states.elapsed, self._limit, out=out.truncated)
        return True

    def _advance_many(self, states: Motions, actions: NDArray[Any], out: StepArrays) -> bool:
        dynamics, count, limit = self._dynamics, len(actions), self._dynamics.num_actions
        # Viewed as unsigned numbers, negative actions are large.
        if limit and (
            actions.dtype != np.int64 or np.count_nonzero(actions.view(np.uint64) >= limit)
        ):
            return False
        saved = self._saved[0][:, :count], self._saved[1][:count]
        saved[0][...], saved[1][...] = states.x, states.hidden
        earned, turned = self._rewards[:count], self._turned[:count]
        try:
            dynamics.advance(states, actions, earned, out.terminated)
        except NotVectorisableError:
            states.x[...], states.hidden[...] = saved
            return False
        dynamics.store(states.x, turned)
        dynamics.observe(states.x, turned, out.obs)
        out.rewards[...] = earned
        if states.single is not None:
            states.single.fill(dynamics.leaves_single)
        return True

    def _advance_few(self, states: Motions, actions: NDArray[Any], out: StepArrays) -> bool:
        """Step rows one by one with Python numbers, which takes less time for a few."""
        dynamics, chosen = self._dynamics, actions.tolist()
        if actions.dtype != np.int64 or min(chosen) < 0 or max(chosen) >= dynamics.num_actions:
            return False
        found, hidden = [], states.hidden.tolist()
        for lane, x in enumerate(states.x.T.tolist()):
            state = [x[place] for place in self._places]
            one = dynamics.advance_one(state, hidden[lane], chosen[lane])
            if one is None:
                return False
            found.append(one)
        reached, hidden, earned, over = zip(*found, strict=True)
        turned = self._turned[: len(chosen)]
        turned[...] = reached
        dynamics.load(turned, states.x)
        dynamics.observe(states.x, turned, out.obs)
        out.rewards[...], out.terminated[...] = earned, over
        if True in over:
            states.hidden[...] = hidden
        return True


def _settings_of(env: Any, limit: Any = None) -> tuple[Any, ...]:
    """Return all that steps of a classic control environment and its time limit depend on."""
    base, limit = env.unwrapped, limit or time_limit(env)
    constants = DYNAMICS[type(base)].settings(base) if type(base) in DYNAMICS else None
    settings = constants, has_replaced_methods(base)
    return type(base), settings, None if limit is None else limit._max_episode_steps


# Wrappers


def shows_its_base(env: Any) -> bool:
    """Return whether a step of `env` is one step of the Gymnasium environment inside it.

    It is not if frames are skipped, for example.
    """
    if not is_plan_env(env):
        return True
    same_space = env.observation_space == gym_env_of(env).observation_space
    same_actions = env.layout.out_of_bounds == "pass"
    return same_space and same_actions and env.frameskip == 1 and not env.return_image


def is_bare(env: Any) -> bool:
    """Return whether `env` renders nothing and has no wrappers except checks and one time limit.

    Return False if ``step`` or ``reset`` of any object in the chain has been replaced.
    """
    if not is_plain(env) or sum(map(_is_limit, chain(env))) > 1:
        return False
    replaced = [link for link in links(env) if not vars(link).keys().isdisjoint(("step", "reset"))]
    return not replaced and env.unwrapped.render_mode is None


def time_limit(env: Any) -> Any:
    """Return the time limit around `env`, or ``None``."""
    return next(filter(_is_limit, chain(env)), None)


def _is_limit(wrapper: Any) -> bool:
    return type(wrapper) is TimeLimit


# Rows


class RowLanes(Lanes):
    """Lanes whose states are one batch; each step is one call of `PlanEnv.step_batch`.

    Stepping lanes therefore uses the environment's workers and the kernel of its family.

    Parameters
    ----------
    env : PlanEnv
        The environment, which only these lanes may use: each reset changes its current state.
    num_lanes : int
    """

    def __init__(self, env: Any, num_lanes: int) -> None:
        super().__init__([env], num_lanes)
        self._env = env
        self._states: Row | None = None
        # The infos of the last step, until they are requested, and the lanes of that step.
        self._batch: BatchInfo | None = None
        self._stepped: Sequence[int] = ()
        # The last seed of each lane; the environment holds only the seed of its last reset.
        self._seeds: list[int | None] = [None] * num_lanes
        self._initial = self._initial_state()

    def _initial_state(self) -> Row | None:
        """Return the environment's state before its first reset.

        Return ``None`` if it has already been reset, or if this state cannot be saved.
        """
        stepper = self._env.row_stepper
        if stepper.current.started:
            return None
        # Before its first reset, an environment may have no state that could be saved.
        with contextlib.suppress(Exception):
            stepper.simulator.renew()
            row: Row = stepper.current.read()
            return row
        return None

    @property
    def infos(self) -> list[dict[str, Any]]:
        batch, self._batch = self._batch, None
        if batch is not None:
            for lane, info in zip(self._stepped, batch.env_infos(), strict=True):
                self._infos[lane] = info
        return self._infos

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        batch = self._batch
        if batch is None or batch.has_objects or not isinstance(self._stepped, range):
            return None
        return {name: batch.column(name) for name in sorted(batch.keys() - {*STEP_COUNTS})}

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        env = self._env
        if self._states is not None and self._states[lane].any():
            # The reset continues with the lane's own generator.
            env.set_state(self._states[lane])
        else:
            # The environment may be in the state of another lane, with the generator of that lane.
            if self._initial is not None:
                env.set_state(self._initial)
            if seed is None:
                seed = int(np.random.SeedSequence().generate_state(1)[0])
        state, obs, info = env.reset(seed=seed, options=options)
        self._seeds[lane] = self._seeds[lane] if seed is None else seed
        self._set_state(lane, state)
        return obs, info

    def collect(self, step: Step) -> None:
        collect_together(self, self._step, step)

    def _step(self, actions: Any, out: StepArrays, lanes: Which) -> None:
        assert self._states is not None
        rows: Any = slice(None) if lanes is None else np.asarray(lanes, np.intp)
        result = self._env.step_batch(take(actions, rows), self._states[rows])
        self._states[rows] = result.states

        def write(target: NDArray[Any], values: Any) -> None:
            target[rows] = values

        found = StepArrays(result.obs, result.rewards, result.terminateds, result.truncateds)
        tree_map(write, out, found)
        if lanes is not None:
            _ = self.infos  # stores the infos of the previous step, which other lanes keep
        self._batch, self._stepped = result.infos, self._chosen(lanes)

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        if name == "set_wrapper_attr":
            self.set_attr(args[0], args[1:])
        if name == "get_wrapper_attr" and args == ("np_random_seed",):
            name, args = "np_random_seed", ()
        if name == "np_random_seed" and self._states is not None:
            return [self._seeds[lane] for lane in self._chosen(lanes)]
        values = []
        for lane in self._chosen(lanes):
            if self._states is not None:
                self._env.set_state(self._states[lane])
            value = open_env_of(self._env).get_wrapper_attr(name)
            # All lanes use the same environment, and it may return one of its own objects.
            values.append(owned(value(*args, **kwargs) if callable(value) else value))
            if self._states is not None:
                self._states[lane] = self._env.get_state()
        return values

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        raise InputError(
            f"{name!r} cannot be set: all lanes are state rows of one environment. "
            "vectorise=False makes an environment for each lane"
        )

    def _get_state(self, lane: int) -> Row:
        assert self._states is not None
        row: Row = self._states[lane]
        return row

    def _set_state(self, lane: int, row: Row, seed: int | None = None) -> None:
        if seed is not None:
            self._env.set_state(row)
            self._env.simulator.reseed(seed)
            row = self._env.get_state()
        if self._states is None:
            self._states = np.zeros((self.num_lanes, len(row)), np.uint8)
        self._states[lane] = row

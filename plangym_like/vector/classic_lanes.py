"""`ClassicLanes`: lanes of a classic control environment, stepped together with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.envs.classic.dynamics import Columns
from plangym_like.envs.classic.env import agrees
from plangym_like.envs.classic.equations import DYNAMICS
from plangym_like.envs.kernel import NotVectorisableError
from plangym_like.envs.wrapping import is_plain
from plangym_like.errors import ActionError, InputError
from plangym_like.snapshots.chains import chain, links
from plangym_like.states.rows import Row
from plangym_like.vector.lanes import Lanes, Options, Seeds, Which, gym_env_of, is_plan_env
from plangym_like.vector.sequential_lanes import SequentialLanes
from plangym_like.vector.step_arrays import Finals, Flags, StepArrays
from plangym_like.vector.tree import layout_of_space, take


class ClassicLanes(SequentialLanes):
    """Lanes whose states are columns of arrays, stepped by one vectorised call.

    The results of a lane equal those of ``gym.make(id)`` with the same seed, byte for byte. The
    environments themselves are still used for resets and random numbers. Constants of the dynamics
    are read in the constructor, and after `set_attr` and `call`; if the environments have no common
    form any more, these lanes become `SequentialLanes`. A reset raises an `InputError` if constants
    have been changed in any other way.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
        Environments for which `has_common_form` returns true.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__(envs)
        self._is_started = False
        self._bases: list[Any] = [gym_env_of(env).unwrapped for env in self.envs]
        self._read_constants()
        self.observation_layout = layout_of_space(self._bases[0].observation_space)
        count = self.num_lanes
        self._columns = Columns(
            np.empty((len(self._dynamics.order), count)),
            np.full(count, self._dynamics.no_hidden),
            np.zeros(count, bool) if self._dynamics.takes_single else None,
            np.zeros(count, np.int64),
        )
        self._order = np.array(self._dynamics.order)
        self._places: list[int] = np.argsort(self._order).tolist()
        self._saved = np.empty_like(self._columns.x)
        self._saved_hidden = np.empty_like(self._columns.hidden)
        self._rewards = np.empty(count)
        self._states = np.empty((count, len(self._dynamics.order)))

    def _read_constants(self) -> None:
        """Read the constants of the dynamics and the time limit, which all lanes share."""
        self._time_limits = [time_limit(gym_env_of(env)) for env in self.envs]
        base = self._bases[0]
        self._dynamics = DYNAMICS[type(base)](base)
        self._signature = self._dynamics.signature(base)
        self._limit = _limit_of(gym_env_of(self.envs[0]))

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        return {}  # these environments have no infos

    def start(self, seeds: Seeds = None, options: Options = None) -> Any:
        self._is_started = False
        obs = super().start(seeds, options)
        self._is_started = True
        return obs

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        self._check_unchanged(lane)
        # The first reset must go through the wrappers, but later ones need not.
        env = self._gym_envs[lane]
        lost = self.has_states and self.envs[lane].row_stepper.current.lost
        if self._is_started and not lost:
            env = gym_env_of(self.envs[lane]).unwrapped
        result = env.reset(seed=seed, options=options)
        self._take_over(lane)
        return result

    def check_not_used_elsewhere(self) -> None:
        # Resets elsewhere do not matter, but changes that `step` would ignore do.
        for lane in range(self.num_lanes):
            self._check_unchanged(lane)

    def _check_unchanged(self, lane: int) -> None:
        """Raise `InputError` if an attribute was changed other than by `set_attr`."""
        limit = self._time_limits[lane]
        if self._dynamics.signature(self._bases[lane]) != self._signature or (
            limit is not None and limit._max_episode_steps != self._limit
        ):
            raise InputError(
                f"an attribute of environment {self.first_lane + lane} was changed directly, which "
                "its vectorised form does not notice: change it with set_attr, or before lanes are "
                "made, or give vectorise=False"
            )

    def _take_over(self, lane: int, elapsed: int = 0) -> None:
        """Copy the state of `lane`'s environment into the columns.

        `elapsed` is the number of steps in the current episode.
        """
        self._read_state(self._bases[lane], self._columns, lane)
        assert self._columns.elapsed is not None
        self._columns.elapsed[lane] = elapsed

    def _read_state(self, base: Any, columns: Columns, lane: int) -> None:
        state = np.asarray(base.state)  # a user may have set a tuple
        columns.x[:, lane] = state[self._order]
        if columns.single is not None:
            columns.single[lane] = state.dtype == np.float32
        hidden = getattr(base, self._dynamics.hidden) if self._dynamics.hidden else None
        columns.hidden[lane] = self._dynamics.no_hidden if hidden is None else hidden

    def _write_state(self, base: Any, columns: Columns, lane: int) -> None:
        state = np.empty(len(self._dynamics.order))
        state[self._order] = columns.x[:, lane]
        single = columns.single is not None and columns.single[lane]
        base.state = state.astype(np.float32) if single else state
        if self._dynamics.hidden:
            hidden = self._dynamics.as_hidden(columns.hidden[lane])
            setattr(base, self._dynamics.hidden, hidden)

    def _get_state(self, lane: int) -> Row:
        self._write_back([lane])
        return super()._get_state(lane)

    def _set_state(self, lane: int, row: Row, seed: int | None = None) -> None:
        super()._set_state(lane, row, seed)
        self._read_back([lane])

    def _write_back(self, lanes: Sequence[int]) -> None:
        """Copy the states of `lanes` to their environments, if the lanes have been started."""
        for lane in lanes if self._is_started else ():
            # This restores the environment's current state, which `_write_state` then replaces.
            env = gym_env_of(self.envs[lane])
            self._write_state(self._bases[lane], self._columns, lane)
            limit = time_limit(env)
            if limit is not None:
                assert self._columns.elapsed is not None
                limit._elapsed_steps = int(self._columns.elapsed[lane])

    def _read_back(self, lanes: Sequence[int]) -> None:
        """Read the states of `lanes` from their environments, if the lanes have been started."""
        for lane in lanes if self._is_started else ():
            limit = time_limit(gym_env_of(self.envs[lane]))
            self._take_over(lane, 0 if limit is None else limit._elapsed_steps)

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        chosen = self._chosen(lanes)
        self._write_back(chosen)
        values = super().call(name, *args, lanes=chosen, **kwargs)
        self._read_back(chosen)
        self._read_form()
        return values

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        every = range(self.num_lanes)
        self._write_back(every)
        super().set_attr(name, values)
        self._read_back(every)
        self._read_form()

    def _read_form(self) -> None:
        """Read the constants again; give up the vectorised form if the lanes do not share it."""
        if has_common_form(self.envs):
            self._read_constants()
        else:
            self._write_back(range(self.num_lanes))
            self._become_sequential()

    def step(self, actions: Any, out: StepArrays, lanes: Which = None) -> None:
        if lanes is None:
            self._step(self._columns, actions, out)
            return
        rows = np.asarray(lanes, np.intp)
        part = self._columns.take(rows)
        found = take(out, rows)
        self._step(part, actions[rows], found)
        for target, values in zip(out, found, strict=True):
            target[rows] = values
        self._columns.put(rows, part)

    def step_next(self, actions: Any, out: StepArrays, ended: Flags, lanes: Which = None) -> None:
        if lanes is not None or not np.count_nonzero(ended):
            Lanes.step_next(self, actions, out, ended, lanes)
            return
        # It costs less to step all lanes than to leave some out; those that are reset also need
        # valid actions.
        actions = actions.copy()
        actions[ended] = 0
        self.step(actions, out)
        self._restart(out, ended)

    def step_same(self, actions: Any, out: StepArrays, lanes: Which = None) -> Finals:
        return Lanes.step_same(self, actions, out, lanes)

    def _step(self, columns: Columns, actions: NDArray[Any], out: StepArrays) -> None:
        obs, rewards, terminated, truncated = out
        dynamics, count = self._dynamics, len(actions)
        if 0 < count <= dynamics.most_singly and self._step_few(columns, actions, out):
            self._count_steps(columns, truncated)
            return
        limit = dynamics.num_actions
        # Viewed as unsigned numbers, negative actions are large.
        if limit and (
            actions.dtype != np.int64 or np.count_nonzero(actions.view(np.uint64) >= limit)
        ):
            raise ActionError(
                f"actions must be in {self._bases[0].action_space}, got {actions.dtype} {actions}"
            )
        saved, hidden = self._saved[:, :count], self._saved_hidden[:count]
        saved[...], hidden[...] = columns.x, columns.hidden
        earned, states = self._rewards[:count], self._states[:count]
        try:
            dynamics.advance(columns, actions, earned, terminated)
            dynamics.store(columns.x, states)
            dynamics.observe(columns.x, states, obs)
            if columns.single is not None:
                columns.single.fill(dynamics.leaves_single)
        except NotVectorisableError:
            columns.x[...], columns.hidden[...] = saved, hidden
            self._step_singly(columns, actions, out._replace(rewards=earned))
        rewards[...] = earned
        self._count_steps(columns, truncated)

    def _count_steps(self, columns: Columns, truncated: Flags) -> None:
        assert columns.elapsed is not None
        columns.elapsed += 1
        if self._limit is None:
            truncated.fill(False)
        else:
            np.greater_equal(columns.elapsed, self._limit, out=truncated)

    def _step_few(self, columns: Columns, actions: NDArray[Any], out: StepArrays) -> bool:
        """Step the lanes one by one with Python numbers; return whether this was possible.

        For a few lanes, this takes less time than calls of NumPy. If it is not possible for these
        actions or states, nothing is changed.
        """
        dynamics, chosen = self._dynamics, actions.tolist()
        if actions.dtype != np.int64 or min(chosen) < 0 or max(chosen) >= dynamics.num_actions:
            return False
        reached: list[Sequence[float]] = []
        earned, ended = [], []
        hidden = columns.hidden.tolist()
        for lane, x in enumerate(columns.x.T.tolist()):
            state = [x[place] for place in self._places]
            found = dynamics.advance_one(state, hidden[lane], chosen[lane])
            if found is None:
                return False
            arrived, hidden[lane], reward, flag = found
            reached.append(arrived)
            earned.append(reward)
            ended.append(flag)
        states = self._states[: len(chosen)]
        states[...] = reached
        dynamics.load(states, columns.x)
        dynamics.observe(columns.x, states, out.obs)
        out.rewards[...], out.terminated[...] = earned, ended
        if True in ended:
            columns.hidden[...] = hidden
        return True

    def _step_singly(self, columns: Columns, actions: NDArray[Any], out: StepArrays) -> None:
        """Step the lanes one by one with the ``step`` of the first environment."""
        base = self._bases[0]
        kept = base.state
        for lane, action in enumerate(actions):
            self._write_state(base, columns, lane)
            out.obs[lane], out.rewards[lane], out.terminated[lane], _, _ = base.step(action)
            self._read_state(base, columns, lane)
        base.state = kept


def suits_few(env: Any) -> bool:
    """Return whether `ClassicLanes` is faster than ``env.step`` even for a single environment."""
    dynamics = DYNAMICS.get(type(gym_env_of(env).unwrapped))
    return dynamics is not None and dynamics.most_singly > 0


def has_common_form(envs: Sequence[Any]) -> bool:
    """Return whether one vectorised form supports all of `envs` in their current configuration."""
    if len({is_plan_env(env) for env in envs}) > 1 or not all(map(shows_its_base, envs)):
        return False
    gym_envs = [gym_env_of(env) for env in envs]
    base: Any = gym_envs[0].unwrapped
    dynamics = DYNAMICS.get(type(base))
    if dynamics is None or not dynamics.suits(base) or not all(map(is_bare, gym_envs)):
        return False
    signature, limit = dynamics.signature(base), _limit_of(gym_envs[0])
    alike = all(
        type(env.unwrapped) is type(base)
        and dynamics.signature(env.unwrapped) == signature
        and _limit_of(env) == limit
        for env in gym_envs
    )
    return alike and agrees(base)


def _limit_of(env: gymnasium.Env[Any, Any]) -> int | None:
    limit = time_limit(env)
    return None if limit is None else limit._max_episode_steps


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


def is_bare(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether `env` renders nothing and has no wrappers except checks and one time limit.

    Return False if ``step`` or ``reset`` of any object in the chain has been replaced.
    """
    if not is_plain(env) or sum(map(_is_limit, chain(env))) > 1:
        return False
    replaced = [link for link in links(env) if not vars(link).keys().isdisjoint(("step", "reset"))]
    return not replaced and env.unwrapped.render_mode is None


def time_limit(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the time limit around `env`, or ``None``."""
    return next(filter(_is_limit, chain(env)), None)


def _is_limit(wrapper: Any) -> bool:
    return type(wrapper) is TimeLimit

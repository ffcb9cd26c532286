"""Lanes of one of Gymnasium's classic control environments, stepped at once in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.batchers.engine.lanes import Flags, Lanes
from plangym_like.batchers.engine.nests import layout_of_space
from plangym_like.envs.classic_dynamics import FORMS, NotVectorisableError, agrees
from plangym_like.envs.classic_dynamics.columns import Columns
from plangym_like.errors import ActionError

_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)


class ClassicLanes(Lanes):
    """The vectorised form: the states of all lanes are columns, stepped by one pass of NumPy.

    A lane seeded like ``gym.make(id)`` equals it byte for byte, draws of later resets included:
    these are made by the environment itself. Constants of the dynamics are read once, here.

    Parameters
    ----------
    envs : sequence of gymnasium.Env
        For which `has_common_form` is true.
    """

    step_infos = False
    steps_ended = True

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(envs)
        self._bases: list[Any] = [env.unwrapped for env in self.envs]
        base = self._bases[0]
        self._form = FORMS[type(base)](base)
        self._limit = _time_limit(self.envs[0])
        self.observation = layout_of_space(base.observation_space)
        self.action = layout_of_space(base.action_space)
        self._shape = tuple(base.observation_space.shape)
        count = self.num_lanes
        self._columns = Columns(
            np.empty((len(self._form.order), count)),
            np.full(count, self._form.no_hidden),
            np.zeros(count, bool) if self._form.takes_single else None,
            np.zeros(count, np.int64),
        )
        self._order = np.array(self._form.order)
        self._saved = np.empty_like(self._columns.x)
        self._saved_hidden = np.empty_like(self._columns.hidden)
        self._rewards = np.empty(count)
        self._states = np.empty((count, len(self._form.order)))

    def start(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> Any:
        obs = np.empty((self.num_lanes, *self._shape), np.float32)
        for lane, env in enumerate(self.envs):
            seed = seeds[lane] if seeds else None
            try:
                obs[lane], _ = env.reset(seed=seed, options=options[lane] if options else None)
            except BaseException as error:
                error.add_note(f"raised while lane {lane} was reset")
                raise
            self._take_over(lane)
        return obs

    def reset(
        self,
        obs: Any,
        lanes: Sequence[int] | NDArray[np.intp] | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        for place, lane in enumerate(range(self.num_lanes) if lanes is None else lanes):
            obs[lane], _ = self._bases[lane].reset(
                seed=seeds[place] if seeds else None, options=options[place] if options else None
            )
            self._take_over(lane)

    def _take_over(self, lane: int) -> None:
        """Put the state that the environment of `lane` was just reset to into the columns."""
        columns, state = self._columns, self._bases[lane].state
        columns.x[:, lane] = state[self._order]
        columns.hidden[lane] = self._form.no_hidden
        if columns.single is not None:
            columns.single[lane] = state.dtype == np.float32
        assert columns.elapsed is not None
        columns.elapsed[lane] = 0

    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        lanes: Sequence[int] | NDArray[np.intp] | None = None,
    ) -> None:
        if lanes is None:
            self._step(self._columns, actions, obs, rewards, terminated, truncated)
            return
        rows = np.asarray(lanes, np.intp)
        part = self._columns.take(rows)
        results = obs[rows], rewards[rows], terminated[rows], truncated[rows]
        self._step(part, actions[rows], *results)
        obs[rows], rewards[rows], terminated[rows], truncated[rows] = results
        self._columns.put(rows, part)

    def _step(
        self,
        columns: Columns,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
    ) -> None:
        form, count = self._form, len(actions)
        if form.num_actions and np.count_nonzero(actions.view(np.uint64) >= form.num_actions):
            raise ActionError(
                f"actions {actions.tolist()} are not all in {self._bases[0].action_space}"
            )
        saved, hidden = self._saved[:, :count], self._saved_hidden[:count]
        saved[...], hidden[...] = columns.x, columns.hidden
        earned, states = self._rewards[:count], self._states[:count]
        try:
            form.advance(columns, actions, earned, terminated)
            form.store(columns.x, states)
            form.observe(columns.x, states, obs)
            if columns.single is not None:
                columns.single.fill(form.leaves_single)
        except NotVectorisableError:
            columns.x[...], columns.hidden[...] = saved, hidden
            self._step_singly(columns, actions, obs, earned, terminated)
        rewards[...] = earned
        assert columns.elapsed is not None
        columns.elapsed += 1
        if self._limit is None:
            truncated.fill(False)
        else:
            np.greater_equal(columns.elapsed, self._limit, out=truncated)

    def _step_singly(
        self,
        columns: Columns,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.float64],
        terminated: Flags,
    ) -> None:
        """Step lane by lane in one of the environments, as it would step alone."""
        base, form = self._bases[0], self._form
        kept = base.state
        for lane, action in enumerate(actions):
            state = np.empty(len(form.order))
            state[self._order] = columns.x[:, lane]
            single = columns.single is not None and columns.single[lane]
            base.state = state.astype(np.float32) if single else state
            if form.hidden:
                setattr(base, form.hidden, form.as_hidden(columns.hidden[lane]))
            obs[lane], rewards[lane], terminated[lane], _, _ = base.step(action)
            columns.x[:, lane] = base.state[self._order]
            if columns.single is not None:
                columns.single[lane] = base.state.dtype == np.float32
            if form.hidden:
                hidden = getattr(base, form.hidden)
                columns.hidden[lane] = form.no_hidden if hidden is None else hidden
        base.state = kept


def has_common_form(envs: Sequence[gymnasium.Env[Any, Any]]) -> bool:
    """Tell whether one vectorised form covers all of `envs` as they are configured now."""
    base: Any = envs[0].unwrapped
    form = FORMS.get(type(base))
    if form is None or not form.suits(base) or not all(map(_is_plain, envs)):
        return False
    signature, limit = form.signature(base), _time_limit(envs[0])
    alike = all(
        type(env.unwrapped) is type(base)
        and form.signature(env.unwrapped) == signature
        and _time_limit(env) == limit
        for env in envs
    )
    return alike and agrees(form(base), base)


def _is_plain(env: gymnasium.Env[Any, Any]) -> bool:
    """Tell whether nothing but a time limit comes between `env` and its dynamics."""
    link: Any = env
    num_limits = 0
    while isinstance(link, gymnasium.Wrapper):
        if type(link) not in _TRANSPARENT or not vars(link).keys().isdisjoint(("step", "reset")):
            return False
        num_limits += type(link) is TimeLimit
        link = link.env
    return num_limits <= 1 and link.render_mode is None and "reset" not in vars(link)


def _time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    link: Any = env
    while isinstance(link, gymnasium.Wrapper):
        if type(link) is TimeLimit:
            return link._max_episode_steps
        link = link.env
    return None

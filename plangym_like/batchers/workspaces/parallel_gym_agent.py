"""`ParallelGymAgent`: environments as an agent."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import Autoreset
from numpy.typing import NDArray
from torch import Tensor

from plangym_like.batchers.engine.fitting import as_actions
from plangym_like.batchers.engine.make_lanes import make_envs, make_lanes
from plangym_like.batchers.engine.nests import Leaf, is_leaf, rebuild
from plangym_like.batchers.engine.seeding import seed_groups
from plangym_like.batchers.workspaces.agent import Agent
from plangym_like.batchers.workspaces.episode_rows import MEASURES, EpisodeRows, Row
from plangym_like.batchers.workspaces.strip import Strip
from plangym_like.batchers.workspaces.workspace import Workspace
from plangym_like.errors import InputError

_FEWEST_ROWS = 32
# Each row that any agent writes gets another number, which identifies it.
_numbers = itertools.count(1)


class ParallelGymAgent(Agent):
    """Steps `num_envs` environments together: at time t by the actions of t - 1, at 0 with a reset.

    It writes, with the prefix `output_string`, a row ``[num_envs, ...]`` of

    - ``env_obs``, in the environment's dtype (of a nest: ``env_obs/key`` for every part);
    - ``terminated``, ``truncated`` and ``done`` (either), bool;
    - ``reward``, float32: of the step that led here, 0 at the start of an episode;
    - ``cumulated_reward``, float32, and ``timestep``, int64: of the episode so far.

    When an episode has ended, its last observation is written like any other. What follows depends
    on the factory. If it makes environments inside Gymnasium's ``Autoreset`` (`make_env` does, if
    told to), the next row is the start of another episode. If not, the environment waits, its row
    repeated with a reward of 0, until all begin anew at time 0.

    Parameters
    ----------
    make_env_fn : callable
        ``make_env_fn(**make_env_args)`` returns a new environment. Where the environments have a
        vectorised form (classic control), they are stepped in it.
    num_envs : int
    make_env_args : dict, optional
    input_string : str
        The variable that holds actions ``[num_envs, ...]``; parts of nested ones are
        ``action/key``.
    output_string : str
    reward_at_t : bool
        Write the reward of the step from t to t + 1 at t, rather than at t + 1.
    include_last_state : bool
        ``False``, with autoreset: the row that ends an episode holds the first observation of the
        next, and the row after it is that episode's first step.
    seed : int, optional
        See `seed`.

    Raises
    ------
    InputError
        `num_envs` is less than 1, or the factory does not make environments.

    >>> from functools import partial
    >>> from plangym_like.batchers.workspaces import Workspace, make_env
    >>> env = ParallelGymAgent(partial(make_env, "CartPole-v1"), num_envs=3).seed(2139)
    >>> env.get_obs_and_actions_sizes()
    (4, 2)
    >>> workspace = Workspace()
    >>> env(workspace, t=0)
    >>> workspace.set("action", 0, torch.tensor([0, 1, 1]))
    >>> env(workspace, t=1)
    >>> workspace["env/reward"]
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """

    _place: Tensor

    def __init__(
        self,
        make_env_fn: Callable[..., gymnasium.Env[Any, Any]],
        num_envs: int,
        make_env_args: Mapping[str, Any] | None = None,
        *,
        input_string: str = "action",
        output_string: str = "env/",
        reward_at_t: bool = False,
        include_last_state: bool = True,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if num_envs < 1:
            raise InputError(f"num_envs is at least 1, got {num_envs}")
        arguments = dict(make_env_args or {})
        self._another = partial(
            type(self),
            make_env_fn,
            num_envs,
            arguments,
            input_string=input_string,
            output_string=output_string,
            reward_at_t=reward_at_t,
            include_last_state=include_last_state,
            name=name,
        )
        envs = make_envs(lambda: make_env_fn(**arguments), num_envs)
        self.num_envs = num_envs
        self.observation_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self.input = input_string
        self.output = output_string
        self.reward_at_t = reward_at_t
        self.autoreset = any(_has_autoreset(env) for env in envs)
        # When to reset is said here, so lanes are the environments inside.
        lanes = make_lanes([env.env if isinstance(env, Autoreset) else env for env in envs])
        self._rows = EpisodeRows(
            lanes, autoreset=self.autoreset, include_last_state=include_last_state
        )
        self._actions = list(_named(input_string, lanes.action))
        self._layout: dict[str, Leaf] = {}
        self._strip: Strip | None = None
        self._whose: Callable[[], Workspace | None] = lambda: None
        self._seeds: tuple[int, ...] | None = None
        # Its device is where this agent was moved to.
        self.register_buffer("_place", torch.empty(0), persistent=False)
        self.seed(seed)

    def seed(self, seed: int | None) -> Self:
        """Begin anew from `seed` at the next time 0; ``None`` means fresh entropy.

        Every environment gets a seed of its own, no two of them equal. Later resets draw from the
        environments' own generators, so that a run is a function of its seed alone, and no episode
        is played again.
        """
        (group,) = seed_groups(seed, [self.num_envs])
        self._seeds = group.lanes
        self._rows.standing = 0
        return self

    def forward(self, t: int, **kwargs: Any) -> None:
        """Write the row of time `t`.

        Raises
        ------
        InputError
            The environments do not stand where the workspace is at t - 1.
        ActionError
            The actions at t - 1 have another shape or dtype than those of the environments.
        """
        workspace, rows = self._board(), self._rows
        if t == 0:
            self._rewind(workspace, t)
            if not rows.standing:
                # A row that was left halfway may be in it.
                self._strip = None
            rows.standing = 0
            rows.begin(self._seeds, lambda: self._blank(workspace, t))
            ended = rows.done
        else:
            self._check_standing(workspace, t - 1)
            values = (self._action(t - 1, *expected) for expected in self._actions)
            actions = rebuild(rows.lanes.action, values)
            rows.standing = 0
            self._rewind(workspace, t)
            ended = rows.done.copy()
            rows.step(actions, self._blank(workspace, t))
        assert self._strip is not None
        self._strip.count += 1
        workspace.extend(self._strip, self._layout, self._place.device)
        if self.reward_at_t:
            self._move_reward(workspace, t, ended)
        number = next(_numbers)
        workspace.sign(self.output + "timestep", t, number)
        if t == 0:
            self._seeds = None
        rows.standing = number

    def _rewind(self, workspace: Workspace, t: int) -> None:
        if workspace.has(self.output + "timestep", t):
            workspace.rewind(t)

    def _check_standing(self, workspace: Workspace, t: int) -> None:
        """Refuse to go on at `t` from anything but what the environments wrote last."""
        standing = self._rows.standing
        if not standing:
            raise InputError(
                f"environments begin at time 0; this call is for time {t + 1}. They have not begun "
                "yet, or their last step was stopped halfway"
            )
        name = self.output + "timestep"
        origin = workspace.origin(name, t)
        if origin == standing or not workspace.has(name, t):
            return
        if origin is None and self._is_last_row(workspace, t):
            return
        told, stand = workspace.get(name, t).tolist(), self._rows.timestep.tolist()
        raise InputError(
            f"at time {t} of this workspace the environments were {told} steps into their "
            f"episodes, now they are {stand}: they have been run elsewhere since. "
            "Continue where they stand, or begin at time 0"
        )

    def _is_last_row(self, workspace: Workspace, t: int) -> bool:
        """Tell whether a row without a number, such as a copy, equals what was written last."""
        last = self._rows.last
        assert last is not None
        observation = {"env_obs": last.obs, "timestep": self._rows.timestep}
        for path, array in _named("", observation):
            name = self.output + path
            if not workspace.has(name, t):
                continue
            row = torch.as_tensor(array)
            if not _same_bits(workspace.get(name, t).detach().cpu(), row):
                return False
        return True

    def _blank(self, workspace: Workspace, t: int) -> Row:
        """Return the row of time `t` to be written."""
        strip = self._strip
        if strip is None or strip.stop != t or self._whose() is not workspace:
            strip = self._strip = self._begin_strip(workspace, t)
            self._whose = weakref.ref(workspace)
        arrays = strip.blank()
        observation = self._rows.lanes.observation
        if is_leaf(observation):
            return Row(*arrays)
        parts = iter(arrays)
        return Row(rebuild(observation, parts), *parts)

    def _begin_strip(self, workspace: Workspace, t: int) -> Strip:
        """Return a strip for the rows from `t` on, and those before it if they lie here alike."""
        if not self._layout:
            layout = {"env_obs": self._rows.lanes.observation, **MEASURES}
            self._layout = {self.output + name: leaf for name, leaf in _named("", layout)}
        capacity = max(_FEWEST_ROWS, 0 if self._strip is None else self._strip.count)
        strip = Strip(list(self._layout.values()), self.num_envs, capacity, start=t)
        if self._place.device.type != "cpu":
            return strip
        if t > 0:
            before = self._columns(workspace, t)
            if before is None:
                return strip
            strip.fill(before)
        workspace.follow(strip, list(self._layout))
        return strip

    def _columns(self, workspace: Workspace, t: int) -> list[Tensor] | None:
        """Return the rows before `t` of all that is written here, if they are as written here."""
        columns = []
        for name, leaf in self._layout.items():
            if not workspace.has(name, t - 1):
                return None
            column = workspace.get_time_truncated(name, 0, t)
            shape = (t, self.num_envs, *leaf.shape)
            if column.shape != shape or column.dtype != leaf.dtype or column.requires_grad:
                return None
            columns.append(column)
        return columns

    def _move_reward(self, workspace: Workspace, t: int, ended: NDArray[np.bool_]) -> None:
        """Write at t - 1 what the step from there to `t` earned."""
        reward, returns = self.output + "reward", self.output + "cumulated_reward"
        earned, total = workspace.get(reward, t), workspace.get(returns, t)
        workspace.set(reward, t, torch.zeros_like(earned))
        if t == 0:
            return
        if self._rows.keeps_last:
            over = torch.tensor(ended, device=total.device)
            total = torch.where(over, workspace.get(returns, t - 1), total)
        workspace.set(reward, t - 1, earned)
        workspace.set(returns, t - 1, total)

    def _action(self, t: int, name: str, leaf: Leaf) -> NDArray[Any]:
        wanted = (self.num_envs, *leaf.shape)
        actions = as_actions(self.get((name, t)), wanted, leaf.dtype, f"{name!r} at time {t}")
        array: NDArray[Any] = actions.numpy()
        return array

    # What the environments are

    def get_observation_space(self) -> gymnasium.Space[Any]:
        """Return the space of one observation."""
        return self.observation_space

    def get_action_space(self) -> gymnasium.Space[Any]:
        """Return the space of one action."""
        return self.action_space

    def get_obs_and_actions_sizes(self) -> tuple[Any, Any]:
        """Return the sizes of an observation and of an action.

        The length of a vector, the number of discrete choices, the shape of anything of more axes,
        and of a nest the nest of these.
        """
        return _size(self.observation_space), _size(self.action_space)

    def is_continuous_action(self) -> bool:
        """Tell whether actions are vectors of real numbers."""
        return isinstance(self.action_space, spaces.Box)

    def is_discrete_action(self) -> bool:
        """Tell whether an action is one of some choices."""
        return isinstance(self.action_space, spaces.Discrete)

    def is_continuous_state(self) -> bool:
        """Tell whether observations are vectors of real numbers."""
        return isinstance(self.observation_space, spaces.Box)

    def is_discrete_state(self) -> bool:
        """Tell whether an observation is one of some choices."""
        return isinstance(self.observation_space, spaces.Discrete)

    def close(self) -> None:
        """Close the environments."""
        self._rows.lanes.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelGymAgent:
        # Copied environments would share windows and sockets with these, or start elsewhere.
        return self._another()


def _has_autoreset(env: Any) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, Autoreset):
            return True
        env = env.env
    return False


def _named(name: str, layout: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nest in order, each with its path below `name`."""
    if is_leaf(layout):
        yield name, layout
        return
    if isinstance(layout, Mapping):
        parts = [(str(key), part) for key, part in layout.items()]
    else:
        keys = getattr(layout, "_fields", range(len(layout)))
        parts = [(str(key), part) for key, part in zip(keys, layout, strict=True)]
    for key, part in parts:
        yield from _named(f"{name}/{key}" if name else key, part)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    first, second = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(first, second)


def _size(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _size(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_size(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return space.shape[0] if len(space.shape) == 1 else space.shape

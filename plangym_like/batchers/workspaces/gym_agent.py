"""`ParallelGymAgent`: an agent that steps environments; `make_env` makes one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import Autoreset
from numpy.typing import NDArray
from torch import Tensor

from plangym_like.batchers.randomness import seed_groups
from plangym_like.batchers.stepping import EpisodeLanes, Outcome
from plangym_like.batchers.trees import empty, fitting, named_leaves, tensor_layout
from plangym_like.batchers.workspaces.agents import Agent
from plangym_like.batchers.workspaces.workspace import Workspace
from plangym_like.errors import InputError
from plangym_like.support.arguments import as_count
from plangym_like.vector.lanes import Lanes
from plangym_like.vector.make_lanes import env_factory, make_envs, make_lanes
from plangym_like.vector.start_states import StartStates
from plangym_like.vector.tree import (
    Leaf,
    is_leaf,
    nbytes_of,
    tree_leaves,
    tree_map,
    tree_unflatten,
)


def make_env(
    env_name: str,
    autoreset: bool = False,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Return ``gymnasium.make(env_name, **kwargs)``, wrapped in each of `wrappers` in turn.

    Parameters
    ----------
    autoreset : bool
        Whether the environment is reset when its episode ends. If not, a `ParallelGymAgent` leaves
        it in its final state until time 0 is run again.

    Examples
    --------
    >>> from gymnasium.wrappers import NormalizeReward
    >>> make_env("CartPole-v1", autoreset=True, wrappers=[NormalizeReward])
    <Autoreset<NormalizeReward<TimeLimit<...CartPoleEnv<CartPole-v1>...>>>
    """
    env = gymnasium.make(env_name, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return Autoreset(env) if autoreset else env


class EpisodeRow(NamedTuple):
    """One row for all lanes: `obs` is a tree of arrays ``(B, ...)``, the others are ``(B,)``."""

    obs: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    done: NDArray[np.bool_]
    reward: NDArray[np.float32]
    cumulated_reward: NDArray[np.float32]
    timestep: NDArray[np.int64]


_FLAG, _NUMBER = Leaf((), torch.bool), Leaf((), torch.float32)
_MEASURES = (_FLAG, _FLAG, _FLAG, _NUMBER, _NUMBER, Leaf((), torch.int64))
# Memory is allocated for several rows at once: for 32, or for fewer if they take more than 1 MiB.
_BLOCK_ROWS, _BLOCK_NBYTES = 32, 2**20


class EpisodeRows:
    """Steps lanes, and returns the tensors of each step's `EpisodeRow`.

    If `autoreset` is false, a lane whose episode has ended waits; see also `ParallelGymAgent`.

    Attributes
    ----------
    last : EpisodeRow or None
        The last row that was written; ``None`` if a step or reset was not finished.
    keeps_last : bool
        Whether rows hold the last observations of episodes.
    done : array bool ``(B,)``
        Which lanes' episodes had ended in the last row.
    """

    def __init__(self, lanes: Lanes, *, autoreset: bool, include_last_state: bool) -> None:
        self.lanes = lanes
        self.keeps_last = include_last_state or not autoreset
        self.last: EpisodeRow | None = None
        self._autoreset = autoreset
        self._episodes = EpisodeLanes(lanes)
        self.done = np.zeros(lanes.num_lanes, bool)
        self._rewards = np.zeros(lanes.num_lanes)
        self._returns = np.zeros(lanes.num_lanes)
        self._blank: list[tuple[Sequence[Tensor], EpisodeRow]] = []

    def seed(self, seed: Sequence[int]) -> None:
        """Set the seed of the random generators of given states; see `EpisodeLanes`."""
        self._episodes = EpisodeLanes(self.lanes, seed)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the tensors of a row; known once the first episodes have begun."""
        layout = {"env_obs": self.lanes.observation_layout}
        observed = [prefix + "/".join(path) for path, _ in named_leaves(layout)]
        return observed + [prefix + name for name in EpisodeRow._fields[1:]]

    def _new_row(self) -> tuple[Sequence[Tensor], EpisodeRow]:
        """Return the tensors of a row of zeros, and the row itself, which shares their memory."""
        if not self._blank:
            count, observed = self.lanes.num_lanes, tensor_layout(self.lanes.observation_layout)
            layout = EpisodeRow(observed, *_MEASURES)  # type: ignore[arg-type]
            nbytes = count * sum(map(nbytes_of, tree_leaves(layout)))
            num_rows = min(_BLOCK_ROWS, max(1, _BLOCK_NBYTES // nbytes))
            leaves = tree_leaves(empty(layout, (num_rows, count)))
            tensors = zip(*leaves, strict=True)
            arrays = zip(*(leaf.numpy() for leaf in leaves), strict=True)
            if is_leaf(observed):  # the usual case, in less time than the general one
                rows = list(map(EpisodeRow._make, arrays))
            else:
                rows = [tree_unflatten(layout, iter(own)) for own in arrays]
            self._blank = list(zip(tensors, rows, strict=True))
        return self._blank.pop()

    def begin(self, seeds: Sequence[int] | None, states: StartStates | None) -> Sequence[Tensor]:
        """Begin an episode in every lane; see `EpisodeLanes.begin`."""
        self.last = None
        first = self._episodes.begin(seeds, states=states)
        tensors, row = self._new_row()
        tree_map(np.copyto, row.obs, first)
        self.done.fill(False)
        self._returns.fill(0.0)
        self.last = row
        return tensors

    def step(self, actions: Any) -> Sequence[Tensor]:
        """Step the lanes whose episodes have not ended; the others begin an episode or wait."""
        # `last` stays None if a lane raises, since some of the others have been stepped already.
        last, self.last = self.last, None
        assert last is not None
        tensors, row = self._new_row()
        episodes, done = self._episodes, self.done
        outcome = Outcome(row.obs, self._rewards, row.terminated, row.truncated, done)
        if not self.keeps_last or not np.count_nonzero(done):
            ended = episodes.step(actions, outcome)
            self._returns += self._rewards
        elif self._autoreset:
            (ended,) = done.nonzero()
            episodes.step_or_restart(actions, outcome, ended)
            self._returns += self._rewards
            self._returns[ended] = 0.0
        else:
            (episodes.running,) = np.logical_not(done).nonzero()
            before = Outcome(last.obs, last.reward, last.terminated, last.truncated, last.done)
            ended = episodes.step(actions, outcome, before)
            self._returns += self._rewards
        row.done[...] = done
        row.reward[...] = self._rewards
        row.cumulated_reward[...] = self._returns
        row.timestep[...] = episodes.timestep
        if not self.keeps_last and len(ended):
            episodes.restart(row.obs, ended)
            self._returns[ended] = 0.0
        self.last = row
        return tensors


class ParallelGymAgent(Agent):
    """Resets `num_envs` environments at time 0, and steps them at time t with the actions of t - 1.

    It writes a row ``[num_envs, ...]`` of these variables, with the prefix `output_string`:

    - ``env_obs``, in the environment's dtype (``env_obs/key`` for every part of a tree);
    - ``terminated``, ``truncated`` and ``done`` (either of them), bool;
    - ``reward``, float32: the reward of the step that led to this row, or 0 if no step did;
    - ``cumulated_reward``, float32, and ``timestep``, int64: totals for the episode so far.

    When an episode has ended, its last observation is written like any other. If environments are
    wrapped in Gymnasium's ``Autoreset`` (as by ``make_env(..., autoreset=True)``), the next row is
    the start of another episode. Otherwise, the environment waits until time 0 is run again: its
    row is repeated with a reward of 0.

    Parameters
    ----------
    make_env_fn : callable or str
        ``make_env_fn(**make_env_args)`` returns a new Gymnasium environment or `PlanEnv`. An id
        means ``plangym_like.make(id, remove_time_limit=False, **make_env_args)``. Environments with
        a vectorised form, such as those of classic control, are stepped together.
    num_envs : int
    make_env_args : dict, optional
    input_string : str
        The variable that holds actions ``[num_envs, ...]``; parts of nested actions are called
        ``action/key``.
    output_string : str
        The prefix of the variables that this agent writes.
    reward_at_t : bool
        Write the reward of the step from t to t + 1 at t, rather than at t + 1.
    include_last_state : bool
        If ``False``, and if environments are reset automatically, the last observation of an
        episode is left out: the row in which the episode ends holds the first observation of the
        next episode, and the following row holds the results of the new episode's first step.
    seed : int, optional
        See `seed`.

    Raises
    ------
    InputError
        `num_envs` is less than 1, or the factory does not return an environment.

    Examples
    --------
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
        make_env_fn: Callable[..., Any] | str,
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
        num_envs = as_count("num_envs", num_envs)
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
        envs = make_envs(env_factory(make_env_fn, **arguments), num_envs)
        self.num_envs = num_envs
        self.observation_space: gymnasium.Space[Any] = envs[0].observation_space
        self.action_space: gymnasium.Space[Any] = envs[0].action_space
        self.input = input_string
        self.output = output_string
        self.reward_at_t = reward_at_t
        self.autoreset = any(_has_autoreset(env) for env in envs)
        # This class decides about resets, so lanes are the environments inside `Autoreset`.
        lanes = make_lanes([env.env if isinstance(env, Autoreset) else env for env in envs])
        self._rows = EpisodeRows(
            lanes, autoreset=self.autoreset, include_last_state=include_last_state
        )
        self._action_layout = tensor_layout(lanes.action_layout)
        self._actions = [
            ("/".join(path), leaf)
            for path, leaf in named_leaves(self._action_layout, (input_string,))
        ]
        self._names: list[str] = []
        self._seeds: tuple[int, ...] | None = None
        # The device of this buffer is the device of the agent.
        self.register_buffer("_place", torch.empty(0), persistent=False)
        self.seed(seed)

    def seed(self, seed: int | None) -> Self:
        """Set the seed for the next call with ``t=0``; ``None`` means fresh entropy.

        Every environment gets a different seed. Later resets draw from the environments' own random
        generators, so a run depends on its seed alone, and no episode is repeated.
        """
        (group,) = seed_groups(seed, [self.num_envs])
        self._seeds = group.lanes
        self._rows.seed(group.words)
        self._rows.last = None
        return self

    def forward(self, t: int, states: Any = None, **kwargs: Any) -> None:
        """Reset the environments (at time 0) or step them, and write the row of time `t`.

        Parameters
        ----------
        states : tuple, optional
            The states that the episodes begin in at time 0, as a tuple ``(rows, obs)`` of state
            rows, uint8 ``(num_envs, state_nbytes)``, and their observations ``(num_envs, ...)``.
            Ignored at later times.

        Raises
        ------
        InputError
            The environments are not as many steps into their episodes as the workspace says for
            t - 1: they have been stepped in another workspace, or not at all.
        ActionError
            The actions at t - 1 do not have the shape or dtype that the environments take.
        """
        workspace, rows = self._current_workspace(), self._rows
        ended = rows.done.copy()
        if t == 0:
            self._rewind(workspace, t)
            row = rows.begin(self._seeds, StartStates.of(states))
            self._seeds, self._names = None, rows.names(self.output)
        else:
            self._check_last_row(workspace, t - 1)
            values = (self._action(t - 1, *expected) for expected in self._actions)
            actions = tree_unflatten(self._action_layout, values)
            self._rewind(workspace, t)
            row = rows.step(actions)
        if self._place.device.type != "cpu":
            row = [tensor.to(self._place.device) for tensor in row]
        for name, tensor in zip(self._names, row, strict=True):
            workspace.set(name, t, tensor)
        if self.reward_at_t:
            self._move_reward(workspace, t, ended)

    def _rewind(self, workspace: Workspace, t: int) -> None:
        if workspace.has(self.output + "timestep", t):
            workspace.rewind(t)

    def _check_last_row(self, workspace: Workspace, t: int) -> None:
        """Raise an error unless environments are as many steps in as the row of time `t` says."""
        last = self._rows.last
        if last is None:
            raise InputError(
                f"environments begin at time 0, and cannot step to time {t + 1} now: they have not "
                "begun, or their last step was stopped halfway. Call this agent with t=0 first"
            )
        name = self.output + "timestep"
        if not workspace.has(name, t):
            return
        told, now = workspace.get(name, t).tolist(), last.timestep.tolist()
        if told != now:
            raise InputError(
                f"at time {t} of this workspace the environments were {told} steps into their "
                f"episodes, but now they are {now} steps in: they have been stepped elsewhere "
                "since. Continue where they are, or begin at time 0"
            )

    def _move_reward(self, workspace: Workspace, t: int, ended: NDArray[np.bool_]) -> None:
        """Move the reward of the step that led to `t` to the row of time ``t - 1``."""
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
        actions = fitting(self.get((name, t)), wanted, leaf.dtype, f"{name!r} at time {t}")
        array: NDArray[Any] = actions.numpy()
        return array

    # Spaces

    def get_observation_space(self) -> gymnasium.Space[Any]:
        """Return the space of one observation."""
        return self.observation_space

    def get_action_space(self) -> gymnasium.Space[Any]:
        """Return the space of one action."""
        return self.action_space

    def get_obs_and_actions_sizes(self) -> tuple[Any, Any]:
        """Return the sizes of an observation and of an action.

        The size is the length of a vector, the number of discrete choices, or the shape of a space
        with more axes; for a tree it is a tree of sizes.
        """
        return _size(self.observation_space), _size(self.action_space)

    def is_continuous_action(self) -> bool:
        """Return whether the action space is continuous (a ``Box``)."""
        return isinstance(self.action_space, spaces.Box)

    def is_discrete_action(self) -> bool:
        """Return whether the action space is discrete."""
        return isinstance(self.action_space, spaces.Discrete)

    def is_continuous_state(self) -> bool:
        """Return whether the observation space is continuous (a ``Box``)."""
        return isinstance(self.observation_space, spaces.Box)

    def is_discrete_state(self) -> bool:
        """Return whether the observation space is discrete."""
        return isinstance(self.observation_space, spaces.Discrete)

    def close(self) -> None:
        """Close the environments."""
        self._rows.lanes.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelGymAgent:
        # Environments cannot be copied: copies might share windows and sockets.
        return self._another()


def _has_autoreset(env: Any) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, Autoreset):
            return True
        env = env.env
    return False


def _size(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _size(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_size(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return space.shape[0] if len(space.shape) == 1 else space.shape

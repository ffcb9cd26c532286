"""`VecEnv`: environments whose episodes end at different times; `GymEnv` for those of Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from plangym_like.batchers.episodes.trajectories import DictTensor, has_tensors
from plangym_like.batchers.randomness import seed_groups
from plangym_like.batchers.stepping import EpisodeLanes, Outcome
from plangym_like.batchers.trees import as_named, fitting, named_leaves, tensor_layout
from plangym_like.errors import ActionError, InputError
from plangym_like.support.arguments import as_count
from plangym_like.vector.lanes import Lanes
from plangym_like.vector.make_lanes import EnvSource, lanes_from, make_lanes
from plangym_like.vector.start_states import StartStates
from plangym_like.vector.tree import tree_map, tree_unflatten, write_rows, zeros

# An observation and the environments that its rows belong to, in ascending order.
Observed = tuple[DictTensor, torch.Tensor]


class VecEnv:
    """The interface between a batcher and its environments.

    An environment runs until its episode ends. Observations and actions have one row for each
    running environment. An int64 vector says which environment each row belongs to.

    Attributes
    ----------
    endless : bool
        Whether environments are reset when their episodes end, so that all keep running.
    """

    endless = False

    def n_envs(self) -> int:
        """Return the number of environments, ``N``."""
        raise NotImplementedError

    def reset(self, env_info: DictTensor | None = None) -> Observed:
        """Start an episode in each of the environments.

        Parameters
        ----------
        env_info : DictTensor, optional
            Row i is for environment i.

        Returns
        -------
        observation : DictTensor
            ``[N, ...]``.
        running : tensor
            ``[N]`` int64, the indices of the environments.
        """
        raise NotImplementedError

    def step(self, action: DictTensor) -> tuple[Observed, Observed]:
        """Step the ``B`` environments that are running.

        Parameters
        ----------
        action : DictTensor
            ``[B, ...]``; its field ``"action"`` holds the actions.

        Returns
        -------
        (observation, was_running)
            The results of the actions, ``[B, ...]``, and the environments that were running,
            ``[B]``.
        (observation, still_running)
            The observations for the next actions, ``[B', ...]``, and the environments that are
            still running, ``[B']``. An environment's row is the same as in the results or, if it
            was reset, the first observation of its new episode.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the environments."""


_FLAGS = ("done", "terminated", "truncated", "initial_state")
_OWN_FIELDS = {*_FLAGS, "reward", "last_action"}


class GymEnv(VecEnv):
    """Gymnasium environments, each of which runs until its episode ends.

    An observation has these fields, ``[B, ...]``. If no dtype is given here, it is that of the
    environment.

    ==================  ===========================================================================
    ``frame``           the environment's observation; if it is a tuple, its parts are named
                        ``"0"``, ``"1"``, ... A ``Dict`` space has one field for each key instead
    ``reward``          float32, the reward of the last action
    ``done``            bool, ``terminated`` or ``truncated``
    ``terminated``      bool, the episode has reached its end
    ``truncated``       bool, the episode was cut off
    ``initial_state``   bool, this is the first observation of an episode
    ``last_action``     the action that led to this observation, 0 for the first
    ==================  ===========================================================================

    Environments with a vectorised form are stepped together.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv, or callable, or str
        Environments with equal spaces. If `num_envs` is given: a callable that returns a new
        environment, or an id for ``plangym_like.make(id, remove_time_limit=False)``.
    num_envs : int, optional
        How many environments to make from a callable or an id.
    seed : int
        Environments are seeded when they are first reset, each with a seed of its own that is drawn
        from `seed`. They are seeded again only by episodes that begin in given states.

    Raises
    ------
    InputError
        No environments are given, `seed` is invalid, or no tensor can hold a space's values.

    Examples
    --------
    >>> import gymnasium
    >>> env = GymEnv([gymnasium.make("CartPole-v1") for _ in range(3)], seed=7)
    >>> observation, running = env.reset()
    >>> running.tolist(), observation["frame"].shape
    ([0, 1, 2], torch.Size([3, 4]))
    >>> action = DictTensor({"action": torch.tensor([0, 1, 1])})
    >>> (observation, was_running), (observation, still_running) = env.step(action)
    >>> observation["reward"].tolist(), still_running.tolist()
    ([1.0, 1.0, 1.0], [0, 1, 2])
    """

    def __init__(
        self, envs: Sequence[Any] | EnvSource, seed: int, *, num_envs: int | None = None
    ) -> None:
        seed = as_count("seed", seed, 0)
        self._lanes = _lanes_of(envs, num_envs)
        layout = tensor_layout(self._lanes.action_layout)
        self._action_leaves = dict(named_leaves(layout, ("action",)))
        self._episodes = EpisodeLanes(self._lanes, [seed])
        self._n_envs = self._lanes.num_lanes
        (group,) = seed_groups(seed, [self._n_envs])
        self._seeds: tuple[int, ...] | None = group.lanes
        self._options: list[dict[str, Any]] | None = None
        self._running = np.empty(0, np.int64)
        self.observation_space = self._lanes.observation_space
        self.action_space = self._lanes.action_space

    def n_envs(self) -> int:
        return self._n_envs

    def reset(
        self, env_info: DictTensor | None = None, states: StartStates | None = None
    ) -> Observed:
        """Start an episode in each of the environments.

        Parameters
        ----------
        env_info : DictTensor, optional
            Row i is passed to environment i as the ``options`` of its ``reset``, converted to
            Python numbers and NumPy arrays.
        states : StartStates, optional
            The states that the episodes begin in.
        """
        self._options = _as_options(env_info, self._n_envs)
        obs = self._episodes.begin(self._seeds, options=self._options, states=states)
        self._seeds = None
        self._running = np.arange(self._n_envs)
        first = self._first(obs)
        return first, torch.arange(self._n_envs)

    def _first(self, obs: Any) -> DictTensor:
        n = self._n_envs
        flags = {name: np.full(n, name == "initial_state") for name in _FLAGS}
        actions = zeros(self._lanes.action_layout, (n,))
        return _observation(obs, np.zeros(n, np.float32), flags, actions)

    def step(self, action: DictTensor) -> tuple[Observed, Observed]:
        outcome = self._step(action)
        was_running = torch.from_numpy(self._running)
        going = ~outcome["done"]
        if bool(going.all()):
            return (outcome, was_running), (outcome, was_running)
        self._running = self._running[going.numpy()]
        return (outcome, was_running), (outcome[going], torch.from_numpy(self._running))

    def _step(self, action: DictTensor) -> DictTensor:
        """Step the running environments, and return one row of results for each of them."""
        n, running = self._n_envs, self._running
        if not len(running):
            raise InputError("no environment is running: call reset first")
        names = list(action.keys())
        if "action" not in names:
            raise InputError(f"the agent's output has no field 'action', only {names}")
        everyone = len(running) == n
        actions = self._as_actions(action["action"], len(running))
        if not everyone:
            given, actions = actions, zeros(self._lanes.action_layout, (n,))
            write_rows(actions, running, given)
        flags = {name: np.zeros(n, bool) for name in _FLAGS}
        outcome = Outcome(
            zeros(self._lanes.observation_layout, (n,)),
            np.zeros(n, np.float32),
            flags["terminated"],
            flags["truncated"],
            flags["done"],
        )
        self._episodes.running = None if everyone else running
        self._episodes.step(actions, outcome)
        fields = _observation(outcome.obs, outcome.reward, flags, actions)
        return fields if everyone else fields[torch.from_numpy(running)]

    def _as_actions(self, value: Any, n_rows: int) -> Any:
        """Return the agent's actions as the tree of arrays that the environments take."""
        expected, given = self._action_leaves, dict(named_leaves(value, ("action",)))
        if given.keys() != expected.keys():
            wanted, found = (sorted(map("/".join, each)) for each in (expected, given))
            raise ActionError(f"the agent's actions must have the parts {wanted}, got {found}")
        arrays = []
        for path, leaf in expected.items():
            shape = n_rows, *leaf.shape
            fits = fitting(given[path], shape, leaf.dtype, repr("/".join(path)))
            # A copy, since environments may change actions, but recorded ones must not change.
            arrays.append(fits.numpy().copy())
        return tree_unflatten(self._lanes.action_layout, iter(arrays))

    def close(self) -> None:
        self._lanes.close()


class GymInfEnv(GymEnv):
    """Gymnasium environments that are reset when their episodes end, so that all keep running.

    `step` returns the results of the actions, and the observations for the next actions. If an
    environment's episode has ended, the two differ: the result is the last observation of that
    episode, and the observation for the next action is the first of the next episode, with a true
    ``initial_state``. Resets at the end of an episode get the `env_info` that was last passed to
    `reset`.

    Parameters
    ----------
    envs, seed
        See `GymEnv`.

    Examples
    --------
    >>> env = GymInfEnv("CartPole-v1", num_envs=2, seed=0)
    >>> observation, running = env.reset()
    >>> right = DictTensor({"action": torch.ones(2, dtype=torch.int64)})
    >>> for _ in range(20):  # an episode has ended by then
    ...     (result, _), (observation, running) = env.step(right)
    >>> running
    tensor([0, 1])
    >>> env.close()
    """

    endless = True

    def step(self, action: DictTensor) -> tuple[Observed, Observed]:
        outcome = self._step(action)
        everyone = torch.from_numpy(self._running)
        done = outcome["done"]
        if not bool(done.any()):
            return (outcome, everyone), (outcome, everyone)
        ended = np.flatnonzero(done.numpy())
        options = self._options and [self._options[i] for i in ended]
        obs = zeros(self._lanes.observation_layout, (self._n_envs,))
        self._episodes.restart(obs, ended, options or None)
        rows = torch.from_numpy(ended)
        following = outcome.clone()
        following[rows] = self._first(obs)[rows]
        return (outcome, everyone), (following, everyone)


def _lanes_of(envs: Sequence[Any] | EnvSource, num_envs: int | None) -> Lanes:
    if num_envs is not None:
        return lanes_from(envs, num_envs)
    if isinstance(envs, str) or callable(envs):
        raise InputError(f"num_envs is missing: how many environments of {envs!r} to make")
    return make_lanes(list(envs))


def _observation(
    obs: Any, rewards: np.ndarray[Any, Any], flags: dict[str, Any], actions: Any
) -> DictTensor:
    shown = {"frame": obs} if not isinstance(obs, Mapping) else obs
    if taken := _OWN_FIELDS & shown.keys():
        raise InputError(
            f"parts of the observation use the reserved names {sorted(taken)}: rename them in a "
            "wrapper"
        )
    parts = {**shown, "reward": rewards, **flags, "last_action": actions}
    return DictTensor({name: as_named(part) for name, part in parts.items()}, rewards.shape)


def _as_options(env_info: DictTensor | None, n_envs: int) -> list[dict[str, Any]] | None:
    if env_info is None or not has_tensors(env_info):
        return None
    if env_info.n_elems() != n_envs:
        raise InputError(
            f"env_info has {env_info.n_elems()} rows for {n_envs} environments; it needs one each"
        )
    return [tree_map(_plain, env_info[i].to_dict()) for i in range(n_envs)]


def _plain(value: torch.Tensor) -> Any:
    return value.item() if value.ndim == 0 else value.cpu().numpy()

"""Gymnasium environments as one `VecEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict

from plangym_like.batchers.engine.fitting import as_actions
from plangym_like.batchers.engine.make_lanes import make_lanes
from plangym_like.batchers.engine.nests import Leaf, as_arrays, empty, map_nest
from plangym_like.batchers.episodes.dict_tensor import DictTensor, has_tensors
from plangym_like.batchers.episodes.vec_env import Observed, VecEnv
from plangym_like.errors import ActionError, InputError

_FLAGS = ("done", "terminated", "truncated", "initial_state")
_OWN_FIELDS = {*_FLAGS, "reward", "last_action"}


class GymEnv(VecEnv):
    """Gymnasium environments, each of which runs until its episode ends.

    An observation has these fields, ``[B, ...]`` each, in the environment's own dtypes:

    ==================  ===========================================================================
    ``frame``           what the environment shows; a ``Dict`` space's parts stand here under their
                        own names instead, and parts of a ``Tuple`` are called ``"0"``, ``"1"``, ...
    ``reward``          float32, what the last action earned
    ``done``            bool, ``terminated`` or ``truncated``
    ``terminated``      bool, the episode has come to its end
    ``truncated``       bool, it was cut short
    ``initial_state``   bool, the episode begins here
    ``last_action``     the action that led here, 0 at the beginning
    ==================  ===========================================================================

    Environments that have a vectorised form are stepped in it.

    Parameters
    ----------
    envs : sequence of gymnasium.Env
        With equal spaces.
    seed : int
        Environment i is seeded with ``seed + i`` when it is first reset, and then goes on drawing.

    Raises
    ------
    InputError
        There are no environments, `seed` is no seed, or the spaces cannot be held in tensors.

    Examples
    --------
    >>> env = GymEnv([gymnasium.make("CartPole-v1") for _ in range(3)], seed=7)
    >>> observation, running = env.reset()
    >>> running.tolist(), observation["frame"].shape
    ([0, 1, 2], torch.Size([3, 4]))
    >>> action = DictTensor({"action": torch.tensor([0, 1, 1])})
    >>> (observation, was_running), (observation, still_running) = env.step(action)
    >>> observation["reward"].tolist(), still_running.tolist()
    ([1.0, 1.0, 1.0], [0, 1, 2])
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"a seed is a whole number of at least 0, got {seed!r}")
        self._lanes = make_lanes(list(envs))
        self._n_envs = self._lanes.num_lanes
        self._seeds: list[int] | None = [int(seed) + i for i in range(self._n_envs)]
        self._options: list[dict[str, Any]] | None = None
        self._running = np.empty(0, np.int64)
        self.observation_space = self._lanes.envs[0].observation_space
        self.action_space = self._lanes.envs[0].action_space

    def n_envs(self) -> int:
        return self._n_envs

    def reset(self, env_info: DictTensor | None = None) -> Observed:
        """Start an episode in each of the environments.

        Parameters
        ----------
        env_info : DictTensor, optional
            Row i goes to environment i as the ``options`` of its ``reset``: numbers as Python's,
            arrays as NumPy's.
        """
        self._options = _as_options(env_info, self._n_envs)
        obs = self._lanes.start(self._seeds, self._options)
        self._seeds = None
        self._running = np.arange(self._n_envs)
        first = self._first(obs)
        return first, torch.arange(self._n_envs)

    def _first(self, obs: Any) -> DictTensor:
        n = self._n_envs
        flags = {name: np.full(n, name == "initial_state") for name in _FLAGS}
        actions = as_arrays(empty(self._lanes.action, (n,)))
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
        """Step the environments that are running, and return their rows of what came of it."""
        n, lanes = self._n_envs, self._running
        if not len(lanes):
            raise InputError("no environment is running; reset them first")
        names = list(action.keys())
        if "action" not in names:
            raise InputError(f"the agent's answer has no field 'action', only {names}")
        everyone = len(lanes) == n
        actions = _as_actions(self._lanes.action, action["action"], len(lanes), "action")
        if not everyone:
            actions = map_nest(lambda leaf: _scattered(leaf, lanes, n), actions)
        obs = as_arrays(empty(self._lanes.observation, (n,)))
        rewards = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        rows = None if everyone else lanes
        self._lanes.step(actions, obs, rewards, terminated, truncated, rows)
        flags = {
            "done": terminated | truncated,
            "terminated": terminated,
            "truncated": truncated,
            "initial_state": np.zeros(n, bool),
        }
        outcome = _observation(obs, rewards, flags, actions)
        return outcome if everyone else outcome[torch.from_numpy(lanes)]

    def stop_from(self, n: int) -> bool:
        self._running = self._running[self._running < n]
        return True

    def close(self) -> None:
        self._lanes.close()


class GymInfEnv(GymEnv):
    """Gymnasium environments that start again by themselves: all of them run for ever.

    Where an episode has ended, the first observation that `step` returns is the episode's last, and
    the second is the first one of the next episode, with ``initial_state`` set. The environment is
    reset with the same `env_info` again.

    Parameters
    ----------
    envs, seed
        See `GymEnv`.
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
        obs = as_arrays(empty(self._lanes.observation, (self._n_envs,)))
        self._lanes.reset(obs, ended, options=options or None)
        rows = torch.from_numpy(ended)
        following = outcome.clone()
        following[rows] = self._first(obs)[rows]
        return (outcome, everyone), (following, everyone)

    def stop_from(self, n: int) -> bool:
        return False


def _observation(
    obs: Any, rewards: np.ndarray[Any, Any], flags: dict[str, Any], actions: Any
) -> DictTensor:
    shown = {"frame": obs} if not isinstance(obs, Mapping) else obs
    if taken := _OWN_FIELDS & shown.keys():
        raise InputError(f"parts of the observation are called {sorted(taken)}, as are our fields")
    parts = {**shown, "reward": rewards, **flags, "last_action": actions}
    return DictTensor({name: _named(part) for name, part in parts.items()}, rewards.shape)


def _named(nest: Any) -> Any:
    """Return a nest of arrays as nested DictTensors; parts without names are numbered."""
    if isinstance(nest, np.ndarray):
        return torch.from_numpy(nest)
    parts = nest
    if not isinstance(nest, Mapping):
        names = getattr(nest, "_fields", None) or map(str, range(len(nest)))
        parts = dict(zip(names, nest, strict=True))
    return DictTensor({name: _named(part) for name, part in parts.items()})


def _as_actions(layout: Any, value: Any, n_rows: int, place: str) -> Any:
    """Return what the agent gave as the nest of arrays that the environments take."""
    if not isinstance(layout, Leaf):
        parts = layout
        if not isinstance(layout, Mapping):
            names = getattr(layout, "_fields", None) or map(str, range(len(layout)))
            parts = dict(zip(names, layout, strict=True))
        if not isinstance(value, TensorDict | Mapping) or set(value.keys()) != set(parts):
            raise ActionError(f"{place!r} must have the parts {sorted(parts)}")
        inner = [
            _as_actions(part, value[name], n_rows, f"{place}/{name}")
            for name, part in parts.items()
        ]
        if isinstance(layout, Mapping):
            return dict(zip(parts, inner, strict=True))
        return type(layout)(*inner) if hasattr(layout, "_fields") else tuple(inner)
    if not isinstance(value, torch.Tensor):
        raise ActionError(f"{place!r} must be a tensor, got {type(value).__name__}")
    actions = as_actions(value, (n_rows, *layout.shape), layout.dtype, repr(place))
    # A copy: what was recorded must not change with what an environment does to its action.
    return actions.numpy().copy()


def _scattered(rows: Any, lanes: Any, n: int) -> Any:
    full = np.zeros((n, *rows.shape[1:]), rows.dtype)
    full[lanes] = rows
    return full


def _as_options(env_info: DictTensor | None, n_envs: int) -> list[dict[str, Any]] | None:
    if env_info is None or not has_tensors(env_info):
        return None
    if env_info.n_elems() != n_envs:
        raise InputError(
            f"env_info has {env_info.n_elems()} rows for {n_envs} environments; it needs one each"
        )
    return [_plain(env_info[i]) for i in range(n_envs)]


def _plain(row: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in row.items():
        if not isinstance(value, torch.Tensor):
            plain[key] = _plain(value)
        else:
            plain[key] = value.item() if value.ndim == 0 else value.cpu().numpy()
    return plain

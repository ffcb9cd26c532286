"""Functional environments on JAX: pgx's games, your own, and Gymnasium's.

pgx's games and your own become Gymnasium environments (`FunctionalGym`) that step blocks of rows.
Their state consists of the leaves of the environment's own state, followed by the random key. A
block is stepped by one ``vmap``, always over 64 rows; if there are fewer, the last row is repeated.
So only one program is compiled, and a row's result does not depend on other rows.

Gymnasium's ``phys2d/...`` and ``tabular/...`` are stepped by Gymnasium itself, so seeded episodes
are bit-identical to Gymnasium's. In JAX, Python numbers and results computed from them are "weakly
typed"; other arrays are not. So each leaf is restored as the kind of number or array that it was.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.functional_jax_env import FunctionalJaxEnv
from gymnasium.experimental.functional import FuncEnv
from numpy.typing import NDArray

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.own_codec import SaveLoadCodec
from plangym_like.envs.save_load_env import SaveLoadSimulator
from plangym_like.errors import InputError, MissingExtraError
from plangym_like.states.random_state import seeded_generator
from plangym_like.states.rows import Row
from plangym_like.support.lazy_imports import broken_import, needs_extra

BLOCK = 64
# The kinds of leaves: Python or NumPy numbers, weakly typed arrays, other arrays of JAX.
_PLAIN, _WEAK, _ARRAY = range(3)


@dataclass(frozen=True, eq=False)
class Functions:
    """A functional environment, as functions that JAX can trace.

    Attributes
    ----------
    begin : callable
        Takes a random key; returns a state and its observation.
    advance : callable
        Takes a state, an action and a random key; returns the next state, its observation, reward,
        terminated and truncated. A state that has ended may be advanced too; this does not start a
        new episode.
    action_space, observation_space : gymnasium.Space
        The spaces of single actions and observations.
    is_game : bool
        Whether states have the leaves ``legal_action_mask`` and ``current_player``, of two players
        of whom one wins what the other loses.
    """

    begin: Callable[[Any], tuple[Any, Any]]
    advance: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]
    action_space: gymnasium.Space[Any]
    observation_space: gymnasium.Space[Any]
    is_game: bool = False


def functions_of(env: Any) -> Functions:
    """Return `env` as `Functions`.

    `env` may be a `Functions`, Gymnasium's `FuncEnv`, or an object like pgx's environments. In the
    last case, it has ``num_actions``, ``init(key)`` and ``step(state, action, key)``, and its
    states have ``current_player``, ``observation``, ``rewards``, ``terminated`` and ``truncated``.
    If its ``num_players`` is 2 and its states have a leaf ``legal_action_mask``, the infos say
    which actions are legal, and who moves.

    Raises
    ------
    InputError
        `env` is none of these.
    """
    if isinstance(env, Functions):
        return env
    if isinstance(env, FuncEnv):
        return _of_gymnasium(env)
    methods = getattr(env, "init", None), getattr(env, "step", None)
    if all(map(callable, methods)) and hasattr(env, "num_actions"):
        return _of_pgx(env)
    raise InputError(
        f"{type(env).__name__} is not a known kind of functional environment: it lacks pgx's init, "
        "step or num_actions, and is not a gymnasium.experimental.functional.FuncEnv; pass a "
        "plangym_like.envs.functional.Functions instead"
    )


def _of_gymnasium(env: Any) -> Functions:
    def begin(key: Any) -> tuple[Any, Any]:
        state = env.initial(rng=key)
        return state, env.observation(state, key)

    def advance(state: Any, action: Any, key: Any) -> Any:
        following = env.transition(state, action, key)
        return (
            following,
            env.observation(following, key),
            env.reward(state, action, following, key),
            env.terminal(following, key),
            jnp.asarray(False),
        )

    return Functions(begin, advance, env.action_space, env.observation_space)


def _of_pgx(env: Any) -> Functions:
    def begin(key: Any) -> tuple[Any, Any]:
        state = env.init(key)
        return state, state.observation

    def advance(state: Any, action: Any, key: Any) -> Any:
        following = env.step(state, action, key)
        # The reward is that of the player who moved; the observation is that of the next player.
        reward = following.rewards[state.current_player]
        return (
            following,
            following.observation,
            reward,
            following.terminated,
            following.truncated,
        )

    state, obs = jax.eval_shape(begin, jax.random.PRNGKey(0))
    if obs.dtype == bool:
        space = gymnasium.spaces.Box(0, 1, obs.shape, np.uint8)
    elif np.issubdtype(obs.dtype, np.integer):
        limits = np.iinfo(obs.dtype)
        space = gymnasium.spaces.Box(limits.min, limits.max, obs.shape, obs.dtype)
    else:
        space = gymnasium.spaces.Box(-np.inf, np.inf, obs.shape, obs.dtype)
    actions = gymnasium.spaces.Discrete(env.num_actions)
    names = {_leaf_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)}
    has_turns = {"legal_action_mask", "current_player"} <= names
    is_game = has_turns and getattr(env, "num_players", 1) == 2
    return Functions(begin, advance, actions, space, is_game)


class Program:
    """The compiled form of `functions`, made once per process.

    Attributes
    ----------
    begin : callable
        Takes a seed; returns ``(state, key)`` and the observation.
    step : callable
        Takes leaves, each ``(BLOCK, ...)``, and actions; returns the next leaves, observations,
        rewards, terminateds and truncateds.
    names : list of str
        The names of the leaves.
    forms : list of (shape, dtype)
        The shapes and dtypes of the leaves.
    """

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self.begin = jax.jit(self._begin)
        self.step = jax.jit(jax.vmap(self._step))
        paths, self._tree = jax.tree_util.tree_flatten_with_path(self.begin(np.uint32(0))[0])
        leaves = [np.asarray(leaf) for _, leaf in paths]
        self.names = [_name(path) for path, _ in paths]
        self.forms = [(leaf.shape, leaf.dtype) for leaf in leaves]

    def _begin(self, seed: Any) -> tuple[Any, Any]:
        use, key = jax.random.split(jax.random.PRNGKey(seed))
        state, obs = self._functions.begin(use)
        return (state, key), obs

    def _step(self, leaves: Any, action: Any) -> Any:
        state, key = jax.tree_util.tree_unflatten(self._tree, leaves)
        use, key = jax.random.split(key)
        next_state, *results = self._functions.advance(state, action, use)
        # In some environments, a step changes the dtype of a leaf; it is converted back here.
        kept = jax.tree_util.tree_leaves((next_state, key))
        kept = [leaf.astype(dtype) for leaf, (_, dtype) in zip(kept, self.forms, strict=True)]
        return kept, *results


program_of = functools.lru_cache(maxsize=16)(Program)


class FunctionalGym(gymnasium.Env[Any, Any]):
    """A Gymnasium environment, made from `functions`, with a state that can be read and set.

    Parameters
    ----------
    functions : Functions
        The functions that begin an episode and advance it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, gymnasium's own form

    def __init__(self, functions: Functions) -> None:
        self.action_space = functions.action_space
        self.observation_space = functions.observation_space
        self._program = program_of(functions)
        self.names, self.forms = self._program.names, self._program.forms
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in self.forms]
        ends = itertools.accumulate(sizes)
        self._slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._row = self._begin(0)[0]

    # The state

    def save_state(self) -> NDArray[np.uint8]:
        """Return the state and the random key, as bytes."""
        return self._row.copy()

    def load_state(self, saved: NDArray[np.uint8]) -> None:
        """Set the state to `saved`, a result of `save_state`."""
        self._row = saved

    def set_key(self, seed: int) -> None:
        """Replace the random key, which determines all later randomness, with one from `seed`."""
        self._row = self._row.copy()
        key = np.asarray(jax.random.PRNGKey(seed % 2**32))
        self._row[-key.nbytes :] = key.view(np.uint8)

    def leaves(self, rows: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """Return the leaves of the states in `rows` ``(N, nbytes)``, each ``(N, ...)``."""
        return [self._leaf(rows, number) for number in range(len(self.forms))]

    def _leaf(self, rows: NDArray[np.uint8], number: int) -> NDArray[Any]:
        shape, dtype = self.forms[number]
        raw = np.ascontiguousarray(rows[:, self._slices[number]])
        return raw.view(dtype).reshape(len(rows), *shape)

    def _pack(self, leaves: list[Any], count: int) -> NDArray[np.uint8]:
        parts = [
            np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8)
            for leaf in leaves
            if np.size(leaf)
        ]
        return np.concatenate(parts, axis=1)

    # Steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        chosen = self.np_random.integers(2**32) if seed is None else seed % 2**32
        self._row, obs = self._begin(int(chosen))
        return self._observed(obs), self._info()

    def _begin(self, seed: int) -> tuple[NDArray[np.uint8], Any]:
        parts, obs = self._program.begin(np.uint32(seed))
        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(parts)]
        return self._pack(leaves, 1)[0], obs

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rows, obs, rewards, terminateds, truncateds = self.step_states(
            self._row[None], np.asarray(action)[None]
        )
        self._row = rows[0]
        ended = bool(terminateds[0]), bool(truncateds[0])
        return obs[0], float(rewards[0]), *ended, self._info()

    def _info(self) -> dict[str, Any]:
        return {}

    def step_states(self, states: NDArray[np.uint8], actions: Any) -> tuple[NDArray[Any], ...]:
        """Step each of `states` ``(N, nbytes)`` with its action.

        Return the next states, observations, rewards, terminateds and truncateds.
        """
        results = []
        for start in range(0, len(states), BLOCK):
            part = np.minimum(np.arange(start, start + BLOCK), len(states) - 1)
            leaves, *found = self._program.step(
                self.leaves(states[part]), np.asarray(actions)[part]
            )
            rows = self._pack([np.asarray(leaf) for leaf in leaves], BLOCK)
            count = min(BLOCK, len(states) - start)
            results.append([np.asarray(array)[:count] for array in (rows, *found)])
        rows, obs, rewards, terminateds, truncateds = (
            np.concatenate(arrays) for arrays in zip(*results, strict=True)
        )
        ended = terminateds.astype(bool), truncateds.astype(bool)
        return rows, self._observed(obs), rewards.astype(np.float64), *ended

    def _observed(self, obs: Any) -> NDArray[Any]:
        return np.asarray(obs).astype(self.observation_space.dtype)


class FunctionalGame(FunctionalGym):
    """A game of two players, whose infos say which actions are legal, and who moves."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self._legal = self.names.index("legal_action_mask")
        self._player = self.names.index("current_player")
        ends = ("terminated", "truncated")
        self._ends = [number for number, name in enumerate(self.names) if name in ends]

    def turns_of_states(self, states: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the masks ``(N, A)`` and the players to move ``(N,)`` of `states`.

        When a game is over, no move is legal; pgx's own masks say that all are.
        """
        legal = self._leaf(states, self._legal).astype(bool)
        for number in self._ends:
            legal &= ~self._leaf(states, number).astype(bool)[:, None]
        return legal, self._leaf(states, self._player)

    def _info(self) -> dict[str, Any]:
        legal, to_play = self.turns_of_states(self._row[None])
        return {"action_mask": legal[0].astype(np.int8), "to_play": int(to_play[0])}


def _name(path: tuple[Any, ...]) -> str:
    """Return the name of a leaf: its path, or ``key`` for the random key."""
    if path[0].idx == 1:
        return "key"
    return _leaf_name(path[1:]) or "state"


def _leaf_name(path: tuple[Any, ...]) -> str:
    """Return the name of a leaf of a state: its path within the state."""
    return str(jax.tree_util.keystr(path)).lstrip(".")


class FunctionalCodec(SaveLoadCodec):
    """Names the leaves of the state in `view`, and replaces JAX's random key in `reseed`."""

    def fingerprint_fields(self) -> Mapping[str, Any]:
        forms = {
            name: [dtype.str, *shape]
            for name, (shape, dtype) in zip(self._base.names, self._base.forms, strict=True)
        }
        return {**super().fingerprint_fields(), "leaves": forms, "jax": jax.__version__}

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the leaves of the states by name; the random key is named ``key``."""
        leaves = self._base.leaves(payloads[:, : self.nbytes])
        return dict(zip(self._base.names, leaves, strict=True))

    def reseed(self, seed: int) -> None:
        self._base.set_key(int(np.random.default_rng(seed).integers(2**32)))


class FunctionalSimulator(SaveLoadSimulator):
    """A simulator of one functional environment.

    Parameters
    ----------
    name : str or callable
        ``"pgx/<game>"``, or a callable that returns an environment that
        `functions_of` accepts.
    kwargs
        As in `GymnasiumSimulator`. All other arguments are passed to the callable, or to pgx.

    Raises
    ------
    MissingExtraError
        pgx is not installed.
    InputError
        pgx has no such game, or the callable does not return a functional environment.
    """

    family = "FUNC"
    # A second copy would be compiled a second time.
    makes_copies: ClassVar[bool] = False
    codec_class = FunctionalCodec
    base: FunctionalGym

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment as a Gymnasium environment."""
        if callable(self.name):
            functions = functions_of(self.name(**self.env_kwargs))
        else:
            with needs_extra(f"{self.name} needs pgx", "jax"):
                functions = _game(str(self.name), **self.env_kwargs)
        return (FunctionalGame if functions.is_game else FunctionalGym)(functions)


@functools.lru_cache(maxsize=16)
def _game(name: str, **kwargs: Any) -> Functions:
    """Return a game of pgx; equal calls return the same object, which is compiled only once."""
    import pgx

    game = name.removeprefix("pgx/")
    if game not in pgx.available_envs():
        raise InputError(
            f"pgx has no game {game!r}; its games are {', '.join(pgx.available_envs())}"
        )
    return functions_of(pgx.make(game, **kwargs))


class FunctionalEnv(FamilyEnv):
    """A `PlanEnv` of a functional environment: ``make("pgx/2048")``, or one of your own.

    If ``make_mine`` returns your environment, ``FunctionalEnv(make_mine)`` steps it in this
    process, and ``ParallelEnv(FunctionalEnv, make_mine, n_workers=4)`` in four worker processes. In
    a game for several players, the reward is that of the player who moved, and the observation is
    that of the player who moves next.
    """

    simulator_class = FunctionalSimulator


# Gymnasium's own environments on JAX


class FunctionalJaxCodec(SaveLoadCodec):
    """Saves each leaf of the state; `reseed` also replaces JAX's random key."""

    def fingerprint_fields(self) -> Mapping[str, Any]:
        return {**super().fingerprint_fields(), "jax": jax.__version__}

    def reseed(self, seed: int) -> None:
        self._base.rng = jax.random.PRNGKey(int(seeded_generator(seed).integers(2**32)))


class FunctionalJaxSimulator(SaveLoadSimulator):
    """A simulator of one of Gymnasium's environments on JAX.

    The arguments are as in `GymnasiumSimulator`.
    """

    family = "FJAX"
    # A second copy would be compiled a second time.
    makes_copies: ClassVar[bool] = False
    codec_class = FunctionalJaxCodec
    base: FunctionalJaxEnv[Any]

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment; its base gets the methods ``save_state`` and ``load_state``."""
        try:
            env = GymnasiumSimulator.make_env(self)
        except ImportError as error:
            if broken_import(error):
                raise
            raise MissingExtraError(f"{error}: pip install 'plangym_like[jax]'") from error
        base: Any = env.unwrapped
        base.save_state = partial(_save, base)
        base.load_state = partial(_load, base)
        return env


def _save(env: FunctionalJaxEnv[Any]) -> list[tuple[int, Any]]:
    return [_saved(leaf) for leaf in jax.tree_util.tree_leaves((env.state, env.rng))]


def _saved(leaf: Any) -> tuple[int, Any]:
    if not isinstance(leaf, jax.Array):
        return _PLAIN, leaf
    return (_WEAK if leaf.aval.weak_type else _ARRAY), np.asarray(leaf)


def _load(env: FunctionalJaxEnv[Any], saved: list[tuple[int, Any]]) -> None:
    tree = jax.tree_util.tree_structure((env.state, env.rng))
    leaves = [_loaded(kind, value) for kind, value in saved]
    env.state, env.rng = jax.tree_util.tree_unflatten(tree, leaves)


def _loaded(kind: int, value: Any) -> Any:
    if kind == _PLAIN:
        return value
    if kind == _ARRAY:
        return jax.numpy.asarray(value)
    # An array made from Python numbers is weakly typed, and stays so when values are set in it.
    if not value.shape:
        return jax.numpy.asarray(value.item())
    return jax.numpy.full(value.shape, value.dtype.type(0).item()).at[...].set(value)


class FunctionalJaxEnvironment(FamilyEnv):
    """A `PlanEnv` of one of Gymnasium's environments on JAX; see `FunctionalJaxSimulator`."""

    simulator_class = FunctionalJaxSimulator

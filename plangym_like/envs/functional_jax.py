"""Gymnasium's own environments on JAX: ``phys2d/...`` and ``tabular/...``.

What is the state: the leaves of what the functional environment calls its state, and the random
key. How is it read and written: leaf by leaf, each as the kind of number that it was, because JAX
computes otherwise with numbers of Python's, and with what came of them ("weakly typed"), than with
arrays of its own. Steps are Gymnasium's, so seeded episodes are its episodes, to the bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from gymnasium.envs.functional_jax_env import FunctionalJaxEnv

from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.own import OwnSimulator
from plangym_like.errors import MissingExtraError
from plangym_like.plan_env import PlanEnv
from plangym_like.random_state import seeded_generator

# What the leaves are: numbers of Python's or NumPy's, weakly typed arrays, arrays.
_PLAIN, _WEAK, _ARRAY = range(3)


class FunctionalJaxSimulator(OwnSimulator):
    """One of them; the arguments are `GymnasiumSimulator`'s."""

    family = "FJAX"
    # A second copy would be compiled a second time.
    copied_in_trial: ClassVar[bool] = False
    base: FunctionalJaxEnv[Any]

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment, with the two methods that `OwnSimulator` asks for."""
        try:
            env = GymnasiumSimulator.make_env(self)
        except ImportError as error:
            raise MissingExtraError(f"{error}: pip install 'plangym_like[jax]'") from error
        base: Any = env.unwrapped
        base.save_state = partial(_save, base)
        base.load_state = partial(_load, base)
        return env

    def meaning(self) -> dict[str, Any]:
        """Add what computes it."""
        return {**super().meaning(), "jax": jax.__version__}

    def reseed(self, seed: int) -> None:
        """Give the state a new random key as well."""
        super().reseed(seed)
        self.base.rng = jax.random.PRNGKey(int(seeded_generator(seed).integers(2**32)))


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
    # Of numbers of Python's, weak arrays are made, and what is set in such a one leaves it weak.
    if not value.shape:
        return jax.numpy.asarray(value.item())
    return jax.numpy.full(value.shape, value.dtype.type(0).item()).at[...].set(value)


class FunctionalJaxEnvironment(PlanEnv):
    """Plan over one of Gymnasium's environments on JAX; see `FunctionalJaxSimulator`."""

    simulator_class = FunctionalJaxSimulator

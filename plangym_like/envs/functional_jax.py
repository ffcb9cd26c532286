"""Gymnasium's own environments on JAX: ``phys2d/...`` and ``tabular/...``.

The state consists of the leaves of the functional environment's state, and the random key. In JAX,
Python numbers and results computed from them are "weakly typed"; other arrays are not. So each leaf
is restored as the kind of number or array that it was. Gymnasium itself steps the environment, so
seeded episodes are bit-identical to Gymnasium's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from gymnasium.envs.functional_jax_env import FunctionalJaxEnv

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.save_load_env import SaveLoadCodec, SaveLoadSimulator
from plangym_like.errors import MissingExtraError
from plangym_like.snapshots.trial import TrialRule
from plangym_like.states.random_state import seeded_generator
from plangym_like.support.lazy_imports import broken_import

# The kinds of leaves: Python or NumPy numbers, weakly typed arrays, other arrays of JAX.
_PLAIN, _WEAK, _ARRAY = range(3)


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
    trial: ClassVar[TrialRule] = TrialRule(always=True, copies=False)
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

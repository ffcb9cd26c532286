"""Functional JAX environments: pgx's games by name, and environments of your own.

`plangym_like.envs.functional_gym` turns them into Gymnasium environments whose states are plain
bytes. A block of rows is stepped by one ``vmap``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.functional_gym import FunctionalGym
from plangym_like.envs.functions import Functions, functions_of
from plangym_like.envs.save_load_env import SaveLoadCodec, SaveLoadSimulator
from plangym_like.errors import InputError
from plangym_like.snapshots.trial import TrialRule
from plangym_like.states.rows import Row
from plangym_like.support.lazy_imports import needs_extra


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
        `plangym_like.envs.functions.functions_of` accepts.
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
    trial: ClassVar[TrialRule] = TrialRule(always=True, copies=False)
    codec_class = FunctionalCodec
    base: FunctionalGym

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment as a Gymnasium environment."""
        if callable(self.name):
            return FunctionalGym(functions_of(self.name(**self.env_kwargs)))
        with needs_extra(f"{self.name} needs pgx", "jax"):
            return FunctionalGym(_game(str(self.name), **self.env_kwargs))


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

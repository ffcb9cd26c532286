"""Functional JAX environments: pgx's games by name, and whatever is written in that form.

What is the state, how is it read and written, how is a chunk stepped: see
`plangym_like.envs.functional_gym`. A chunk is one ``vmap``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.functional_gym import FunctionalGym
from plangym_like.envs.functions import Functions, functions_of
from plangym_like.envs.own import OwnSimulator
from plangym_like.errors import InputError, MissingExtraError
from plangym_like.plan_env import PlanEnv
from plangym_like.random_state import GENERATOR_NBYTES
from plangym_like.states import Row


class FunctionalSimulator(OwnSimulator):
    """One functional environment.

    Parameters
    ----------
    name : str or callable
        ``"pgx/<game>"``, or a callable that returns what
        `plangym_like.envs.functions.functions_of` knows.
    kwargs
        As in `GymnasiumSimulator`; what the callable takes.

    Raises
    ------
    MissingExtraError
        pgx is not installed.
    InputError
        It has no such game, or the callable returns something else.
    """

    family = "FUNC"
    # A second copy would be compiled a second time.
    copied_in_trial: ClassVar[bool] = False
    base: FunctionalGym

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment as a Gymnasium one."""
        if callable(self.name):
            return FunctionalGym(functions_of(self.name(**self.env_kwargs)))
        try:
            return FunctionalGym(_game(str(self.name), **self.env_kwargs))
        except ImportError as error:
            raise MissingExtraError(
                f"{self.name} needs pgx: pip install 'plangym_like[jax]'"
            ) from error

    def meaning(self) -> Mapping[str, Any]:
        """Add the form of the state, and what computes it."""
        forms = {
            name: [dtype.str, *shape]
            for name, (shape, dtype) in zip(self.base.names, self.base.forms, strict=True)
        }
        return {**super().meaning(), "leaves": forms, "jax": jax.__version__}

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the state's leaves by name, ``key``, and the wrappers' parts."""
        rows = payloads[:, GENERATOR_NBYTES : GENERATOR_NBYTES + self.base.save_state().nbytes]
        leaves = dict(zip(self.base.names, self.base.leaves(rows), strict=True))
        return {**leaves, **self.memory.fields(payloads[:, self._base_nbytes :])}

    def reseed(self, seed: int) -> None:
        """Give the state a new random key."""
        super().reseed(seed)
        self.base.set_key(int(np.random.default_rng(seed).integers(2**32)))


@functools.lru_cache(maxsize=16)
def _game(name: str, **kwargs: Any) -> Functions:
    """Return a game of pgx, the same one each time, because it is compiled."""
    import pgx

    game = name.removeprefix("pgx/")
    if game not in pgx.available_envs():
        raise InputError(f"pgx has no game {game!r}, but {', '.join(pgx.available_envs())}")
    return functions_of(pgx.make(game, **kwargs))


class FunctionalEnv(PlanEnv):
    """Plan over a functional environment: ``make("pgx/2048")``, or any of your own.

    ``FunctionalEnv(make_mine)`` plans over one in this process, ``ParallelEnv(FunctionalEnv,
    make_mine, n_workers=4)`` on four lanes. Of a game for several players, the reward is that of
    the one who moved, and the observation the view of the one who moves next.
    """

    simulator_class = FunctionalSimulator

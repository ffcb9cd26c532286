"""Environments that are stepped together, each in a lane of its own."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError

Flags = NDArray[np.bool_]


class Lanes(abc.ABC):
    """n Gymnasium environments that are stepped together.

    Nothing is reset by itself: a lane that has ended is left as it is until `reset` names it, so
    its final observation is what `step` wrote, and when to go on is the caller's to say.
    Results are written into nests of arrays ``(n, ...)`` of the caller's, row i for lane i.

    Parameters
    ----------
    envs : sequence of gymnasium.Env

    Attributes
    ----------
    envs : list of gymnasium.Env
    num_lanes : int
    observation, action : nest of Leaf
        One observation and one action; known after `start`.
    infos : list of dict
        What the last `step` or `reset` of each lane said beside.
    step_infos : bool
        Whether steps say anything beside.
    steps_ended : bool
        Whether a lane that has ended may be stepped with the others; what comes of it is nothing.
    """

    step_infos: ClassVar[bool] = True
    steps_ended: ClassVar[bool] = False
    observation: Any
    action: Any

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self.envs = list(envs)
        if not self.envs:
            raise InputError("there is no environment to step: envs is empty")
        self.num_lanes = len(self.envs)
        self.infos: list[dict[str, Any]] = [{} for _ in self.envs]

    @abc.abstractmethod
    def start(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> Any:
        """Reset all lanes and return their observations, a nest of new arrays ``(n, ...)``.

        `seeds` and `options`, one a lane, go to the environments' ``reset``. May be called again.
        """

    @abc.abstractmethod
    def reset(
        self,
        obs: Any,
        lanes: Sequence[int] | NDArray[np.intp] | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Begin a new episode in `lanes` (all), and write its first observation into their rows.

        `seeds` and `options` have one entry for each of `lanes`, in their order. Without a seed,
        the environment's generator goes on.
        """

    @abc.abstractmethod
    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        lanes: Sequence[int] | NDArray[np.intp] | None = None,
    ) -> None:
        """Step `lanes` (all) by their rows of `actions`, and write what comes of it.

        Rows of other lanes stay as they are. `obs` may be the memory that held the last ones.

        Raises
        ------
        InputError
            An observation does not fit its space, or a reward or flag is not a single number.
        RuntimeError
            An environment raised `StopIteration`. All other exceptions are raised unchanged.
        """

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

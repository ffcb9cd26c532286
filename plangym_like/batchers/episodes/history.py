"""The episode so far, for agents that want to see it."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes.slots import Section
from plangym_like.batchers.episodes.trajectories import Trajectories


class History:
    """The steps of `n_envs` environments that started together.

    Parameters
    ----------
    n_envs : int
    """

    def __init__(self, n_envs: int) -> None:
        self._n_envs = n_envs
        self._n_steps = 0
        self._steps: TensorDict | None = None

    def add(self, running: torch.Tensor, sections: list[Section]) -> None:
        """Take in one step of the environments `running`."""
        record = {p + key: value for p, fields in sections for key, value in fields.items()}
        step = TensorDict(record, batch_size=running.shape)
        capacity = 0 if self._steps is None else int(self._steps.batch_size[1])
        if self._n_steps == capacity:
            self._grow(step, max(2 * capacity, 16))
        assert self._steps is not None
        self._steps[running, self._n_steps] = step
        self._n_steps += 1

    def _grow(self, step: TensorDict, capacity: int) -> None:
        size = [self._n_envs, capacity]
        grown = step.apply(lambda x: x.new_zeros((*size, *x.shape[1:])), batch_size=size)
        assert grown is not None
        if self._steps is not None:
            grown[:, : self._n_steps] = self._steps
        self._steps = grown

    def of(self, running: torch.Tensor) -> Trajectories | None:
        """Return the steps of the environments `running`, or ``None`` before the first."""
        if self._steps is None:
            return None
        steps = self._steps[running, : self._n_steps]
        return Trajectories(steps, torch.full((len(running),), self._n_steps))

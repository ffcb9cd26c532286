"""Several environments side by side, each of which ends in its own time."""

from __future__ import annotations

import torch

from plangym_like.batchers.episodes.dict_tensor import DictTensor

# An observation and the environments that its rows belong to, in ascending order.
Observed = tuple[DictTensor, torch.Tensor]


class VecEnv:
    """The contract between a batcher and its environments.

    Of ``N`` environments only those that have not ended are running, and observations and actions
    have one row for each of these. Which row belongs to which environment is said by a vector of
    int64 indices.

    Attributes
    ----------
    endless : bool
        Whether environments start again by themselves, so that all of them run for ever.
    """

    endless = False

    def n_envs(self) -> int:
        """Return ``N``."""
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
            ``[N]`` int64, the environments.
        """
        raise NotImplementedError

    def step(self, action: DictTensor) -> tuple[Observed, Observed]:
        """Step the ``B`` environments that are running.

        Parameters
        ----------
        action : DictTensor
            ``[B, ...]``, under ``"action"`` what the environments are to do.

        Returns
        -------
        (observation, was_running)
            What came of it, ``[B, ...]``, in the environments that were running ``[B]``.
        (observation, still_running)
            What the next actions answer, ``[B', ...]``, in the environments that have not ended
            ``[B']``: these rows of the first observation, or, where environments start again by
            themselves, the new episode's first.
        """
        raise NotImplementedError

    def stop_from(self, n: int) -> bool:
        """Let the environments from `n` on run no further, right after `reset`.

        For a last round with fewer episodes than environments. Return whether that was done; where
        it cannot be, they run along and nobody looks.
        """
        return False

    def close(self) -> None:
        """Close the environments."""

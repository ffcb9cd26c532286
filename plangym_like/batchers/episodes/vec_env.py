"""`VecEnv`: a group of environments whose episodes end at different times."""

from __future__ import annotations

import torch

from plangym_like.batchers.episodes.dict_tensor import DictTensor

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

    def stop_from(self, n: int) -> bool:
        """Stop environment `n` and all after it, if possible; return whether they were stopped.

        Batchers call this method right after `reset` if there are more environments than episodes
        to play. If the environments cannot be stopped, the results of the excess ones are ignored.
        """
        return False

    def close(self) -> None:
        """Close the environments."""

"""`replay_agent`: compute an agent's answers again."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes.dict_tensor import DictTensor, has_tensors
from plangym_like.batchers.episodes.trajectories import Trajectories


def replay_agent(
    agent: Any, trajectories: Trajectories, state: DictTensor | None = None
) -> TensorDict:
    """Call `agent` again on every step in turn, passing its state along, with gradients.

    The answers are those that were recorded, except for what the agent draws at random. After the
    end of a trajectory the agent gets zeros; the trajectories' mask says which answers count.

    Parameters
    ----------
    agent : callable
        See `Agent`; it must not require a history.
    trajectories : Trajectories
    state : DictTensor, optional
        ``[B, ...]``, the agent's state before the first step; ``None`` at the beginning of
        episodes. For a chunk, it was recorded:
        ``DictTensor({"memory": chunk["memory"][:, 0]})``.

    Returns
    -------
    TensorDict
        ``[B, T, ...]``, the actions that the agent returned: ``replayed["logits"]``.
    """
    info = trajectories.agent_info if has_tensors(trajectories.agent_info) else None
    answers = []
    for t in range(trajectories.n_timesteps):
        _, action, state = agent(state, trajectories.temporal_index(t), info)
        answers.append(TensorDict(dict(action.items()), batch_size=action.batch_size))
    replayed: Any = torch.stack(answers, 1)  # type: ignore[arg-type]
    return replayed  # type: ignore[no-any-return]

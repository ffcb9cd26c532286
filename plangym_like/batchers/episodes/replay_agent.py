"""`replay_agent`: compute an agent's outputs again."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes.dict_tensor import DictTensor, has_tensors
from plangym_like.batchers.episodes.trajectories import Trajectories


def replay_agent(
    agent: Any, trajectories: Trajectories, state: DictTensor | None = None
) -> TensorDict:
    """Call `agent` on the recorded steps again, with gradients, and return its outputs.

    The steps are replayed in order, and each call gets the state that the previous call returned.

    The outputs equal the recorded ones, except for random draws of the agent. After the end of a
    trajectory the agent gets zeros; `Trajectories.mask` says which outputs are valid.

    Parameters
    ----------
    agent : callable
        See `Agent`; it must not require a history.
    trajectories : Trajectories
    state : DictTensor, optional
        ``[B, ...]``, the agent's state before the first step; ``None`` if this step begins the
        episodes. For a later chunk, take the recorded state, for example
        ``DictTensor({"memory": chunk["memory"][:, 0]})``.

    Returns
    -------
    TensorDict
        ``[B, T, ...]``, the fields of the agent's actions, for example ``replayed["logits"]``.

    Examples
    --------
    >>> weight = torch.tensor(2.0, requires_grad=True)
    >>> def agent(state, observation, agent_info=None, history=None):
    ...     return DictTensor(), DictTensor({"action": weight * observation["frame"]}), DictTensor()
    >>> trajectories = Trajectories({"frame": torch.ones(3, 5)}, torch.tensor([5, 5, 2]))
    >>> actions = replay_agent(agent, trajectories)["action"]
    >>> actions[trajectories.mask()].sum().backward()
    >>> weight.grad
    tensor(12.)
    """
    info = trajectories.agent_info if has_tensors(trajectories.agent_info) else None
    answers = []
    for t in range(trajectories.n_timesteps):
        _, action, state = agent(state, trajectories.temporal_index(t), info)
        answers.append(TensorDict(dict(action.items()), batch_size=action.batch_size))
    replayed: Any = torch.stack(answers, 1)  # type: ignore[arg-type]
    return replayed  # type: ignore[no-any-return]

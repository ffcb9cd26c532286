"""`Agent`: chooses the actions; `replay_agent` computes its outputs again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes.trajectories import DictTensor, Trajectories, has_tensors

if TYPE_CHECKING:
    from plangym_like.batchers.episodes.trajectories import Trajectories


class Agent:
    """A policy: computes an action and a new state from its current state and an observation.

    Between two calls, the agent object keeps only its weights. The state that it returns, with one
    row for each environment, holds all that it remembers of the episodes. Inherit from this class,
    and from `torch.nn.Module` if the agent has weights (``class Mine(Agent, torch.nn.Module)``).
    Any other object with the same `__call__` and `update` can be used as well.

    Examples
    --------
    >>> import torch
    >>> class Right(Agent):
    ...     def __call__(self, state, observation, agent_info=None, history=None):
    ...         action = torch.ones(observation.n_elems(), dtype=torch.int64)
    ...         return DictTensor(), DictTensor({"action": action}), DictTensor()
    >>> state, action, new_state = Right()(None, DictTensor({"frame": torch.zeros(3, 4)}))
    >>> action["action"]
    tensor([1, 1, 1])
    """

    def require_history(self) -> bool:
        """Return whether `__call__` needs the steps of the episode so far, in `history`."""
        return False

    def __call__(
        self,
        state: DictTensor | None,
        observation: DictTensor,
        agent_info: DictTensor | None = None,
        history: Trajectories | None = None,
    ) -> tuple[DictTensor, DictTensor, DictTensor]:
        """Choose an action in each of ``B`` environments.

        Parameters
        ----------
        state : DictTensor or None
            The new state that the last call returned, ``[B, ...]``; ``None`` at the beginning of
            the episodes.
        observation : DictTensor
            The current observations, ``[B, ...]``.
        agent_info : DictTensor, optional
            The `agent_info` that was passed to `execute`, reduced to the rows of these episodes.
        history : Trajectories, optional
            The steps of these episodes so far, ``[B, t, ...]``, if `require_history` returns true.
            A `Batcher` gives only the steps of the current chunk. ``None`` before the first step.

        Returns
        -------
        agent_state : DictTensor
            The state that the action was chosen from: `state`, or the first state of an episode.
        action : DictTensor
            The field ``"action"`` is sent to the environments. Other fields are only recorded.
        new_state : DictTensor
            The state for the next call. Both states are ``DictTensor({})`` for an agent without
            memory.
        """
        raise NotImplementedError

    def update(self, state_dict: Mapping[str, Any]) -> None:
        """Load `state_dict`, which is the argument of the batcher's `update`.

        By default, an agent that is a torch module loads it as its weights; other agents raise an
        error.
        """
        load = getattr(self, "load_state_dict", None)
        if load is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no method update(state_dict), and no load_state_dict, "
                "as a torch module has: define one of these methods"
            )
        load(state_dict)

    def close(self) -> None:
        """Release the agent's resources."""


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

"""`Agent`: chooses the actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plangym_like.batchers.episodes.dict_tensor import DictTensor

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

"""What chooses the actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plangym_like.batchers.episodes.dict_tensor import DictTensor

if TYPE_CHECKING:
    from plangym_like.batchers.episodes.trajectories import Trajectories


class Agent:
    """A policy: from its state and what it observes to an action and its next state.

    An agent keeps nothing between two calls but its weights: what it has to remember of an episode
    is in its state, one row for each environment. Any callable with this signature and a method
    `update` will do; this class is there to be inherited from, together with `torch.nn.Module`
    where that is handy (name `Agent` first).
    """

    def require_history(self) -> bool:
        """Return whether `__call__` wants to see the episode so far in `history`."""
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
            What was returned as the new state one step before, ``[B, ...]``; ``None`` when the
            environments have just been reset.
        observation : DictTensor
            What the environments show, ``[B, ...]``.
        agent_info : DictTensor, optional
            The rows of `agent_info` that `execute` was given for these episodes.
        history : Trajectories, optional
            If `require_history` asks for it, the steps of these episodes until now ``[B, t, ...]``
            (in a `Batcher`, those of the chunk), ``None`` before the first.

        Returns
        -------
        agent_state : DictTensor
            The state that the action was chosen from: `state`, or what stands at the start of an
            episode.
        action : DictTensor
            Under ``"action"`` what is sent to the environments, and beside it whatever is worth
            recording.
        new_state : DictTensor
            The state for the next call. Both states are ``DictTensor({})`` for an agent without
            memory.
        """
        raise NotImplementedError

    def update(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what the batcher's `update` was given: for a module, its weights."""
        load = getattr(self, "load_state_dict", None)
        if load is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no method update(state_dict), and is no torch module "
                "that could load one"
            )
        load(state_dict)

    def close(self) -> None:
        """Let go of what the agent holds."""

"""`BaseActorModule`: a module that chooses actions; `evaluate` measures its score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.stepping import EpisodeLanes, Outcome
from plangym_like.batchers.trees import (
    as_arrays,
    as_tensors,
    copy_fitting,
    empty,
    tensor_layout,
    to_device,
)
from plangym_like.errors import InputError
from plangym_like.vector.lanes import whole_seeds
from plangym_like.vector.make_lanes import make_lanes
from plangym_like.vector.start_states import StartStates
from plangym_like.vector.tree import tree_map


class BaseActorModule(torch.nn.Module):
    """An actor: implement `forward`, and `reset` if episodes begin with a nonzero recurrent state.

    Except for `hx`, all inputs and outputs are trees of tensors ``(T, B, ...)``: time first, then
    the lanes. Do not change the inputs in place.

    Examples
    --------
    >>> class Linear(BaseActorModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(4, 2)
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         logits = self.layer(obs)
    ...         return logits.argmax(-1), (), {"logits": logits}
    >>> actions, hx, info = Linear()(torch.zeros(5, 3, 4))  # 5 steps of 3 lanes
    >>> actions.shape, info["logits"].shape
    (torch.Size([5, 3]), torch.Size([5, 3, 2]))
    """

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Choose actions for T observations of B lanes.

        Parameters
        ----------
        obs : tree of Tensor ``(T, B, ...)``
            The observations.
        act : tree of Tensor ``(T, B, ...)``
            The action before each observation.
        rew : Tensor float32 ``(T, B)``
            The rewards of these actions.
        fin : Tensor bool ``(T, B)``
            Whether these actions ended an episode. If so, `obs` is the first observation of the
            next episode, while `act` and `rew` belong to the one that ended. With T > 1, a
            recurrent actor must reset its state where `fin` is true.
        hx : tree of Tensor, or None
            The recurrent state before ``obs[0]``, with the lanes along the second dimension, as in
            torch's recurrent layers; ``None`` at the beginning.

        Returns
        -------
        actions : tree of Tensor ``(T, B, ...)``
        hx : tree of Tensor
            The recurrent state after ``obs[-1]``; ``()`` if there is none.
        info : dict of str to Tensor ``(T, B, ...)``
            Values to record, including ``"value"`` ``(T, B)`` if there is a critic.
        """
        raise NotImplementedError(f"{type(self).__name__} has to implement forward")

    @torch.no_grad()
    def reset(self, j: int | slice | Sequence[int] | torch.Tensor, hx: Any) -> Any:
        """Return a copy of `hx` with zeros for the lanes `j`, which begin a new episode."""

        def zeroed(state: torch.Tensor) -> torch.Tensor:
            state = state.clone()
            state[:, j] = 0
            return state

        return tree_map(zeroed, hx)

    def step(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Choose actions for one observation per lane (T = 1), without gradients."""
        # A collector has switched gradients off already, for all its steps.
        if not torch.is_grad_enabled():
            return self(obs, act, rew, fin, hx=hx)  # type: ignore[no-any-return]
        with torch.no_grad():
            return self(obs, act, rew, fin, hx=hx)  # type: ignore[no-any-return]

    @torch.no_grad()
    def value(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> torch.Tensor:
        """Return the critic's estimates ``(T, B)``, without gradients."""
        _, _, info = self(obs, act, rew, fin, hx=hx)
        value: torch.Tensor = info["value"]
        return value


def check_actor(actor: Any) -> None:
    """Raise `InputError` unless `actor` is a module."""
    if not isinstance(actor, torch.nn.Module):
        hint = "; make one of this class" * isinstance(actor, type)
        raise InputError(f"the actor must be a BaseActorModule, got {actor!r}{hint}")


@torch.no_grad()
def evaluate(
    envs: Sequence[gymnasium.Env[Any, Any]],
    actor: BaseActorModule,
    *,
    n_steps: int | None = None,
    render: bool = False,
    device: torch.device | str | None = None,
    seeds: Sequence[int | None] | None = None,
    states: Any = None,
) -> NDArray[np.float32]:
    """Play one episode in each of `envs`, and return the reward of every step.

    Parameters
    ----------
    envs : sequence of gymnasium.Env
        They are reset first, so do not pass environments that a rollout uses. The caller closes
        them.
    actor : BaseActorModule
        Its training mode is not changed; call ``actor.eval()`` first if it should not explore.
    n_steps : int, optional
        The maximum length of an episode; ``None`` plays until all episodes have ended.
    render : bool
        Render the environment after every step; there must be only one environment.
    device : torch.device, optional
        The device of the actor; by default, the CPU.
    seeds : sequence of int, optional
        The seeds of the resets, one for each environment.
    states : tuple, optional
        The states that the episodes begin in, as a tuple ``(rows, obs)`` of state rows, uint8
        ``(B, state_nbytes)``, and their observations.

    Returns
    -------
    array float32 ``(T', B)``
        T' is the length of the longest episode; rewards after the end of a shorter episode are 0.
        The sum along the first axis is the score of each episode.

    Examples
    --------
    >>> class Right(BaseActorModule):
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         return torch.ones(obs.shape[:2], dtype=torch.int64), (), {}
    >>> envs = [gymnasium.make("CartPole-v1") for _ in range(2)]
    >>> rewards = evaluate(envs, Right(), seeds=[0, 1])
    >>> rewards.sum(axis=0) < 15  # the score of each episode
    array([ True,  True])
    """
    if render and len(envs) != 1:
        raise InputError(f"render needs exactly one environment, got {len(envs)}")
    lanes = make_lanes(envs, vectorise=not render)
    count = lanes.num_lanes
    whole = None if seeds is None else whole_seeds(seeds)
    if whole is not None and len(whole) != count:
        raise InputError(f"{len(whole)} seeds were given for {count} environments")
    episodes = EpisodeLanes(lanes)
    obs = episodes.begin(whole, states=StartStates.of(states))
    flags = (np.zeros(count, bool), np.zeros(count, bool), np.ones(count, bool))
    outcome = Outcome(obs, np.zeros(count, np.float32), *flags)
    act = empty(tensor_layout(lanes.action_layout), (1, count))
    actions = tree_map(lambda array: array[0], as_arrays(act))
    given = [
        tree_map(lambda leaf: leaf[None], as_tensors(tree))
        for tree in (outcome.obs, outcome.reward, outcome.done)
    ]
    rewards: list[NDArray[np.float32]] = []
    hx: Any = None
    running = np.arange(count)
    while len(running) and (n_steps is None or len(rewards) < n_steps):
        # Copies, since the actor may return views of its inputs, which are overwritten here.
        inputs = tree_map(torch.clone, (given[0], act, *given[1:]))
        answer, hx, _ = actor.step(*to_device(inputs, device or "cpu"), hx=hx)
        copy_fitting(act, answer, "the actor's actions")
        outcome.reward.fill(0.0)
        episodes.step(actions, outcome)
        rewards.append(outcome.reward.copy())
        running = episodes.running = np.flatnonzero(~outcome.done)
        if render:
            lanes.call("render", lanes=[0])
    return np.stack(rewards) if rewards else np.zeros((0, count), np.float32)

"""`evaluate`: play whole episodes with an actor to measure its score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.tensor_fitting import copy_actions
from plangym_like.batchers.engine.tensor_tree import (
    as_arrays,
    as_tensors,
    empty,
    tensor_layout,
    to_device,
)
from plangym_like.batchers.episode_lanes import EpisodeLanes, Outcome
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.batchers.start_states import StartStates
from plangym_like.errors import InputError
from plangym_like.vector.lanes import whole_seeds
from plangym_like.vector.make_lanes import make_lanes
from plangym_like.vector.tree import tree_map


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
        copy_actions(act, answer)
        outcome.reward.fill(0.0)
        episodes.step(actions, outcome)
        rewards.append(outcome.reward.copy())
        running = episodes.running = np.flatnonzero(~outcome.done)
        if render:
            lanes.call("render", lanes=[0])
    return np.stack(rewards) if rewards else np.zeros((0, count), np.float32)

"""How good an actor is: whole episodes, without learning from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.fitting import copy_actions
from plangym_like.batchers.engine.make_lanes import make_lanes
from plangym_like.batchers.engine.nests import (
    as_arrays,
    as_tensors,
    empty,
    map_nest,
    to_device,
)
from plangym_like.batchers.engine.seeding import whole_seeds
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.errors import InputError


@torch.no_grad()
def evaluate(
    envs: Sequence[gymnasium.Env[Any, Any]],
    actor: BaseActorModule,
    *,
    n_steps: int | None = None,
    render: bool = False,
    device: torch.device | str | None = None,
    seeds: Sequence[int | None] | None = None,
) -> NDArray[np.float32]:
    """Play one episode in each of `envs` and return what every step earned.

    Parameters
    ----------
    envs : sequence of gymnasium.Env
        They are reset first, and stay the caller's to close.
    actor : BaseActorModule
        Whether it is in training mode is left as it is: say ``actor.eval()`` before, if that is
        what you mean.
    n_steps : int, optional
        The most steps of an episode; ``None``: until all have ended.
    render : bool
        Call ``render`` of the environment after every step; only where there is one.
    device : torch.device, optional
        Where the actor is.
    seeds : sequence of int, optional
        Of the resets, one an environment.

    Returns
    -------
    array float32 ``(T', B)``
        T' is the length of the longest episode; 0 after the end of a shorter one. Their sum along
        the first axis is the score of each episode.
    """
    if render and len(envs) != 1:
        raise InputError(f"one environment at a time can be rendered, not {len(envs)}")
    lanes = make_lanes(envs, vectorise=not render)
    count = lanes.num_lanes
    whole = None if seeds is None else whole_seeds(seeds)
    if whole is not None and len(whole) != count:
        raise InputError(f"{len(whole)} seeds were given for {count} environments")
    obs = lanes.start(whole)
    act = empty(lanes.action, (1, count))
    actions = map_nest(lambda array: array[0], as_arrays(act))
    rew, fin = np.zeros(count, np.float32), np.ones(count, bool)
    terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
    current = [map_nest(lambda leaf: leaf[None], as_tensors(nest)) for nest in (obs, rew, fin)]
    live = np.arange(count)
    rewards: list[NDArray[np.float32]] = []
    hx: Any = None
    place = "cpu" if device is None else device
    while len(live) and (n_steps is None or len(rewards) < n_steps):
        given, earned, begun = current
        # Copies: the actor's state may be views of what it was given, and these change.
        inputs = map_nest(torch.clone, (given, act, earned, begun))
        answer, hx, _ = actor.step(*to_device(inputs, place), hx=hx)
        copy_actions(act, answer)
        rew.fill(0.0)
        lanes.step(actions, obs, rew, terminated, truncated, live)
        rewards.append(rew.copy())
        np.logical_or(terminated, truncated, out=fin)
        live = np.flatnonzero(~fin)
        if render:
            lanes.envs[0].render()
    return np.stack(rewards) if rewards else np.zeros((0, count), np.float32)

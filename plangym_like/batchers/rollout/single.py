"""`single.rollout`: rollouts collected by one worker, with two buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plangym_like.batchers.rollout import multi
from plangym_like.batchers.rollout.actor import BaseActorModule
from plangym_like.batchers.rollout.multi import PooledRollout
from plangym_like.vector.make_lanes import EnvSource


def rollout(
    factory: EnvSource,
    actor: BaseActorModule,
    n_steps: int,
    n_envs: int,
    *,
    sticky: bool = False,
    close: bool = True,
    start_method: str = "forkserver",
    device: torch.device | str | None = None,
    pinned: bool = False,
    timeout: float = 30.0,
    n_workers: int = 1,
    seed: int | Sequence[int] | None = None,
    states: Any = None,
    max_lag: int | None = None,
    copy: bool = True,
    keep_final: bool = True,
    infos: bool = True,
    vectorise: bool = True,
) -> PooledRollout:
    """Collect the next fragment in a worker process while the caller learns from the previous one.

    There are two buffers: the worker fills one while the caller reads the other. There is one actor
    with `n_envs` lanes; ``n_workers=0`` collects in this process. See
    `plangym_like.batchers.rollout.multi.rollout` for the other parameters.

    Returns
    -------
    iterator of Fragment
        Also a context manager.

    Examples
    --------
    >>> class Left(BaseActorModule):
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         return torch.zeros(obs.shape[:2], dtype=torch.int64), (), {}
    >>> with rollout("CartPole-v1", Left(), n_steps=5, n_envs=3, n_workers=0) as fragments:
    ...     next(fragments).state.rew.shape  # collected in this process, since n_workers is 0
    torch.Size([5, 3])
    """
    return multi.rollout(
        factory,
        actor,
        n_steps,
        n_actors=1,
        n_per_actor=n_envs,
        n_buffers=2,
        n_per_batch=1,
        ordered=True,
        sticky=sticky,
        close=close,
        start_method=start_method,
        device=device,
        pinned=pinned,
        timeout=timeout,
        n_workers=n_workers,
        seed=seed,
        states=states,
        max_lag=max_lag,
        copy=copy,
        keep_final=keep_final,
        infos=infos,
        vectorise=vectorise,
    )

"""`single.rollout`: rollouts collected by one worker, with two buffers."""

from __future__ import annotations

from typing import Any

from plangym_like.batchers.rollout import multi
from plangym_like.batchers.rollout.actor import BaseActorModule
from plangym_like.batchers.rollout.multi import PooledRollout
from plangym_like.batchers.workers.group import Workers
from plangym_like.vector.make_lanes import EnvSource


def rollout(
    factory: EnvSource,
    actor: BaseActorModule,
    n_steps: int,
    n_envs: int,
    *,
    workers: Workers | int = 1,
    **options: Any,
) -> PooledRollout:
    """Collect the next fragment in a worker process while the caller learns from the previous one.

    There are two buffers: the worker fills one while the caller reads the other. There is one actor
    with `n_envs` lanes; ``workers=0`` collects in this process.

    Parameters
    ----------
    factory, actor, n_steps, workers
        As in `plangym_like.batchers.rollout.multi.rollout`.
    n_envs : int
        The number of lanes, B.
    options
        The other keyword arguments of `plangym_like.batchers.rollout.multi.rollout`: ``sticky``,
        ``pinned``, ``close``, ``device``, ``start_method``, ``seed``, ``states``, ``max_lag``,
        ``keep_final`` and ``infos``.

    Returns
    -------
    iterator of Fragment
        Also a context manager.

    Examples
    --------
    >>> class Left(BaseActorModule):
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         return torch.zeros(obs.shape[:2], dtype=torch.int64), (), {}
    >>> import torch
    >>> with rollout("CartPole-v1", Left(), n_steps=5, n_envs=3, workers=0) as fragments:
    ...     next(fragments).state.rew.shape  # collected in this process, since workers is 0
    torch.Size([5, 3])
    """
    return multi.rollout(
        factory,
        actor,
        n_steps,
        1,
        n_envs,
        2,
        1,
        ordered=True,
        workers=workers,
        **options,
    )

"""Rollouts by many workers with a pool of buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from plangym_like.batchers.engine.backend import Backend
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.batchers.rollout.pooled import PooledRollout


def rollout(
    factory: Callable[[], Any],
    actor: BaseActorModule,
    n_steps: int,
    n_actors: int = 8,
    n_per_actor: int = 2,
    n_buffers: int = 16,
    n_per_batch: int = 4,
    *,
    sticky: bool = False,
    pinned: bool = False,
    close: bool = True,
    start_method: str = "forkserver",
    device: torch.device | str | None = None,
    timeout: float = 30.0,
    n_workers: int | None = None,
    seed: int | Sequence[int] | None = None,
    ordered: bool = False,
    max_lag: int | None = None,
    copy: bool = True,
    keep_final: bool = True,
    infos: bool = True,
    vectorise: bool = True,
    backend: str = "process",
    address: str | None = None,
    resources: dict[str, Any] | None = None,
    runtime_env: dict[str, Any] | None = None,
) -> PooledRollout:
    """Collect fragments in worker processes while the caller learns from the last ones.

    There are `n_actors` copies of the actor, each with `n_per_actor` lanes; `n_workers` processes
    host them. They write into a pool of `n_buffers` buffers in shared memory; `n_per_batch` of them
    at a time, the first ready first, make the fragment that is yielded, their lanes side by side.
    The copies take over the actor's weights by themselves, at the beginning of a fragment.

    Parameters
    ----------
    factory : callable
        Takes nothing and returns a new Gymnasium environment. It is sent to the workers; lambdas
        and closures are fine.
    actor : BaseActorModule
        Is never called here, only copied.
    n_steps : int
        T.
    n_actors, n_per_actor : int
        Copies of the actor, and lanes of each.
    n_buffers : int
        At least `n_per_batch`; below `n_actors`, some of the actors are always idle.
    n_per_batch : int
        B is ``n_per_batch * n_per_actor``.
    sticky : bool
        Leave a lane whose episode has ended frozen for the rest of the fragment: for cudnn's fast
        recurrent layers, which cannot begin anew in the middle.
    pinned : bool
        Deliver in page-locked memory. Implied on the way to a GPU.
    close : bool
        Whether the environments are closed at the end; some do not like it.
    start_method : {"forkserver", "spawn", "fork"}
        See `plangym_like.processes.start_methods`.
    device : torch.device, optional
        Where fragments are delivered. The actors act on the CPU.
    timeout : float
        Seconds without a single step after which a worker counts as hung.
    n_workers : int, optional
        Processes; one a core, and no more than actors, unless given. 0: in this process, when a
        fragment is asked for.
    seed : int or sequence of int, optional
        Of everything random. With `ordered`, and weights that change in step (``max_lag=0``) or
        not at all, equal seeds give equal fragments for any `n_workers`.
    ordered : bool
        Yield the actors' fragments in turn, rather than the first ready first.
    max_lag : int, optional
        The most changes of the weights that may lie between a fragment's and the actor's when it
        is yielded. 0 collects only while the caller waits.
    copy : bool
        Whether a fragment is the caller's to keep. Else, and where ``n_per_batch=1``, it is the
        workers' memory itself, valid until the next one is asked for.
    keep_final : bool
        Whether fragments hold the final observations of episodes; room for them takes as much
        memory as the observations.
    infos : bool
        Whether fragments hold the numbers in the environments' infos.
    vectorise : bool
        Whether environments that have a vectorised form are stepped in it.
    backend : {"process", "ray"}
        Whether workers are processes of this machine or actors on a Ray cluster. Equal seeds give
        equal fragments in both, as for any `n_workers`. On a cluster fragments and weights travel
        through Ray's object store: with ``copy=False`` a fragment stays there while it is held.
    address, resources, runtime_env
        On a cluster, as in `plangym_like.RayEnv`; an actor claims one core unless told otherwise.

    Returns
    -------
    iterator of Fragment
        And a context manager. Its ``next`` raises what a worker raised, as its own type, caused by
        the remote traceback and with a note that names the worker; `WorkerDiedError` when one
        died, `WorkerTimeoutError` when one hung.

    Raises
    ------
    InputError
        The numbers do not fit together, or there is no such backend.
    MissingExtraError
        Ray is not installed.
    """
    return PooledRollout(
        factory,
        actor,
        n_steps,
        n_actors=n_actors,
        n_per_actor=n_per_actor,
        n_buffers=n_buffers,
        n_per_batch=n_per_batch,
        sticky=sticky,
        pinned=pinned,
        close=close,
        backend=Backend(
            backend,
            start_method=start_method,
            address=address,
            resources=resources,
            runtime_env=runtime_env,
        ),
        device=device,
        timeout=timeout,
        n_workers=n_workers,
        seed=seed,
        ordered=ordered,
        max_lag=max_lag,
        copy=copy,
        keep_final=keep_final,
        infos=infos,
        vectorise=vectorise,
    )

"""`RayEnv`: makes a `PlanEnv` whose batches are stepped on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from plangym_like.cluster.ray_options import RayOptions
from plangym_like.execution.process_options import ProcessOptions, headless
from plangym_like.parallel_env import ParallelEnv
from plangym_like.plan_env import PlanEnv


class RayEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped on all machines of a Ray cluster.

    On one machine it is a `ParallelEnv`. Each other node of the cluster has an actor that steps
    ranges of a batch in its own worker processes; the results come back to arrays of this process.
    Batches that are too cheap to be worth sending are stepped in this process.

    Actors, workers and nodes may die, and nodes may join: the results stay the same, and `stats`
    counts what happened. If no Ray is running, a local one is started, which `close` stops.

    Parameters
    ----------
    env_class, name, frameskip, autoreset, delay_setup
        As in `ParallelEnv`.
    n_workers : int, optional
        Processes that step rows, on all nodes together. If the cluster has fewer cores, nodes that
        join later make up for it. Left out: every core of the cluster.
    blocking : bool
        Accepted for compatibility with plangym, without effect.
    isolate : bool
        Step no batches in this process. In actors, rows never run in the actor's own process.
    step_timeout, start_timeout : float, optional
        As in `ParallelEnv`, for the workers of all machines.
    start_method : {"forkserver", "spawn", "fork"}
        How worker processes are started.
    address : str, optional
        The cluster to join, such as ``"10.0.0.1:6379"`` or ``"auto"``. Left out: the one that the
        environment variable ``RAY_ADDRESS`` names, or without it a local Ray that is started. A
        program that has called ``ray.init`` keeps its connection.
    resources : dict, optional
        What the processes of a node claim, instead of a core each: ``num_cpus``, ``num_gpus``,
        ``memory`` and the cluster's own resources. Nodes that lack them are not used, this machine
        included.
    placement : {"spread", "pack"} or PlacementGroup
        Use nodes evenly, or fill one after the other; or a placement group: a process for each CPU
        of each bundle, and no others.
    runtime_env : dict, optional
        Ray's description of what actors need on their machines.
    cores_per_actor : int, optional
        Processes of one actor. Left out: a node has as few actors as have at most 16 each.
    object_store_memory : int, optional
        Bytes of object store, if a local Ray is started.
    kwargs
        Passed to `env_class`.

    Raises
    ------
    MissingExtraError
        Ray is not installed; the message says how to install it.
    """

    def __init__(
        self,
        env_class: Callable[..., PlanEnv],
        name: Any,
        frameskip: Any = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int | None = None,
        blocking: bool = False,
        *,
        isolate: bool = False,
        step_timeout: float | None = None,
        start_timeout: float | None = None,
        start_method: str = "forkserver",
        address: str | None = None,
        resources: dict[str, Any] | None = None,
        placement: Any = "spread",
        runtime_env: dict[str, Any] | None = None,
        cores_per_actor: int | None = None,
        object_store_memory: int | None = None,
        **kwargs: Any,
    ) -> None:
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        on_node: dict[str, Any] = {
            "step_timeout": step_timeout,
            "start_timeout": start_timeout,
            "start_method": start_method,
        }
        cluster: dict[str, Any] = {
            "n_workers": n_workers,
            "address": address,
            "resources": resources,
            "placement": placement,
            "runtime_env": runtime_env,
            "cores_per_actor": cores_per_actor,
            "object_store_memory": object_store_memory,
        }
        node_env = partial(
            ParallelEnv, env_class, name, isolate=True, **on_node, **headless(env_kwargs)
        )
        local = ProcessOptions(env_class, name, env_kwargs, n_workers=1, isolate=isolate, **on_node)
        options = RayOptions(node_env, name, local, **cluster)
        super().__init__(
            partial(env_class, name, **env_kwargs),
            options,
            name=name,
            autoreset=autoreset,
            delay_setup=delay_setup,
        )
        self.blocking = blocking
        self.recipe = (env_class, name, env_kwargs)
        self._arguments = {
            "env_class": env_class,
            "name": name,
            "blocking": blocking,
            "isolate": isolate,
            **env_kwargs,
            **on_node,
            **cluster,
        }

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until all workers and actors are ready; batches need not wait for that.

        Raises
        ------
        TimeoutError
            It takes longer than `timeout` seconds.
        """
        self.batch_env.wait_ready(timeout)

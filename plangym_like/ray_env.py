"""`RayEnv`: a `PlanEnv` whose batches are stepped on a Ray cluster."""

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

    On this machine, it works like a `ParallelEnv`. On other nodes of the cluster, actors step
    ranges of a batch in their own worker processes, and send the results back to this process.
    Batches that are too cheap to be worth sending are stepped in this process.

    Actors, workers and nodes may die, and nodes may join. The results stay the same, and `stats`
    counts these events. If no cluster is given (see `address`), a local Ray is started. It is
    stopped when the last environment that uses it is closed.

    Parameters
    ----------
    env_class, name, frameskip, autoreset, delay_setup
        As in `ParallelEnv`.
    n_workers : int, optional
        The number of processes that step rows, on all nodes together. If the cluster has fewer
        cores, nodes that join later are used too. By default, every core of the cluster is used.
    blocking : bool
        Accepted for compatibility with plangym; it has no effect.
    isolate : bool
        Step no batches in this process. On other nodes, actors always step rows in child processes.
    step_timeout, start_timeout : float, optional
        As in `ParallelEnv`, for the workers of all machines.
    start_method : {"forkserver", "spawn", "fork"}
        How worker processes are started.
    address : str, optional
        The cluster to join, such as ``"10.0.0.1:6379"`` or ``"auto"``. The default is the cluster
        in the environment variable ``RAY_ADDRESS``; if it is not set, a local Ray is started. A
        program that has called ``ray.init`` keeps its connection.
    resources : dict, optional
        The resources that each actor claims, instead of a core for each process: ``num_cpus``,
        ``num_gpus``, ``memory`` and the cluster's own resources. A node without these resources is
        not used, even if it is this machine.
    placement : {"spread", "pack"} or PlacementGroup
        Use nodes evenly, or fill one after another. With a placement group, there is exactly one
        process for each CPU of each bundle.
    runtime_env : dict, optional
        The runtime environment of the actors, as a Ray ``runtime_env``.
    cores_per_actor : int, optional
        The number of processes of one actor. By default, each node gets as few actors as possible,
        with at most 16 processes each.
    object_store_memory : int, optional
        Size of the object store in bytes, if a local Ray is started.
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
        """Wait until all workers and actors are ready. Batches can be submitted before that.

        Raises
        ------
        TimeoutError
            They were not ready after `timeout` seconds.
        """
        self.batch_env.wait_ready(timeout)

"""`RayEnv`: a `PlanEnv` whose batches run on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plangym_like.cluster import ray_session
from plangym_like.cluster.node_env import write_recipe
from plangym_like.cluster.ray_fleet import RayFleet, check_options
from plangym_like.cluster.ray_pool import RayPool
from plangym_like.cluster.ray_stats import RayStats
from plangym_like.execution.parallel_env import ParallelEnv
from plangym_like.made_env import closed
from plangym_like.plan_env import PlanEnv


class RayEnv(ParallelEnv):
    """Everything that a `ParallelEnv` is, with the lanes all over a Ray cluster.

    Each node has an actor that steps its rows in processes of its own, through shared memory; only
    ranges of a batch cross the network, and results come back to arrays of this process. Single
    steps, resets and states are those of an environment in this process, which also steps batches
    that are too cheap to be worth sending, and everything as long as no actor stands.

    Actors, workers and nodes may die, and nodes may join: the results are the same, and `stats`
    tells. A local Ray is started where none is running, and stopped by `close`.

    Parameters
    ----------
    env_class, name, frameskip, autoreset, delay_setup
        As in `ParallelEnv`.
    n_workers : int, optional
        Processes that step rows, on all nodes together; a joined cluster may have fewer cores, and
        then nodes that join later make up for it. Left out: every core of the cluster.
    blocking : bool
        Kept for those who come from plangym; actors always run at once.
    isolate : bool
        Step no batches in this process. In actors, rows never run in the actor's own process.
    step_timeout, start_timeout : float, optional
        As in `ParallelEnv`; the latter is about actors' workers, not about actors.
    start_method : {"forkserver", "spawn", "fork"}
        How actors start their processes.
    address : str, optional
        The cluster to join, such as ``"10.0.0.1:6379"`` or ``"auto"``; left out, what the
        environment variable ``RAY_ADDRESS`` says, and without it a local Ray is started. A program
        that has called ``ray.init`` stays with that.
    resources : dict, optional
        What each actor claims, instead of a core for each of its processes: ``num_cpus``,
        ``num_gpus``, ``memory`` and the cluster's own. Nodes without them get no actor.
    placement : {"spread", "pack"} or PlacementGroup
        Whether to use nodes evenly or to fill one after the other; or a placement group, each
        bundle of which gets one actor with a process for each of its CPUs.
    runtime_env : dict, optional
        Ray's description of what actors need on their machines.
    cores_per_actor : int, optional
        Processes of one actor; left out, a node has as few actors as have 16 each at most.
    object_store_memory : int, optional
        Bytes of object store, where a local Ray is started.
    kwargs
        Passed to `env_class`.

    Raises
    ------
    MissingExtraError
        Ray is not installed; the message says how to install it.
    """

    _batch_env: RayPool | None  # type: ignore[assignment]

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
        check_options(n_workers, cores_per_actor, resources, placement)
        super().__init__(
            env_class,
            name,
            frameskip,
            autoreset,
            delay_setup=True,
            n_workers=1 if n_workers is None else n_workers,
            blocking=blocking,
            isolate=isolate,
            step_timeout=step_timeout,
            start_timeout=start_timeout,
            start_method=start_method,
            **kwargs,
        )
        self._cluster: dict[str, Any] = {
            "address": address,
            "resources": resources,
            "placement": placement,
            "runtime_env": runtime_env,
            "cores_per_actor": cores_per_actor,
            "object_store_memory": object_store_memory,
        }
        self._arguments |= {"n_workers": n_workers, **self._cluster}
        ray_session.load()
        if not delay_setup:
            self.setup()

    def setup(self) -> None:
        """Make the environment here, reach the cluster and have actors started there.

        Actors come to stand while this process goes on; see `wait_ready`.
        """
        if self._closed:
            raise closed(self._arguments["name"])
        if self._env is not None:
            return
        env = self._construct()
        try:
            env.setup()
            cluster = dict(self._cluster)
            session = ray_session.join(cluster.pop("address"), cluster.pop("object_store_memory"))
            try:
                fleet = RayFleet(
                    self._recipe,
                    env.layout,
                    private=session.started,
                    n_workers=self._arguments["n_workers"],
                    **cluster,
                )
                caller = None if self.isolate else env
                self._batch_env = RayPool(session, fleet, env.layout, caller)
            except BaseException:
                session.leave()
                raise
        except BaseException:
            env.close()
            raise
        self._audit(env, self._batch_env)
        self._env = env

    def _recipe(self, lanes: int) -> bytes:
        """Return what an actor with `lanes` processes needs to know."""
        options = {**self._arguments, "n_workers": lanes}
        for name in (*self._cluster, "blocking", "isolate"):
            del options[name]
        if options.get("render_mode") == "human":
            options["render_mode"] = None
        return write_recipe(options.pop("env_class"), options)

    def __repr__(self) -> str:
        return f"RayEnv({self._arguments['name']!r}, n_workers={self._arguments['n_workers']})"

    @property
    def batch_env(self) -> RayPool:  # type: ignore[override]
        """The actors."""
        self.setup()
        assert self._batch_env is not None
        return self._batch_env

    @property
    def stats(self) -> RayStats:
        """What has happened on the cluster so far."""
        return self.batch_env.stats

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every actor that has been asked for stands; batches need not wait for that.

        Raises
        ------
        TimeoutError
            It takes longer than `timeout` seconds.
        """
        self.batch_env.wait_ready(timeout)

    def clone(self, **changed: Any) -> RayEnv:
        """Return another env built with the same arguments, but for `changed`."""
        other = RayEnv(**{**self._arguments, **changed})
        self._hand_state_to(other)
        return other

"""`ActorPool`: the actors of a Ray cluster, which are replaced when they die.

Each of them has an `ActorHandle`.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.cluster.node_actor import CONCURRENCY, ChunkResult, NodeActor, worker_context
from plangym_like.cluster.ray_session import import_ray
from plangym_like.cluster.sites import ClusterOptions, Site, actor_options, choose_sites
from plangym_like.errors import WorkerDiedError, WorkerStartError
from plangym_like.execution.shared_batch import Range
from plangym_like.processes.pool import RetryPolicy
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.results import RayStats

logger = logging.getLogger("plangym_like")

# How often to query the nodes of the cluster; a query takes about a millisecond.
_SURVEY_SECONDS = 1.0
# How long actors may take to close before they are killed.
_CLOSE_SECONDS = 1.0
# How long a node on which no actor can start is not used.
_SHUN_SECONDS = 60.0
# How long to wait until a placement group is placed, to learn which bundles are on this machine.
_GROUP_SECONDS = 1.0
# How long to wait for the cluster to have room for an actor, if nothing else can step rows.
_PATIENCE_SECONDS = 120.0

# Names of resources in the options of actors -> Ray's names everywhere else.
_RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}


@dataclass(eq=False, slots=True)
class Chunk:
    """Rows of a batch that were sent to an actor.

    ``ranges`` are the tokens that it consists of. ``outcome`` is ``None`` until it is known. Then
    it is the result, or an exception: `WorkerDiedError` if the actor is lost, and any other
    exception if the result cannot be unpickled here.
    """

    ranges: Sequence[Range]
    outcome: ChunkResult | Exception | None = None

    @property
    def rows(self) -> NDArray[np.intp]:
        """The indices of the rows, in the order in which they are sent."""
        return np.concatenate([np.arange(*each) for each in self.ranges])

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


@dataclass(eq=False, slots=True)
class ActorHandle:
    """A `NodeActor` in the cluster, and the chunks that were sent to it.

    Attributes
    ----------
    site : Site
        Where the actor runs.
    actor : ray.actor.ActorHandle
        Ray's handle.
    making : ObjectRef or None
        The reference to wait for while its environment is being made; ``None`` afterwards.
    chunks : dict of ObjectRef to Chunk
        The chunks that were sent to it and have no outcome yet, in the order of sending.
    pid : int
        The id of its process on its machine; 0 until it is ready.
    """

    site: Site
    actor: Any
    making: Any
    chunks: dict[Any, Chunk] = field(default_factory=dict)
    pid: int = 0

    @property
    def ready(self) -> bool:
        """Whether the actor's environment is known to be ready."""
        return self.making is None

    @property
    def refs(self) -> list[Any]:
        """Ray references to the actor's pending answers."""
        return [*self.chunks] if self.ready else [self.making]

    def send(self, chunk: Chunk, *args: Any) -> None:
        """Send `chunk` to be stepped; `args` are those of `NodeActor.run`, or Ray references."""
        self.chunks[self.actor.run.remote(*args)] = chunk


@functools.cache
def _actor_class() -> Any:
    """Return `NodeActor` as a Ray actor class; made once, since Ray exports each new class."""
    return import_ray().remote(NodeActor)


class ActorPool:
    """Keeps as many actors on other nodes as there is room for, and replaces lost actors.

    The driver's own node has no actor. Its `local_workers` workers are started by the driver's
    executor, and do not claim their cores from Ray.

    Parameters
    ----------
    recipe : callable
        ``recipe(workers)`` returns the recipe of a `NodeActor` with that number of processes.
    where : ClusterOptions
    private : bool
        Whether the cluster was started for this program. If so, no cores are claimed, and a node
        may get all `n_workers`, however many cores it has.

    Attributes
    ----------
    handles : list of ActorHandle
        The actors that are ready or starting.
    local_workers : int
        Processes on this machine; 0 if `resources` or `placement` exclude this machine.
    """

    def __init__(
        self, recipe: Callable[[int], bytes], where: ClusterOptions, *, private: bool
    ) -> None:
        self.stats = RayStats()
        self.handles: list[ActorHandle] = []
        self._recipe, self._where, self._private = recipe, where, private
        self._resources = where.resources or {}
        self._group: Any = where.placement
        self._policy = RetryPolicy()
        # By node: its cores, and until when it is not used.
        self._nodes: dict[str, int] = {}
        self._shunned: dict[str, float] = {}
        self._closed = False
        self._surveyed_at, self._useless_surveys = time.monotonic(), 0
        self._local: list[Site] = []
        if self._group is not None:
            self._group.wait(_GROUP_SECONDS)
        here: str = import_ray().get_runtime_context().get_node_id()
        self._look(here)
        found = self._free_sites()
        self._local = [site for site in found if site.node == here]
        self.local_workers = sum(site.workers for site in self._local)
        self._start_all([site for site in found if site.node != here])

    # The cluster

    def _survey(self) -> None:
        """Query the cluster's nodes, and start actors where there is room.

        Raises
        ------
        WorkerStartError
            No process has been able to step rows in two minutes of queries.
        """
        before = self._nodes.keys()
        self._look()
        lost, joined = before - self._nodes.keys(), self._nodes.keys() - before
        self.stats.nodes_lost += len(lost)
        self.stats.nodes_joined += len(joined)
        for node in lost:
            logger.warning("node %s of the Ray cluster is lost; its rows run elsewhere", node)
        for handle in [each for each in self.handles if each.site.node in lost]:
            if not handle.chunks:  # otherwise the answers to its chunks report the loss
                self._lose(handle)
        self._start_all(self._free_sites())
        useful = bool(self.local_workers or self.stats.actors)
        self._useless_surveys = 0 if useful else self._useless_surveys + 1
        if self._useless_surveys * _SURVEY_SECONDS > _PATIENCE_SECONDS:
            self._useless_surveys = 0
            lacking = f", or lack resources={self._resources}" if self._resources else ""
            raise WorkerStartError(
                f"no actor could be started within {_PATIENCE_SECONDS:.0f} seconds: the cluster's "
                f"{len(self._nodes)} nodes may have no free cores (see `ray status`){lacking}"
            )

    def _look(self, first: str | None = None) -> None:
        self._surveyed_at = time.monotonic()
        alive = [node for node in import_ray().nodes() if node["Alive"]]
        alive.sort(key=lambda node: node["NodeID"] != first)
        self._nodes = {node["NodeID"]: self._cores_of(node["Resources"]) for node in alive}
        self.stats.nodes = len(alive)

    def _cores_of(self, resources: dict[str, float]) -> int:
        for name, amount in self._resources.items():
            if resources.get(_RAY_NAMES.get(name, name), 0.0) < amount:
                return 0
        if self._private and self._where.n_workers is not None:
            return self._where.n_workers
        return int(resources.get("CPU", 0.0))

    def _free_sites(self) -> list[Site]:
        """Return sites for the workers that can be added."""
        now = time.monotonic()
        self._shunned = {node: until for node, until in self._shunned.items() if until > now}
        taken = [*self._local, *(handle.site for handle in self.handles)]
        if self._group is not None:
            bundles = {site.bundle for site in taken}
            found = [site for site in self._sites_of_group() if site.bundle not in bundles]
            return [site for site in found if site.node not in self._shunned]
        free = dict(self._nodes)
        for site in taken:
            free[site.node] = free.get(site.node, 0) - site.workers
        free |= dict.fromkeys(self._shunned, 0)
        wanted = self._where.n_workers
        if wanted is not None:
            wanted = max(0, wanted - sum(site.workers for site in taken))
        return choose_sites(free, wanted)

    def _sites_of_group(self) -> list[Site]:
        """Return a site for each bundle of the placement group."""
        table = import_ray().util.placement_group_table(self._group)
        nodes = table.get("bundles_to_node_id", {})
        return [
            Site(nodes.get(index, ""), int(bundle.get("CPU", 1)), index)
            for index, bundle in enumerate(self._group.bundle_specs)
        ]

    # Actors

    @property
    def workers(self) -> int:
        """The number of processes that actors have, or will have once they are ready."""
        return sum(handle.site.workers for handle in self.handles)

    def poll(self, seconds: float = 0.0) -> None:
        """Read the answers of actors; wait at most `seconds` for the first one.

        Once in a second, also look for lost and new nodes.

        Raises
        ------
        WorkerStartError
            Actors repeatedly died before they were ready, or there is no room for any, and nothing
            else steps rows.
        Exception
            The environment could not be made on another machine, and nothing else steps rows.
        """
        if self._closed:
            return
        self._read_answers(seconds)
        if time.monotonic() - self._surveyed_at >= _SURVEY_SECONDS:
            self._survey()

    def _read_answers(self, seconds: float) -> None:
        owners = {ref: handle for handle in self.handles for ref in handle.refs}
        if not owners:
            return
        ray, refs = import_ray(), list(owners)
        ready, _ = ray.wait(refs, num_returns=1, timeout=seconds)
        if ready and len(refs) > 1:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            handle = owners[ref]
            if handle not in self.handles:  # another answer showed that its actor is lost
                continue
            if ref in handle.chunks:
                self._take_result(handle, ref)
            else:
                self._take_readiness(handle)

    def _start_all(self, sites: list[Site]) -> None:
        from ray.util import scheduling_strategies  # type: ignore[import-not-found,unused-ignore]

        node_strategy = scheduling_strategies.NodeAffinitySchedulingStrategy
        group_strategy = scheduling_strategies.PlacementGroupSchedulingStrategy
        for site in [] if self._closed else sites:
            cores = 0 if self._private else site.workers
            actor = _actor_class().options(
                **actor_options(cores, self._resources, self._where.runtime_env),
                max_concurrency=CONCURRENCY,
                scheduling_strategy=node_strategy(site.node, soft=False)
                if self._group is None
                else group_strategy(self._group, site.bundle),
            )
            actor = actor.remote(worker_context(), self._recipe(site.workers))
            self.handles.append(ActorHandle(site, actor, actor.make.remote()))

    def _take_readiness(self, handle: ActorHandle) -> None:
        ray, node = import_ray(), handle.site.node
        failure: BaseException | None = None
        try:
            handle.pid, packed = ray.get(handle.making)
            failure = None if packed is None else unpack_exception(packed)
        except ray.exceptions.RayError as error:
            try:
                self._policy.note_failed_start(WorkerStartError(_first_line(error)), 1)
            except WorkerStartError as repeated:
                failure = repeated
            else:  # it may have died by chance
                self._lose(handle, error)
                return
        if failure is None:
            handle.making = None
            self._policy.note_ready()
            self.stats.actors = sum(each.ready for each in self.handles)
            return
        self._shunned[node] = time.monotonic() + _SHUN_SECONDS
        self._remove(handle)
        self._survey()
        if not (self._local or self.handles):
            raise failure
        logger.warning("an actor cannot start on node %s: %s", node, failure)

    def _take_result(self, handle: ActorHandle, ref: Any) -> None:
        ray, chunk, node = import_ray(), handle.chunks[ref], handle.site.node
        try:
            chunk.outcome = result = ray.get(ref)
        except (ray.exceptions.RayTaskError, ray.exceptions.RaySystemError) as error:
            chunk.outcome = error
        except ray.exceptions.RayError as error:
            self._lose(handle, error)
            return
        else:
            for name, more in result.counts.items():
                setattr(self.stats, name, getattr(self.stats, name) + more)
            if deaths := result.counts.get("deaths"):
                logger.warning("%d workers on node %s died and were replaced", deaths, node)
        del handle.chunks[ref]

    def _lose(self, handle: ActorHandle, error: Exception | None = None) -> None:
        """Replace an actor that has died."""
        self._remove(handle)
        self.stats.actors_lost += handle.ready
        node = handle.site.node
        message = f"an actor on node {node} is lost, its rows run elsewhere"
        if error is not None:
            message += f": {_first_line(error)}"
            logger.warning("%s", message)
        for chunk in handle.chunks.values():
            chunk.outcome = WorkerDiedError(message, handle.pid)
        left = len(self.handles)
        self._survey()
        self.stats.restarts += len(self.handles) > left

    def _remove(self, handle: ActorHandle) -> None:
        self.handles.remove(handle)
        self.stats.actors = sum(each.ready for each in self.handles)
        import_ray().kill(handle.actor, no_restart=True)

    def close(self) -> None:
        """End all actors, within seconds."""
        self._closed = True
        ray = import_ray()
        handles, self.handles = self.handles, []
        if not ray.is_initialized():
            return
        idle = [handle for handle in handles if handle.ready and not handle.chunks]
        if closing := [handle.actor.close.remote() for handle in idle]:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
        for handle in handles:
            ray.kill(handle.actor, no_restart=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

"""`ActorPool`: the actors of a Ray cluster, which are replaced when they die.

Each of them has an `ActorHandle`.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from plangym_like.batch.layout import Layout
from plangym_like.cluster.chunks import Chunk, ChunkRequest, ChunkResult
from plangym_like.cluster.node_actor import CONCURRENCY, NodeActor, worker_context
from plangym_like.cluster.node_env import Readiness
from plangym_like.cluster.placement import Placement, actor_options, place_workers
from plangym_like.cluster.ray_session import load
from plangym_like.errors import StateMismatchError, WorkerStartError
from plangym_like.execution.costs import faded_minimum
from plangym_like.execution.placement import signature
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.results import RayStats

logger = logging.getLogger("plangym_like")

# How often to query the nodes of the cluster; a query takes about a millisecond.
_SURVEY_SECONDS = 1.0
# How long actors may take to close before they are killed.
_CLOSE_SECONDS = 1.0
# A node is not used for `_SHUN_SECONDS` if `_FAILED_STARTS` actors in succession died there before
# they were ready, or if the environment cannot be made there.
_FAILED_STARTS, _SHUN_SECONDS = 3, 60.0
# How long to wait until a placement group is placed, to learn which bundles are on this machine.
_GROUP_SECONDS = 1.0
# How long to wait for the cluster to have room for an actor, if nothing else can step rows.
_PATIENCE_SECONDS = 120.0

# Names of resources in the options of actors -> Ray's names everywhere else.
_RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}
_NODE_ID_LABEL = "ray.io/node-id"


class ActorHandle:
    """A `NodeActor` in the cluster, and the chunks that were sent to it.

    Parameters
    ----------
    placement : Placement
        Where the actor runs.
    recipe : bytes
        The result of `write_recipe`, from which the actor makes its environment.
    options : dict
        Arguments of ``ray.remote(...).options``.

    Attributes
    ----------
    tasks : dict of ObjectRef to Chunk
        The chunks that were sent to it and have no result yet, in the order of sending.
    pid : int
        The id of its process on its machine; 0 until it is ready.
    making : ObjectRef or None
        The reference to wait for while its environment is being made; ``None`` afterwards.
    """

    def __init__(self, placement: Placement, recipe: bytes, options: dict[str, Any]) -> None:
        self.placement = placement
        self.tasks: dict[Any, Chunk] = {}
        self._seconds_per_step = 0.0
        self.pid = 0
        actor = _actor_class().options(max_concurrency=CONCURRENCY, **options)
        self._actor = actor.remote(worker_context(), recipe)
        self.making: Any = self._actor.make.remote()

    @property
    def ready(self) -> bool:
        """Whether the actor's environment is known to be ready."""
        return self.making is None

    @property
    def refs(self) -> list[Any]:
        """Ray references to the actor's pending answers."""
        return [*self.tasks] if self.making is None else [self.making]

    @property
    def has_suspect(self) -> bool:
        """Whether the actor has a suspect chunk; see `Chunk`."""
        return any(chunk.suspect for chunk in self.tasks.values())

    def send(self, chunk: Chunk, request: ChunkRequest, states: Any) -> None:
        """Send `chunk` to be stepped; `states` are rows, or a Ray reference to them."""
        chunk.sent_at = time.monotonic()
        self.tasks[self._actor.run.remote(request, states)] = chunk

    def seconds_per_row(self, steps: float) -> float:
        """Return the shortest time that the actor took per row of `steps` steps; 0 if unknown."""
        return self._seconds_per_step * steps

    def note(self, steps: float, seconds: float) -> None:
        """Record that the actor took `seconds` for `steps` steps."""
        self._seconds_per_step = faded_minimum(self._seconds_per_step, seconds, max(1.0, steps))

    def ask_to_close(self) -> Any:
        """Ask the actor to close its environment, and return a reference to wait for."""
        return self._actor.close.remote()

    def kill(self) -> None:
        """End the actor and all its processes."""
        load().kill(self._actor, no_restart=True)


@functools.cache
def _actor_class() -> Any:
    """Return `NodeActor` as a Ray actor class; made once, since Ray exports each new class."""
    return load().remote(NodeActor)


class ActorPool:
    """Keeps as many actors on other nodes as there is room for, and replaces lost actors.

    The driver's own node has no actor. Its `local_workers` workers are started by the driver's
    executor; their cores are claimed from Ray like those of actors.

    Parameters
    ----------
    recipe : callable
        ``recipe(workers)`` returns the recipe of a `NodeEnv` with that number of processes.
    layout : Layout
        The layout that every actor's batches must have.
    private : bool
        Whether the cluster was started for this program. If so, no cores are claimed, and a node
        may get all `n_workers`, however many cores it has.
    n_workers : int or None
        How many processes step rows, on all nodes together; ``None`` uses every core of the
        cluster.
    cores_per_actor, resources, placement, runtime_env
        As in `RayEnv`.

    Attributes
    ----------
    handles : list of ActorHandle
        The actors that are ready or starting.
    local_workers : int
        Processes on this machine; 0 if `resources` or `placement` exclude this machine.
    """

    def __init__(
        self,
        recipe: Callable[[int], bytes],
        layout: Layout,
        *,
        private: bool,
        n_workers: int | None,
        cores_per_actor: int | None,
        resources: dict[str, Any] | None,
        placement: Any,
        runtime_env: dict[str, Any] | None,
    ) -> None:
        self.stats = RayStats()
        self.handles: list[ActorHandle] = []
        self._recipe = recipe
        self._layout = layout
        self._private = private
        self._n_workers = n_workers
        self._cores_per_actor = cores_per_actor
        self._resources = resources
        self._spread = placement != "pack"
        self._group: Any = None if isinstance(placement, str) else placement
        self._runtime_env = runtime_env
        self._nodes: dict[str, int] = {}
        self._failed_starts: dict[tuple[str, int], int] = {}
        self._shunned: dict[tuple[str, int], float] = {}
        self._ever_ready = self._closed = False
        self._surveyed_at = float("-inf")
        self._waiting_since: float | None = None
        self._local: list[Placement] = []
        if self._group is not None:
            self._group.wait(_GROUP_SECONDS)
        here: str = load().get_runtime_context().get_node_id()
        self._look(here)
        found = self._free_placements()
        self._local = [placement for placement in found if placement.node == here]
        self.local_workers = sum(placement.workers for placement in self._local)
        self._claim = self._claim_local(here)
        self._start_all([placement for placement in found if placement.node != here])

    # The cluster

    def survey(self, *, now: bool = False) -> None:
        """Query the cluster's nodes, and start actors where there is room.

        If `now` is false and the last query was less than a second ago, do nothing.
        """
        moment = time.monotonic()
        if self._closed or (not now and moment - self._surveyed_at < _SURVEY_SECONDS):
            return
        before = self._nodes.keys()
        self._look()
        lost, joined = before - self._nodes.keys(), self._nodes.keys() - before
        self.stats.nodes_lost += len(lost)
        self.stats.nodes_joined += len(joined)
        for node in lost:
            logger.warning("node %s of the Ray cluster is lost; its rows run elsewhere", node)
        for handle in [each for each in self.handles if each.placement.node in lost]:
            if not handle.tasks:  # otherwise the results of its chunks report the loss
                self._lose(handle, None)
        self._start_all(self._free_placements())

    def _look(self, first: str | None = None) -> None:
        self._surveyed_at = time.monotonic()
        alive = [node for node in load().nodes() if node["Alive"]]
        alive.sort(key=lambda node: node["NodeID"] != first)
        self._nodes = {node["NodeID"]: self._cores_of(node["Resources"]) for node in alive}
        self.stats.nodes = len(alive)

    def _cores_of(self, resources: dict[str, float]) -> int:
        for name, amount in (self._resources or {}).items():
            if resources.get(_RAY_NAMES.get(name, name), 0.0) < amount:
                return 0
        if self._private and self._n_workers is not None:
            return self._n_workers
        return int(resources.get("CPU", 0.0))

    def _free_placements(self) -> list[Placement]:
        """Return placements for the workers that can be added."""
        now = time.monotonic()
        self._shunned = {key: until for key, until in self._shunned.items() if until > now}
        taken = [*self._local, *(handle.placement for handle in self.handles)]
        if self._group is not None:
            bundles = {placement.bundle for placement in taken}
            found = [each for each in self._bundle_placements() if each.bundle not in bundles]
            return [each for each in found if (each.node, each.bundle) not in self._shunned]
        free = dict(self._nodes)
        for placement in taken:
            free[placement.node] = free.get(placement.node, 0) - placement.workers
        free |= {node: 0 for node, _ in self._shunned}
        wanted = self._n_workers
        if wanted is not None:
            wanted = max(0, wanted - sum(placement.workers for placement in taken))
        return place_workers(
            free, wanted, cores_per_actor=self._cores_per_actor, spread=self._spread
        )

    def _bundle_placements(self) -> list[Placement]:
        """Return a placement for each bundle of the placement group, even if it has no node yet."""
        table = load().util.placement_group_table(self._group)
        nodes = table.get("bundles_to_node_id", {})
        return [
            Placement(nodes.get(index, ""), int(bundle.get("CPU", 1)), index)
            for index, bundle in enumerate(self._group.bundle_specs)
        ]

    def _claim_local(self, here: str) -> Any:
        """Claim the cores of the workers on this machine; Ray grants them once they are free."""
        if not self.local_workers or self._private or self._group is not None:
            return None
        claims = actor_options(self.local_workers, self._resources, None)
        amounts = {name: claims.get(name, 0) for name in ("num_cpus", "num_gpus", "memory")}
        amounts |= claims.get("resources", {})
        bundle = {_RAY_NAMES.get(name, name): held for name, held in amounts.items() if held}
        if not bundle:
            return None
        return load().util.placement_group([bundle], bundle_label_selector=[{_NODE_ID_LABEL: here}])

    # Actors

    @property
    def any_ready(self) -> bool:
        """Whether at least one actor is ready."""
        return any(handle.ready for handle in self.handles)

    @property
    def busy(self) -> bool:
        """Whether actors have unanswered requests."""
        return any(handle.refs for handle in self.handles)

    def poll(self, seconds: float = 0.0) -> None:
        """Process the answers of actors; wait at most `seconds` for the first one.

        Raises
        ------
        WorkerStartError
            Actors repeatedly died before they were ready, and nothing else steps rows.
        Exception
            The environment could not be made on another machine, and nothing else steps rows.
        """
        owners = {ref: handle for handle in self.handles for ref in handle.refs}
        if not owners:
            return
        ray, refs = load(), list(owners)
        ready, _ = ray.wait(refs, num_returns=1, timeout=seconds)
        if ready and len(refs) > 1:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            handle = owners[ref]
            if handle not in self.handles:  # another answer showed that its actor is lost
                continue
            if ref in handle.tasks:
                self._take_result(handle, ref)
            else:
                self._take_readiness(handle)

    def _start_all(self, placements: list[Placement]) -> None:
        if self._closed:
            return
        for placement in placements:
            options = placement.options(
                reserve=not self._private,
                resources=self._resources,
                placement_group=self._group,
                runtime_env=self._runtime_env,
            )
            self.handles.append(ActorHandle(placement, self._recipe(placement.workers), options))

    def _take_readiness(self, handle: ActorHandle) -> None:
        ray, key = load(), (handle.placement.node, handle.placement.bundle)
        failure: BaseException | None
        try:
            readiness: Readiness = ray.get(handle.making)
            failure, died = self._failure(readiness), False
        except ray.exceptions.RayError as error:
            failure, died = error, True
        if failure is None:
            handle.making, handle.pid = None, readiness.pid
            self._ever_ready = True
            self._failed_starts.pop(key, None)
            self._count()
            return
        # An actor may die by chance, but an environment that cannot be made will fail again.
        failed = self._failed_starts[key] = self._failed_starts.get(key, 0) + 1
        if failed >= _FAILED_STARTS or not died:
            self._shunned[key] = time.monotonic() + _SHUN_SECONDS
            self._failed_starts[key] = 0
        self._remove(handle)
        needed = not (self._ever_ready or self._local)
        if needed and not died:
            raise failure
        logger.warning("an actor cannot start on node %s: %s", handle.placement.node, failure)
        self.survey(now=True)
        if needed and not self.handles and self._is_alive(handle):
            raise WorkerStartError(
                f"actors died {failed} times in a row before they were ready, the last time "
                f"because: {failure}"
            ) from failure

    def _failure(self, readiness: Readiness) -> BaseException | None:
        if readiness.error is not None:
            return unpack_exception(readiness.error)
        if readiness.signature == signature(self._layout):
            return None
        expected, got = self._layout.format.fingerprint_fields, readiness.fingerprint_fields
        return StateMismatchError(
            "the environment on another machine differs from the driver's; install the same "
            f"versions of its packages on both: expected {expected}, got {got}",
            expected,
            got,
        )

    def _take_result(self, handle: ActorHandle, ref: Any) -> None:
        ray = load()
        chunk = handle.tasks[ref]
        owner = chunk.owner
        try:
            result: ChunkResult = ray.get(ref)
        except ray.exceptions.ObjectLostError as error:
            # The actor is alive, but its answer was lost in transit.
            logger.warning("rows %d to %d were lost: %s", chunk.start, chunk.stop, error)
            if owner is not None:
                owner.requeue(chunk)
        except (ray.exceptions.RayTaskError, ray.exceptions.RaySystemError) as error:
            # The actor answered, but the answer cannot be unpickled here.
            if owner is not None:
                owner.fail(chunk, error)
        except ray.exceptions.RayError as error:
            self._lose(handle, error)
            return
        else:
            if owner is not None:
                owner.store(chunk, result)
            self._note(handle, result)
        # Deleted last: if an interrupt comes before this line, the answer is processed again.
        del handle.tasks[ref]

    def _note(self, handle: ActorHandle, result: ChunkResult) -> None:
        if result.error is None:
            handle.note(result.steps, result.seconds)
        for name, more in result.counts.items():
            setattr(self.stats, name, getattr(self.stats, name) + more)
        if deaths := result.counts.get("deaths"):
            node = handle.placement.node
            logger.warning(
                "%d workers of the actor on node %s died and were replaced", deaths, node
            )

    def _lose(self, handle: ActorHandle, error: Exception | None) -> None:
        """Replace an actor that has died, and requeue its rows."""
        self.survey(now=True)
        # The actor was stepping its first chunk. If its whole node is gone, no row is to blame.
        suspect = self._is_alive(handle)
        for chunk in handle.tasks.values():
            if chunk.owner is not None:
                chunk.owner.requeue(chunk, suspect=suspect)
            suspect = False
        self.stats.actors_lost += handle.ready
        self._remove(handle)
        if error is not None:
            reason = str(error).strip().partition("\n")[0]
            node = handle.placement.node
            logger.warning("an actor on node %s is lost, its rows run elsewhere: %s", node, reason)
        left = len(self.handles)
        self._start_all(self._free_placements())
        self.stats.restarts += len(self.handles) - left

    def _remove(self, handle: ActorHandle) -> None:
        self.handles.remove(handle)
        self._count()
        handle.kill()

    def _count(self) -> None:
        self.stats.actors = sum(handle.ready for handle in self.handles)

    def _is_alive(self, handle: ActorHandle) -> bool:
        """Return whether the actor's node was in the cluster at the last query."""
        return not handle.placement.node or handle.placement.node in self._nodes

    def check_patience(self) -> None:
        """Raise `WorkerStartError` if calls have found no ready actor for two minutes."""
        if self.any_ready:
            self._waiting_since = None
            return
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since > _PATIENCE_SECONDS:
            self._waiting_since = None
            lacking = f", or lack resources={self._resources}" if self._resources else ""
            raise WorkerStartError(
                f"no actor could be started within {_PATIENCE_SECONDS:.0f} seconds: the cluster's "
                f"{len(self._nodes)} nodes may have no free cores (see `ray status`){lacking}"
            )

    def close(self) -> None:
        """End all actors, within seconds."""
        self._closed = True
        ray = load()
        handles, self.handles = self.handles, []
        if not ray.is_initialized():
            return
        idle = [handle for handle in handles if handle.ready and not handle.tasks]
        if closing := [handle.ask_to_close() for handle in idle]:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
        for handle in handles:
            handle.kill()
        if self._claim is not None:
            ray.util.remove_placement_group(self._claim)

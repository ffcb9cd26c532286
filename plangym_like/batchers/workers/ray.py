"""`RayBackend`: objects hosted in actors of a Ray cluster, each of them a `GroupActor`."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from plangym_like.batchers.trees import as_arrays, as_tensors, empty
from plangym_like.batchers.weights import VersionedTree
from plangym_like.batchers.workers.backend import (
    Backend,
    Call,
    HostedObjects,
    Hosting,
    ObjectMaker,
    WorkerMemory,
    control_layout,
)
from plangym_like.cluster import ray_session
from plangym_like.cluster.node_actor import enter_worker_context, worker_context
from plangym_like.cluster.sites import actor_options
from plangym_like.errors import WorkerDiedError
from plangym_like.processes.remote_errors import pack_exception, unpack_exception
from plangym_like.processes.wire import dumps, dumps_by_value, loads
from plangym_like.states.rows import adopt_session_key, session_key
from plangym_like.vector.tree import tree_map

# How long to wait for actors to close their objects. After that, Ray takes time to end the actors.
_CLOSE_SECONDS = 1.0
# The name of the actor's thread that answers while its other thread runs a job.
_CONTROL_THREAD = "control"


class Heartbeat(NamedTuple):
    """The process id and node of an actor, and how often its objects have reported progress."""

    pid: int
    node: str
    beats: int


class Update(NamedTuple):
    """A published tree of arrays that an actor lacks, with its version."""

    name: str
    version: int
    content: Any


@dataclass(slots=True)
class JobResult:
    """The pickled value or error of a job."""

    heartbeat: Heartbeat
    value: bytes = b""
    error: bytes | None = None


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()


class GroupActor:
    """Hosts the objects of `groups`, and shares no memory with the owner.

    One thread makes the objects and runs all methods except `heartbeat` and `stop`, which run in a
    second thread.

    Parameters
    ----------
    recipe : bytes
        A pickled tuple of three parts: the caller's worker context, the caller's session key, and
        the function that makes an object.
    groups : sequence of int
    num_groups : int
        The total number of groups in all workers.
    """

    def __init__(self, recipe: bytes, groups: Sequence[int], num_groups: int) -> None:
        self._recipe, self._groups = recipe, groups
        self._node: str = ray_session.import_ray().util.get_node_ip_address()
        self._memory = WorkerMemory()
        self._memory.control = empty(control_layout(num_groups), ())
        self._hosted: HostedObjects | None = None
        self._failure: bytes | None = None

    def make(self) -> JobResult:
        """Make the hosted objects; if that fails, every later job fails with the same error."""
        try:
            context, key, make_object = loads(self._recipe)
            enter_worker_context(**context)
            adopt_session_key(key)
            self._hosted = HostedObjects(loads(make_object), self._groups, self._memory)
        except BaseException as error:
            self._failure = pack_exception(error, skip_frames=1)
        return JobResult(self.heartbeat(), dumps(None), self._failure)

    def call(self, group: int, method: str, args: bytes, *updates: Update) -> JobResult:
        """Apply `updates` to the actor's memory, then call `method` on the object of `group`."""
        hosted = self._hosted
        if hosted is None:
            return JobResult(self.heartbeat(), error=self._failure)
        try:
            for name, version, content in updates:
                # Copied, because Ray's arrays are read-only.
                tree = as_tensors(tree_map(copy.copy, content))
                self._memory.published[name] = VersionedTree.of(tree, version)
            return JobResult(self.heartbeat(), dumps(hosted.call(group, method, *loads(args))))
        except BaseException as error:
            return JobResult(self.heartbeat(), error=pack_exception(error, skip_frames=1))

    def heartbeat(self) -> Heartbeat:
        """Return the actor's process id, its node, and the progress of its objects."""
        return Heartbeat(os.getpid(), self._node, int(self._memory.control["beats"].sum()))

    def stop(self) -> None:
        """End the current job at its next step."""
        self._memory.control["stop"].fill_(1)

    def close(self) -> None:
        """Close the objects, once the current job has ended."""
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()


class RayBackend(Backend):
    """Workers that are Ray actors, and share no memory with the owner.

    What is published is put into Ray's object store once, and workers get it with their next jobs.
    Ray must never restart an actor or repeat a
    call, because the state of the hosted objects would be lost or wrong.
    """

    # A cluster may have to start a node first, which takes minutes in a cloud.
    start_seconds = 600.0

    def __init__(self, hosting: Hosting) -> None:
        super().__init__(hosting)
        options = hosting.workers.ray_options
        self._actors: list[Any] = []
        self._made: list[Future[Any]] = []
        # The worker and the future of each unfinished call.
        self._calls: dict[Any, tuple[int, Future[Any]]] = {}
        # For each name, the version and a Ray reference to its `Update`.
        self._updates: dict[str, tuple[int, Any]] = {}
        self._session: ray_session.RaySession | None = ray_session.join(options.get("address"))
        try:
            self._start_actors(options.get("resources"), options.get("runtime_env"))
        except BaseException:
            self.close(0.0)
            raise

    def _start_actors(
        self, resources: dict[str, Any] | None, runtime_env: dict[str, Any] | None
    ) -> None:
        ray, hosting, session = ray_session.import_ray(), self.hosting, self._session
        assert session is not None
        self.num_workers = hosting.count_workers(max(1, int(ray.cluster_resources().get("CPU", 0))))
        # A cluster that was started for this program has no other users: reserve no cores there.
        claimed = actor_options(0 if session.started else 1, resources, runtime_env)
        actor = ray.remote(concurrency_groups={_CONTROL_THREAD: 1})(GroupActor)
        actor = actor.options(scheduling_strategy="SPREAD", **claimed)
        make_object = dumps_by_value(ObjectMaker(hosting.make_object))
        recipe = ray.put(dumps((worker_context(), session_key(), make_object)))
        for worker in range(self.num_workers):
            groups = hosting.groups_of(worker, self.num_workers)
            self._actors.append(actor.remote(recipe, groups, hosting.num_groups))
        # For each worker, the version that it has of each update.
        self._seen: list[dict[str, int]] = [{} for _ in self._actors]
        self._heartbeats: list[Heartbeat | None] = [None] * self.num_workers
        self._heartbeat_refs: dict[Any, int] = {}
        self._asked_at = [float("-inf")] * self.num_workers
        self._made = [self._track(w, a.make.remote()) for w, a in enumerate(self._actors)]
        self._ask_for_heartbeats()

    def _track(self, worker: int, ref: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls[ref] = worker, future
        return future

    @property
    def pids(self) -> list[int]:
        """The process ids of the actors that have reported theirs so far."""
        return [heartbeat.pid for heartbeat in self._heartbeats if heartbeat is not None]

    def describe(self, worker: int) -> str:
        heartbeat = self._heartbeats[worker]
        about = "not started by the cluster yet"
        if heartbeat is not None:
            about = f"pid {heartbeat.pid} on node {heartbeat.node}"
        return f"worker {self.hosting.name}-{worker} ({about})"

    def is_ready(self, worker: int) -> bool:
        return self._made[worker].done()

    def publish(self, name: str, tree: Any, version: int) -> None:
        update = Update(name, version, as_arrays(tree_map(_on_cpu, tree)))
        self._updates[name] = version, ray_session.import_ray().put(update)

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        worker = group % self.num_workers
        seen, lacking = self._seen[worker], []
        for name, (version, ref) in self._updates.items():
            if seen.get(name) != version:
                seen[name] = version
                lacking.append(ref)
        ref = self._actors[worker].call.remote(group, method, dumps(args), *lacking)
        return self._track(worker, ref)

    def wait(self, seconds: float, group: int | None) -> None:
        self._ask_for_heartbeats()
        ray, refs = ray_session.import_ray(), [*self._calls, *self._heartbeat_refs]
        if not refs:
            time.sleep(seconds)
            return
        ready, _ = ray.wait(refs, num_returns=1, timeout=max(0.0, seconds))
        if ready and len(refs) > 1:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            if ref in self._heartbeat_refs:
                worker = self._heartbeat_refs.pop(ref)
                # Ignored here: if the actor has died, its jobs report that.
                with suppress(ray.exceptions.RayError):
                    self._heartbeats[worker] = ray.get(ref)
            else:
                worker, future = self._calls[ref]
                if not future.done():
                    self._receive(ref, worker, future)
                # Removed last: otherwise, an interrupt could leave the job unfinished for ever.
                del self._calls[ref]

    def _receive(self, ref: Any, worker: int, future: Future[Any]) -> None:
        ray = ray_session.import_ray()
        try:
            result: JobResult = ray.get(ref)
        except ray.exceptions.RayError as error:
            future.set_exception(self._death(worker, error))
            return
        self._heartbeats[worker] = result.heartbeat
        if result.error is not None:
            future.set_exception(unpack_exception(result.error))
        else:
            future.set_result(loads(result.value))

    def _death(self, worker: int, error: Exception) -> WorkerDiedError:
        heartbeat, told = self._heartbeats[worker], " ".join(str(error).split())
        return WorkerDiedError(
            f"{self.describe(worker)} has died, and its jobs are lost: {told}",
            None if heartbeat is None else heartbeat.pid,
        )

    def _ask_for_heartbeats(self) -> None:
        """Request a heartbeat from each actor, unless one was requested recently."""
        now = time.monotonic()
        for worker, actor in enumerate(self._actors):
            due = now - self._asked_at[worker] >= self.hosting.workers.timeout / 4
            if due and worker not in self._heartbeat_refs.values():
                self._asked_at[worker] = now
                ref = actor.heartbeat.options(concurrency_group=_CONTROL_THREAD).remote()
                self._heartbeat_refs[ref] = worker

    def beats(self, worker: int) -> int:
        heartbeat = self._heartbeats[worker]
        return -1 if heartbeat is None else heartbeat.beats

    def close(self, timeout: float) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        ray, actors, self._actors = ray_session.import_ray(), self._actors, []
        if ray.is_initialized():
            for actor in actors:
                actor.stop.options(concurrency_group=_CONTROL_THREAD).remote()
            ready = [actor for actor, made in zip(actors, self._made, strict=False) if made.done()]
            closing = [actor.close.remote() for actor in ready]
            if closing:
                seconds = min(timeout, _CLOSE_SECONDS)
                ray.wait(closing, num_returns=len(closing), timeout=seconds)
            for actor in actors:
                ray.kill(actor, no_restart=True)
        self._calls.clear()
        session.leave()

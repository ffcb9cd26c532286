"""`RayWorkers`: objects hosted in actors of a Ray cluster, each of them a `GroupActor`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from plangym_like.batchers.trees import PackedTree, copy_to, empty, pack, unpack
from plangym_like.batchers.workers.backend import (
    CONTROL,
    Call,
    HostedObjects,
    ObjectMaker,
    PoolOptions,
    Workers,
    control_layout,
)
from plangym_like.cluster import ray_session
from plangym_like.cluster.node_actor import enter_worker_context, worker_context
from plangym_like.cluster.sites import actor_options
from plangym_like.errors import InputError, WorkerDiedError
from plangym_like.processes.remote_errors import pack_exception, unpack_exception
from plangym_like.processes.wire import dumps, dumps_by_value, loads
from plangym_like.states.rows import adopt_session_key, session_key
from plangym_like.vector.tree import tree_map, with_axes


class Heartbeat(NamedTuple):
    """The process id and node of an actor, and how often its objects have reported progress."""

    pid: int
    node: str
    beats: int


class SharedUpdate(NamedTuple):
    """New content of the memory shared as `name`; if `is_empty`, `packed` holds only a layout."""

    name: str
    packed: PackedTree
    is_empty: bool = False


@dataclass(slots=True)
class JobResult:
    """The pickled value or error of a job, and the buffers that the job has published."""

    heartbeat: Heartbeat
    value: bytes = b""
    error: bytes | None = None
    buffers: list[tuple[str, int, PackedTree]] = field(default_factory=list)


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
        self._recipe = recipe
        self._node: str = ray_session.import_ray().util.get_node_ip_address()
        self._groups = groups
        self._control = empty(control_layout(num_groups), ())
        self._memory: dict[str, Any] = {CONTROL: self._control}
        self._layouts: dict[str, Any] = {}
        self._hosted: HostedObjects | None = None
        self._failure: bytes | None = None
        self._published: list[tuple[str, int, PackedTree]] = []

    def make(self) -> JobResult:
        """Make the hosted objects; if that fails, every later job fails with the same error."""
        try:
            context, key, make_object = loads(self._recipe)
            enter_worker_context(**context)
            adopt_session_key(key)
            self._hosted = HostedObjects(
                loads(make_object), self._groups, self._memory, send=self._send
            )
        except BaseException as error:
            self._failure = pack_exception(error, skip_frames=1)
        return JobResult(self.heartbeat(), dumps(None), self._failure)

    def call(self, group: int, method: str, args: bytes, *updates: SharedUpdate) -> JobResult:
        """Apply `updates` to the actor's memory, then call `method` on the object of `group`."""
        hosted = self._hosted
        if hosted is None:
            return JobResult(self.heartbeat(), error=self._failure)
        try:
            for update in updates:
                self._apply(update)
            value = dumps(hosted.call(group, method, *loads(args)))
            published, self._published = self._published, []
            return JobResult(self.heartbeat(), value, buffers=published)
        except BaseException as error:
            return JobResult(self.heartbeat(), error=pack_exception(error, skip_frames=1))

    def _apply(self, update: SharedUpdate) -> None:
        name, (layout, _), is_empty = update
        if is_empty:
            self._memory[name] = empty(layout, ())
        elif self._layouts.get(name) == layout:
            # Copied in place, because hosted objects may already hold these tensors.
            copy_to(self._memory[name], unpack(update.packed))
        else:
            self._memory[name] = tree_map(torch.clone, unpack(update.packed))
        self._layouts[name] = layout

    def _send(self, name: str, index: int, content: Any) -> None:
        self._published.append((name, index, pack(content)))

    def heartbeat(self) -> Heartbeat:
        """Return the actor's process id, its node, and the progress of its objects."""
        return Heartbeat(os.getpid(), self._node, int(self._control["beats"].sum()))

    def stop(self) -> None:
        """End the current job at its next step."""
        self._control["stop"].fill_(1)

    def close(self) -> None:
        """Close the objects, once the current job has ended."""
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()


# How long to wait for actors to close their objects. After that, Ray takes time to end the actors.
_CLOSE_SECONDS = 1.0
# The name of the actor's thread that answers while its other thread runs a job.
_CONTROL_THREAD = "control"


class _SharedContent:
    """The content shared under one name. Workers that lack it get it with their next job."""

    def __init__(self, version: int, update: Callable[[], SharedUpdate]) -> None:
        self.version = version
        self._update = update
        self._ref: Any = None

    def mark_changed(self) -> None:
        self.version += 1
        self._ref = None

    def ref(self) -> Any:
        """Return a Ray reference to the content, which is stored only once for all workers."""
        if self._ref is None:
            self._ref = ray_session.import_ray().put(self._update())
        return self._ref


class RayWorkers(Workers):
    """Workers that are Ray actors, and share no memory with the owner.

    Content that the owner shares is put into Ray's object store once after each change. Workers
    get it with their next jobs. Buffers that hosted objects publish come with the result of the
    job. Ray must never restart an actor or repeat a call, because the state of the hosted objects
    would be lost or wrong.

    Parameters
    ----------
    options : PoolOptions
    address, resources, runtime_env
        See `plangym_like.RayEnv`.
    """

    # A cluster may have to start a node first, which takes minutes in a cloud.
    start_seconds = 600.0

    def __init__(
        self,
        options: PoolOptions,
        *,
        address: str | None,
        resources: dict[str, Any] | None,
        runtime_env: dict[str, Any] | None,
    ) -> None:
        if options.num_workers == 0:
            raise InputError(
                "backend='ray' needs at least 1 worker, got 0; only backend='process' allows 0"
            )
        super().__init__(options)
        self._actors: list[Any] = []
        self._made: list[Future[Any]] = []
        # The worker and the future of each unfinished call.
        self._calls: dict[Any, tuple[int, Future[Any]]] = {}
        self._shared: dict[str, _SharedContent] = {}
        # The contents of buffers arrive with the results of jobs, and are read without a copy.
        self._buffers: dict[str, dict[int, Any]] = {}
        self._session: ray_session.RaySession | None = ray_session.join(address)
        try:
            self._start_actors(resources, runtime_env)
        except BaseException:
            self.close(0.0)
            raise

    def _start_actors(
        self, resources: dict[str, Any] | None, runtime_env: dict[str, Any] | None
    ) -> None:
        ray, options, session = ray_session.import_ray(), self.options, self._session
        assert session is not None
        self.num_workers = options.count_workers(max(1, int(ray.cluster_resources().get("CPU", 0))))
        # A cluster that was started for this program has no other users: reserve no cores there.
        claimed = actor_options(0 if session.started else 1, resources, runtime_env)
        actor = ray.remote(concurrency_groups={_CONTROL_THREAD: 1})(GroupActor)
        actor = actor.options(scheduling_strategy="SPREAD", **claimed)
        make_object = dumps_by_value(ObjectMaker(options))
        recipe = ray.put(dumps((worker_context(), session_key(), make_object)))
        for worker in range(self.num_workers):
            groups = options.groups_of(worker, self.num_workers)
            self._actors.append(actor.remote(recipe, groups, options.num_groups))
        # For each worker, the version that it has of each shared content.
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
        return f"worker {self.options.name}-{worker} ({about})"

    def is_ready(self, worker: int) -> bool:
        return self._made[worker].done()

    def share(self, name: str, shared: Any) -> None:
        self._update(name, lambda: SharedUpdate(name, pack(shared.arrays)))

    def _update(self, name: str, update: Callable[[], SharedUpdate]) -> None:
        before = self._shared.get(name)
        version = 0 if before is None else before.version + 1
        self._shared[name] = _SharedContent(version, update)

    def mark_changed(self, name: str) -> None:
        self._shared[name].mark_changed()

    def make_buffers(self, name: str, layout: Any, count: int, group: int | None) -> Any:
        # One buffer for each worker is enough if each job fills one.
        lead = 1 if group is None else count
        there = with_axes(layout, (lead,))
        self._update(name, lambda: SharedUpdate(name, PackedTree(there, []), is_empty=True))
        self._buffers[name] = {}
        return self._buffers[name]

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        worker = group % self.num_workers
        seen, updates = self._seen[worker], []
        for name, shared in self._shared.items():
            if seen.get(name) != shared.version:
                seen[name] = shared.version
                updates.append(shared.ref())
        ref = self._actors[worker].call.remote(group, method, dumps(args), *updates)
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
        for name, index, packed in result.buffers:
            self._buffers[name][index] = unpack(packed)
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
            due = now - self._asked_at[worker] >= self.options.timeout / 4
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
        for buffers in self._buffers.values():
            buffers.clear()
        self._calls.clear()
        session.leave()

"""Workers in other processes: `ProcessWorkers` on this machine, `RayWorkers` on a Ray cluster."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batchers.trees import as_arrays, as_tensors, to_device
from plangym_like.batchers.workers.group import Job, LocalWorkers, WorkerGroup, Workers
from plangym_like.batchers.workers.hosted import (
    GroupContext,
    HostedObjects,
    with_settings_of_here,
)
from plangym_like.cluster import ray_session
from plangym_like.cluster.node_actor import enter_worker_context, worker_context
from plangym_like.cluster.sites import actor_options
from plangym_like.errors import WorkerDiedError
from plangym_like.processes import start_methods
from plangym_like.processes.child import check_can_start
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle, WorkerPool
from plangym_like.processes.remote_errors import pack_exception, unpack_exception
from plangym_like.processes.shared_memory import SharedBlock, as_bytes, attach
from plangym_like.processes.wire import dumps, dumps_by_value, loads
from plangym_like.results import Stats
from plangym_like.states.rows import adopt_session_key, session_key
from plangym_like.vector.tree import tree_leaves

# Imported once in the fork server from which workers are forked.
_PRELOAD = ("torch", "plangym_like.batchers.workers.remote")
# Arrays of smaller results are sent in messages.
_MOST_SENT_NBYTES = 1 << 16
_ALIGNMENT = 64


class Shipment(NamedTuple):
    """A result on its way from a worker to the owner.

    Attributes
    ----------
    content : bytes
        The result, pickled without its arrays.
    sizes : list of int
        The numbers of bytes of the arrays.
    arrays : list of bytearray, optional
        The arrays, or ``None`` if they are in the lent memory.
    """

    content: bytes
    sizes: Sequence[int] = ()
    arrays: Sequence[bytearray] | None = ()

    def nbytes(self) -> int:
        """Return how much memory the arrays need."""
        return sum(map(_padded, self.sizes))

    def open(self, memory: NDArray[np.uint8] | None) -> Any:
        """Return the result; its arrays share the lent `memory`, if they are in it."""
        if self.arrays is not None:
            return pickle.loads(self.content, buffers=self.arrays)
        assert memory is not None
        starts = np.cumsum([0, *map(_padded, self.sizes)]).tolist()
        arrays = [memory[at : at + size] for at, size in zip(starts, self.sizes, strict=False)]
        return pickle.loads(self.content, buffers=arrays)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def ship(result: Any, memory: NDArray[np.uint8] | None) -> Shipment:
    """Put the arrays of `result` into `memory` if they are large and fit; return the shipment."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        content = pickle.dumps(result, 5, buffer_callback=buffers.append)
    except Exception:  # classes that the owner cannot import, which `dumps` pickles by value
        return Shipment(dumps(result))
    arrays = [np.frombuffer(each.raw(), np.uint8) for each in buffers]
    shipment = Shipment(content, [array.size for array in arrays], None)
    if memory is None or not _MOST_SENT_NBYTES < shipment.nbytes() <= memory.size:
        return shipment._replace(arrays=[bytearray(array) for array in arrays])
    at = 0
    for array in arrays:
        memory[at : at + array.size] = array
        at += _padded(array.size)
    return shipment


class ProcessHost(HostedObjects):
    """Objects in a worker process, and the memory that its owner lends it for results."""

    def __init__(self, make_object: Callable[[GroupContext], Any], groups: Sequence[int]) -> None:
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        super().__init__(make_object, groups)

    def attach_block(self, number: int, *, fds: Sequence[int]) -> None:
        """Map a block of memory that the owner will lend by its `number`."""
        self._blocks[number] = attach(fds[0])

    def call_and_ship(
        self,
        block: int | None,
        published: Shipment | None,
        group: int,
        method: str,
        args: Any,
        *,
        fds: Sequence[int] = (),
    ) -> Shipment:
        """Call `method` of the object of `group`; put a large result into the lent `block`.

        `published` is what this process lacks of what was published; its arrays are in the memory
        with the descriptor in `fds`, if there is one.
        """
        if published is not None:
            version, tree = published.open(attach(fds[0]) if fds else None)
            self.published = version, as_tensors(tree)
        result = self.call(group, method, *args)
        return ship(result, None if block is None else self._blocks[block])


class ProcessWorkers(WorkerGroup):
    """Worker processes. Large weights and results are in shared memory; other data is pickled.

    Workers are not replaced when they die, because the state of their objects is lost.
    """

    def _start(self) -> None:
        check_can_start()
        self.num_workers = self.count_workers(len(os.sched_getaffinity(0)))
        self._control_block = SharedBlock(8 * (self.num_groups + 1))
        self._control = as_bytes(self._control_block.memory).view(np.int64)
        # What was published, and the memory that it is in if it is large.
        self._published: tuple[Shipment | None, SharedBlock | None] = (None, None)
        self._workers: list[WorkerHandle] = []
        self._pool = WorkerPool(self._workers, counts=Stats())
        # The memory for results: the size that the largest one needs, all blocks, and those that
        # are free for each worker.
        self._nbytes = 0
        self._blocks: set[SharedBlock] = set()
        self._free: list[list[SharedBlock]] = [[] for _ in range(self.num_workers)]
        try:
            preload = (*_PRELOAD, *self.preload)
            if self.options.start_method == "forkserver":
                start_methods.warm_up(preload)
            make_object = with_settings_of_here(self.make_object)
            for number in range(self.num_workers):
                process = ExternalProcess(
                    partial(ProcessHost, make_object, self.groups_of(number)),
                    start_method=self.options.start_method,
                    preload=preload,
                    name=f"{self.name}-{number}",
                )
                self._workers.append(WorkerHandle(process, number))
                process.apply(HostedObjects.attach_control, fds=[self._control_block.fd])
            self._pool = WorkerPool(self._workers, counts=Stats())
        except BaseException:
            self._close(0.0)
            raise

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def describe(self, worker: int) -> str:
        return f"worker {self.name}-{worker} (pid {self._workers[worker].process.pid})"

    def _is_ready(self, worker: int) -> bool:
        # Ignored here: if the constructor of an object raised, every call raises the same error.
        with suppress(Exception):
            self._workers[worker].become_ready()
        return self._workers[worker].ready

    def _publish(self, tree: Any, version: int) -> None:
        content = as_arrays(to_device(tree, "cpu"))
        arrays = [leaf for leaf in tree_leaves(content) if isinstance(leaf, np.ndarray)]
        nbytes = sum(_padded(array.nbytes) for array in arrays)
        # Never written again, so no reader needs a lock. The kernel frees it after the last reader.
        block = SharedBlock(nbytes) if nbytes > _MOST_SENT_NBYTES else None
        shipment = ship((version, content), None if block is None else as_bytes(block.memory))
        self._published = shipment, block

    def _send(self, job: Job, args: tuple[Any, ...]) -> None:
        number, lacking, memory = None, None, None
        if self._nbytes > _MOST_SENT_NBYTES:
            job.block = self._lend(job.worker)
            number = job.block.number
        if self._lacks_weights(job.worker):
            lacking, memory = self._published
        fds = [] if memory is None else [memory.fd]
        # Patient, because a hung worker does not read: `wait` then finds that it is hung.
        call = ProcessHost.call_and_ship, number, lacking, job.group, job.method, args
        job.call = self._workers[job.worker].process.apply(*call, fds=fds, patient=True)

    def _lend(self, worker: int) -> SharedBlock:
        """Return a block with room for the largest result so far."""
        free = self._free[worker]
        while free:
            if (block := free.pop()).nbytes >= self._nbytes:
                return block
            self._blocks.remove(block)
        # Sizes are powers of two, so that few blocks are replaced as results get larger.
        block = SharedBlock(1 << (self._nbytes - 1).bit_length())
        process = self._workers[worker].process
        process.apply(ProcessHost.attach_block, block.number, fds=[block.fd], patient=True)
        self._blocks.add(block)
        return block

    def _result(self, job: Job) -> Any:
        try:
            shipment: Shipment = job.call.result()
        except BaseException:
            self.release(job)
            raise
        self._nbytes = max(self._nbytes, shipment.nbytes())
        result = shipment.open(None if job.block is None else as_bytes(job.block.memory))
        if shipment.arrays is not None:
            self.release(job)
        return result

    def release(self, job: Job) -> None:
        block, job.block = job.block, None
        if block is not None:
            self._free[job.worker].append(block)

    def _wait(self, seconds: float, group: int | None) -> None:
        self._pool.wait(max(0.0, seconds))

    def _beats(self, worker: int) -> int:
        return int(self._control[1:][self.groups_of(worker)].sum())

    def _close(self, timeout: float) -> None:
        # Running jobs end at their next step.
        self._control[0] = 1
        self._pool.close(timeout)
        self._workers.clear()
        self._control_block.close()
        for block in self._blocks:
            block.close()
        self._blocks.clear()


# On a Ray cluster

# How long to wait for actors to close their objects. After that, Ray takes time to end the actors.
_CLOSE_SECONDS = 1.0
# The name of the actor's thread that answers while its other thread runs a job.
_CONTROL_THREAD = "control"


class RayHost:
    """Hosts the objects of `groups` in a Ray actor, which shares no memory with the owner.

    One thread makes the objects and runs all methods except `beats` and `stop`, which run in a
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
        self._control = np.zeros(num_groups + 1, np.int64)
        self._hosted: HostedObjects | None = None
        self._failure: bytes | None = None

    def make(self) -> tuple[int, str]:
        """Make the hosted objects, and return the actor's process id and node.

        If an object cannot be made, every later job fails with the same error.
        """
        try:
            context, key, make_object = loads(self._recipe)
            enter_worker_context(**context)
            adopt_session_key(key)
            self._hosted = HostedObjects(loads(make_object), self._groups, control=self._control)
        except BaseException as error:
            self._failure = pack_exception(error, skip_frames=1)
        return os.getpid(), ray_session.import_ray().util.get_node_ip_address()

    def call(
        self, group: int, method: str, args: bytes, published: tuple[int, Any] | None
    ) -> tuple[bytes, bytes | None]:
        """Call `method` on the object of `group`; return the pickled result and any packed error.

        `published` are the version and the published tree, if the actor lacks them.
        """
        try:
            if self._hosted is None:
                return b"", self._failure
            if published is not None:
                self._hosted.published = published
            return dumps(self._hosted.call(group, method, *loads(args))), None
        except BaseException as error:
            return b"", pack_exception(error, skip_frames=1)

    def beats(self) -> int:
        """Return how often the objects have reported progress."""
        return int(self._control[1:].sum())

    def stop(self) -> None:
        """End the current job at its next step."""
        self._control[0] = 1

    def close(self) -> None:
        """Close the objects, once the current job has ended."""
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()


class RayWorkers(WorkerGroup):
    """Workers that are Ray actors, and share no memory with the owner.

    What is published is put into Ray's object store once, and workers get it with their next jobs.
    Ray must never restart an actor or repeat a call, because the state of the hosted objects would
    be lost or wrong.
    """

    # A cluster may have to start a node first, which takes minutes in a cloud.
    start_seconds = 600.0

    def _start(self) -> None:
        options = self.options.ray_options
        self._actors: list[Any] = []
        # A Ray reference to the published version and tree.
        self._published: Any = None
        self._session: ray_session.RaySession | None = ray_session.join(options.get("address"))
        try:
            self._start_actors(options.get("resources"), options.get("runtime_env"))
        except BaseException:
            self._close(0.0)
            raise

    def _start_actors(
        self, resources: dict[str, Any] | None, runtime_env: dict[str, Any] | None
    ) -> None:
        ray, session = ray_session.import_ray(), self._session
        assert session is not None
        self.num_workers = self.count_workers(max(1, int(ray.cluster_resources().get("CPU", 0))))
        # A cluster that was started for this program has no other users: reserve no cores there.
        claimed = actor_options(0 if session.started else 1, resources, runtime_env)
        actor = ray.remote(concurrency_groups={_CONTROL_THREAD: 1})(RayHost)
        actor = actor.options(scheduling_strategy="SPREAD", **claimed)
        make_object = dumps_by_value(with_settings_of_here(self.make_object))
        recipe = ray.put(dumps((worker_context(), session_key(), make_object)))
        for worker in range(self.num_workers):
            groups = self.groups_of(worker)
            self._actors.append(actor.remote(recipe, groups, self.num_groups))
        # For each worker: the process id and node, the latest count of heartbeats, and the
        # reference to the next count.
        self._made = [actor.make.remote().future() for actor in self._actors]
        self._heard = [-1] * self.num_workers
        self._next_beats = [self._ask_for_beats(worker) for worker in range(self.num_workers)]

    @property
    def pids(self) -> list[int]:
        """The process ids of the actors that have made their objects."""
        return [
            location[0] for location in map(self._location, range(self.num_workers)) if location
        ]

    def _location(self, worker: int) -> tuple[int, str] | None:
        """Return the process id and node of an actor; ``None`` if they are not known yet."""
        made = self._made[worker]
        if not made.done() or made.exception() is not None:
            return None
        location: tuple[int, str] = made.result()
        return location

    def describe(self, worker: int) -> str:
        location = self._location(worker)
        about = "not ready yet" if location is None else f"pid {location[0]} on node {location[1]}"
        return f"worker {self.name}-{worker} ({about})"

    def _is_ready(self, worker: int) -> bool:
        done: bool = self._made[worker].done()
        return done

    def _publish(self, tree: Any, version: int) -> None:
        content = version, to_device(tree, "cpu")
        self._published = ray_session.import_ray().put(content)

    def _send(self, job: Job, args: tuple[Any, ...]) -> None:
        lacking = self._published if self._lacks_weights(job.worker) else None
        call = self._actors[job.worker].call
        job.call = call.remote(job.group, job.method, dumps(args), lacking).future()

    def _result(self, job: Job) -> Any:
        try:
            value, error = job.call.result()
        except ray_session.import_ray().exceptions.RayError as death:
            location, told = self._location(job.worker), " ".join(str(death).split())
            raise WorkerDiedError(
                f"{self.describe(job.worker)} has died, and its jobs are lost: {told}",
                None if location is None else location[0],
            ) from None
        if error is not None:
            raise unpack_exception(error)
        return loads(value)

    def _wait(self, seconds: float, group: int | None) -> None:
        calls = [job.call for job in self._jobs if not job.call.done()]
        concurrent.futures.wait(calls, max(0.0, seconds), concurrent.futures.FIRST_COMPLETED)

    def _ask_for_beats(self, worker: int) -> Any:
        return self._actors[worker].beats.options(concurrency_group=_CONTROL_THREAD).remote()

    def _beats(self, worker: int) -> int:
        ray, ref = ray_session.import_ray(), self._next_beats[worker]
        if ray.wait([ref], timeout=0)[0]:
            # Ignored here: if the actor has died, its jobs report that.
            with suppress(ray.exceptions.RayError):
                self._heard[worker] = ray.get(ref)
                self._next_beats[worker] = self._ask_for_beats(worker)
        return self._heard[worker]

    def _close(self, timeout: float) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        ray, actors = ray_session.import_ray(), self._actors
        if ray.is_initialized():
            for actor in actors:
                actor.stop.options(concurrency_group=_CONTROL_THREAD).remote()
            ready = [actor for worker, actor in enumerate(actors) if self._location(worker)]
            closing = [actor.close.remote() for actor in ready]
            if closing:
                seconds = min(timeout, _CLOSE_SECONDS)
                ray.wait(closing, num_returns=len(closing), timeout=seconds)
            for actor in actors:
                ray.kill(actor, no_restart=True)
        session.leave()


def start_workers(
    make_object: Callable[[GroupContext], Any],
    num_groups: int,
    options: Workers | None = None,
    *,
    name: str = "collector",
    preload: Sequence[str] = (),
) -> WorkerGroup:
    """Start the kind of workers that `options` ask for; see `WorkerGroup`.

    Without `options`, there is one process per core. With ``Workers(0)``, this process hosts all
    groups.
    """
    options = options or Workers()
    kind = RayWorkers if options.on_ray else LocalWorkers if options.n == 0 else ProcessWorkers
    return kind(make_object, num_groups, options, name, preload)

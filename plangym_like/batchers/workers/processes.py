"""`ProcessBackend`: objects hosted in processes on this machine."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.trees import layout_of_tensors, tensor_over
from plangym_like.batchers.weights import VersionedTree
from plangym_like.batchers.workers.backend import (
    Backend,
    Call,
    GroupContext,
    HostedObjects,
    Hosting,
    ObjectMaker,
    control_layout,
)
from plangym_like.processes import start_methods
from plangym_like.processes.child import check_can_start
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle, WorkerPool
from plangym_like.processes.shared_memory import SharedBlock, as_bytes, attach
from plangym_like.processes.wire import dumps
from plangym_like.results import Stats
from plangym_like.vector.memory import SharedArrays
from plangym_like.vector.tree import Leaf

# Imported once in the fork server from which workers are forked.
_PRELOAD = ("torch", "plangym_like.batchers.workers.processes")
# Arrays of smaller results are sent in messages.
_MOST_SENT_NBYTES = 1 << 16
_ALIGNMENT = 64


class Shipment(NamedTuple):
    """A result on its way from a worker to the owner.

    Attributes
    ----------
    content : bytes
        The result, pickled without its arrays.
    arrays : list of bytearray, or list of int
        The bytes of the arrays; or their numbers of bytes, if they are in the lent memory.
    """

    content: bytes
    arrays: Any

    @property
    def is_in_memory(self) -> bool:
        """Whether the arrays are in the lent memory."""
        return bool(self.arrays) and isinstance(self.arrays[0], int)

    def nbytes(self) -> int:
        """Return how much memory the arrays need."""
        sizes = self.arrays if self.is_in_memory else map(len, self.arrays)
        return sum(map(_padded, sizes))

    def open(self, memory: NDArray[np.uint8] | None) -> Any:
        """Return the result; its arrays share the lent `memory`, if they are in it."""
        arrays = self.arrays
        if self.is_in_memory:
            assert memory is not None
            starts = np.cumsum([0, *map(_padded, arrays)]).tolist()
            arrays = [memory[at : at + size] for at, size in zip(starts, arrays, strict=False)]
        return pickle.loads(self.content, buffers=arrays)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def ship(result: Any, memory: NDArray[np.uint8] | None) -> Shipment:
    """Put the arrays of `result` into `memory` if they are large and fit; return the shipment."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        content = pickle.dumps(result, 5, buffer_callback=buffers.append)
    except Exception:  # classes that the owner cannot import, which `dumps` pickles by value
        return Shipment(dumps(result), [])
    arrays = [np.frombuffer(each.raw(), np.uint8) for each in buffers]
    nbytes = sum(_padded(array.size) for array in arrays)
    if memory is None or not _MOST_SENT_NBYTES < nbytes <= memory.size:
        return Shipment(content, [bytearray(array) for array in arrays])
    at = 0
    for array in arrays:
        memory[at : at + array.size] = array
        at += _padded(array.size)
    return Shipment(content, [array.size for array in arrays])


class ProcessHost(HostedObjects):
    """Objects in a worker process, and the memory that its owner lends it for results."""

    def __init__(
        self, make_object: Callable[[GroupContext], Any], groups: Sequence[int]
    ) -> None:
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        super().__init__(make_object, groups)

    def attach_block(self, number: int, *, fds: Sequence[int]) -> None:
        """Map a block of memory that the owner will lend by its `number`."""
        self._blocks[number] = attach(fds[0])

    def call_and_ship(self, block: int | None, group: int, method: str, args: Any) -> Shipment:
        """Call `method` of the object of `group`; put a large result into the lent `block`."""
        result = self.call(group, method, *args)
        return ship(result, None if block is None else self._blocks[block])


class ProcessBackend(Backend):
    """Worker processes. Weights and large results are in shared memory; other data is pickled.

    Workers are not replaced when they die, because the state of their objects is lost.
    """

    def __init__(self, hosting: Hosting) -> None:
        check_can_start()
        super().__init__(hosting)
        start_method = hosting.workers.start_method
        self.num_workers = hosting.count_workers(len(os.sched_getaffinity(0)))
        self._memories: list[SharedArrays] = []
        self._published: dict[str, tuple[SharedArrays, VersionedTree]] = {}
        self._workers: list[WorkerHandle] = []
        self._pool = WorkerPool(self._workers, counts=Stats())
        # The memory for results: the size that the largest one needs, the blocks that are free for
        # each worker, and for each call the worker and the block lent to it.
        self._nbytes = 0
        self._free: list[list[SharedBlock]] = [[] for _ in range(self.num_workers)]
        self._lent: dict[Call, tuple[int, SharedBlock | None]] = {}
        try:
            preload = (*_PRELOAD, *hosting.preload)
            if start_method == "forkserver":
                start_methods.warm_up(preload)
            make_object = ObjectMaker(hosting.make_object)
            for number in range(self.num_workers):
                groups = hosting.groups_of(number, self.num_workers)
                process = ExternalProcess(
                    partial(ProcessHost, make_object, groups),
                    start_method=start_method,
                    preload=preload,
                    name=f"{hosting.name}-{number}",
                )
                self._workers.append(WorkerHandle(process, number))
            self._pool = WorkerPool(self._workers, counts=Stats())
            self._control = self._share("control", "", control_layout(hosting.num_groups)).arrays
        except BaseException:
            self.close(0.0)
            raise

    def _share(self, kind: str, name: str, layout: Any) -> SharedArrays:
        """Make shared memory, and let all workers map it; see `HostedObjects.attach`."""
        shared = SharedArrays(layout, tensor_over)
        self._memories.append(shared)
        for worker in self._workers:
            worker.process.apply(HostedObjects.attach, kind, name, layout, fds=[shared.fd])
        return shared

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def describe(self, worker: int) -> str:
        return f"worker {self.hosting.name}-{worker} (pid {self._workers[worker].process.pid})"

    def is_ready(self, worker: int) -> bool:
        # Ignored here: if the constructor of an object raised, every call raises the same error.
        with suppress(Exception):
            self._workers[worker].become_ready()
        return self._workers[worker].ready

    def publish(self, name: str, tree: Any, version: int) -> None:
        layout = {"version": Leaf((1,), torch.int64), "tree": layout_of_tensors(tree)}
        shared, target = self._published.get(name, (None, None))
        if shared is not None and shared.layout != layout:
            self._memories.remove(shared)
            shared.close()
            target = None
        if target is None:
            shared = self._share("published", name, layout)
            target = VersionedTree(shared.arrays, shared.fd)
            self._published[name] = shared, target
        target.write(tree, version, self.hosting.workers.timeout)

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        worker = group % self.num_workers
        process, free = self._workers[worker].process, self._free[worker]
        block = None
        if self._nbytes > _MOST_SENT_NBYTES:
            while free and block is None:
                block = free.pop()
                block = block if block.nbytes >= self._nbytes else None
            if block is None:
                # Sizes are powers of two, so that few blocks are replaced as results get larger.
                block = SharedBlock(1 << (self._nbytes - 1).bit_length())
                process.apply(ProcessHost.attach_block, block.number, fds=[block.fd])
        number = None if block is None else block.number
        call = process.apply(ProcessHost.call_and_ship, number, group, method, args)
        self._lent[call] = worker, block
        return call

    def result(self, call: Call) -> Any:
        try:
            shipment: Shipment = call.result()
        except BaseException:
            self.release(call)
            raise
        self._nbytes = max(self._nbytes, shipment.nbytes())
        _, block = self._lent[call]
        if not shipment.is_in_memory:
            self.release(call)
        return shipment.open(None if block is None else as_bytes(block.memory))

    def release(self, call: Call) -> None:
        worker, block = self._lent.pop(call, (0, None))
        if block is not None:
            self._free[worker].append(block)

    def wait(self, seconds: float, group: int | None) -> None:
        self._pool.wait(max(0.0, seconds))

    def beats(self, worker: int) -> int:
        beats = self._control["beats"].tolist()
        return sum(beats[group] for group in self.hosting.groups_of(worker, self.num_workers))

    def close(self, timeout: float) -> None:
        if self._memories:
            # Running jobs end at their next step.
            self._memories[0].arrays["stop"].fill_(1)
        self._pool.close(timeout)
        self._workers.clear()
        for memory in self._memories:
            memory.close()
        lent = [block for _, block in self._lent.values() if block is not None]
        for block in sum(self._free, lent):
            block.close()
        self._lent.clear()

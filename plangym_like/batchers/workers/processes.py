"""`ProcessBackend`: objects hosted in processes on this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from plangym_like.batchers.trees import layout_of_tensors, tensor_over
from plangym_like.batchers.weights import VersionedTree
from plangym_like.batchers.workers.backend import (
    Backend,
    Call,
    HostedObjects,
    Hosting,
    ObjectMaker,
    control_layout,
)
from plangym_like.processes import start_methods
from plangym_like.processes.child import check_can_start
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle, WorkerPool
from plangym_like.results import Stats
from plangym_like.vector.memory import SharedArrays
from plangym_like.vector.tree import Leaf, take, with_axes

# Imported once in the fork server from which workers are forked.
_PRELOAD = ("torch", "plangym_like.batchers.workers.backend")


class ProcessBackend(Backend):
    """Worker processes. Weights and buffers are in shared memory; other data is pickled.

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
        try:
            preload = (*_PRELOAD, *hosting.preload)
            if start_method == "forkserver":
                start_methods.warm_up(preload)
            make_object = ObjectMaker(hosting, compares=start_method != "fork")
            for number in range(self.num_workers):
                groups = hosting.groups_of(number, self.num_workers)
                process = ExternalProcess(
                    partial(HostedObjects, make_object, groups),
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

    def make_buffers(self, name: str, layout: Any, count: int) -> Any:
        arrays = self._share("buffers", name, with_axes(layout, (count,))).arrays
        return [take(arrays, index) for index in range(count)]

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        process = self._workers[group % self.num_workers].process
        return process.call("call", group, method, *args)

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

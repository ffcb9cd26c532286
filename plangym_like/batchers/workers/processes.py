"""`ProcessWorkers`: objects hosted in processes on this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Any

from plangym_like.batchers.trees import tensor_over
from plangym_like.batchers.workers.backend import (
    CONTROL,
    Call,
    HostedObjects,
    ObjectMaker,
    PoolOptions,
    Workers,
    control_layout,
)
from plangym_like.processes import start_methods
from plangym_like.processes.child import check_can_start
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle, WorkerPool
from plangym_like.results import Stats
from plangym_like.vector.memory import SharedArrays

# Imported once in the fork server from which workers are forked.
_PRELOAD = ("torch", "plangym_like.batchers.workers.backend")


class ProcessWorkers(Workers):
    """Worker processes. Weights and buffers are in shared memory; other data is pickled.

    Workers are not replaced when they die, because the state of their objects is lost.

    Parameters
    ----------
    options : PoolOptions
    start_method : {"forkserver", "spawn", "fork"}
    """

    def __init__(self, options: PoolOptions, start_method: str) -> None:
        check_can_start()
        super().__init__(options)
        cores = len(os.sched_getaffinity(0))
        self.num_workers = options.count_workers(cores)
        self._control = SharedArrays(control_layout(options.num_groups), tensor_over)
        self._workers: list[WorkerHandle] = []
        self._pool = WorkerPool(self._workers, counts=Stats())
        try:
            preload = (*_PRELOAD, *options.preload)
            if start_method == "forkserver":
                start_methods.warm_up(preload)
            make_object = ObjectMaker(options, compares=start_method != "fork")
            for number in range(self.num_workers):
                groups = options.groups_of(number, self.num_workers)
                process = ExternalProcess(
                    partial(HostedObjects, make_object, groups),
                    start_method=start_method,
                    preload=preload,
                    name=f"{options.name}-{number}",
                )
                self._workers.append(WorkerHandle(process, number))
            self._pool = WorkerPool(self._workers, counts=Stats())
            self.share(CONTROL, self._control)
        except BaseException:
            self.close(0.0)
            raise

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def describe(self, worker: int) -> str:
        return f"worker {self.options.name}-{worker} (pid {self._workers[worker].process.pid})"

    def is_ready(self, worker: int) -> bool:
        # Ignored here: if the constructor of an object raised, every call raises the same error.
        with suppress(Exception):
            self._workers[worker].become_ready()
        return self._workers[worker].ready

    def share(self, name: str, shared: Any) -> None:
        for worker in self._workers:
            worker.process.apply(HostedObjects.attach, name, shared.layout, fds=[shared.fd])

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        process = self._workers[group % self.num_workers].process
        return process.call("call", group, method, *args)

    def wait(self, seconds: float, group: int | None) -> None:
        self._pool.wait(max(0.0, seconds))

    def beats(self, worker: int) -> int:
        beats = self._control.arrays["beats"].tolist()
        return sum(beats[group] for group in self.options.groups_of(worker, self.num_workers))

    def close(self, timeout: float) -> None:
        # Running jobs end at their next step.
        self._control.arrays["stop"].fill_(1)
        self._pool.close(timeout)
        self._workers.clear()
        self._control.close()
        super().close(timeout)

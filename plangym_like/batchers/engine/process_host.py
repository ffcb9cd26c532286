"""Residents in processes of this machine."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from plangym_like.batchers.engine.hosts import Call, Staff
from plangym_like.batchers.engine.pools import Pool, SharedPool
from plangym_like.batchers.engine.residents import CONTROL, Residents, control_layout
from plangym_like.batchers.engine.shared_nest import SharedNest
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.promise import Promise

# Imported once in the fork server from which workers are forked.
_PRELOAD = ("torch", "plangym_like.batchers.engine.residents")


class ProcessHost:
    """See `Host`. Everything but numbers travels through shared memory.

    Parameters
    ----------
    staff : Staff
    start_method : {"forkserver", "spawn", "fork"}
    """

    start_seconds = 60.0

    def __init__(self, staff: Staff, start_method: str) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        wanted = cores if staff.num_workers is None else staff.num_workers
        self.num_workers = min(wanted, staff.num_groups)
        self._staff = staff
        self._control = SharedNest(control_layout(staff.num_groups))
        self._processes: list[ExternalProcess] = []
        try:
            for worker in range(self.num_workers):
                self._processes.append(self._launch(worker, start_method))
            # Its answer comes when the residents have been made.
            self._made = self.share(CONTROL, self._control)
        except BaseException:
            self.close(0.0)
            raise

    def _launch(self, worker: int, start_method: str) -> ExternalProcess:
        make_resident = self._staff.make_resident
        groups = self._staff.groups_of(worker, self.num_workers)
        return ExternalProcess(
            lambda: Residents(make_resident, groups),
            start_method=start_method,
            preload=(*_PRELOAD, *self._staff.preload),
            name=f"{self._staff.name}-{worker}",
        )

    @property
    def pids(self) -> list[int]:
        """See `Host`."""
        return [process.pid for process in self._processes]

    def where(self, worker: int) -> str:
        """See `Host`."""
        return f"worker {self._staff.name}-{worker} (pid {self._processes[worker].pid})"

    def stands(self, worker: int) -> bool:
        """See `Host`."""
        return self._made[worker].done()

    def share(self, name: str, shared: Any) -> list[Promise]:
        """See `Host`."""
        return [
            process.apply(_attach, name, shared.layout, fds=[shared.fd])
            for process in self._processes
        ]

    def renew(self, name: str) -> None:
        """See `Host`; here it is the same memory."""

    def make_pool(
        self, name: str, layout: Any, count: int, group: int | None
    ) -> tuple[Pool, Sequence[Call]]:
        """See `Host`."""
        pool = SharedPool(layout, count)
        return pool, self.share(name, pool.shared)

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Promise:
        """See `Host`."""
        process = self._processes[group % self.num_workers]
        return process.call("do", group, method, *args)

    def listen(self, seconds: float, wanted: Call | None) -> None:
        """See `Host`."""
        poller = select.poll()
        speakers: dict[int, ExternalProcess] = {}
        for process in self._processes:
            for descriptor in (process.fileno(), process.sentinel):
                if descriptor is not None and descriptor >= 0:
                    speakers[descriptor] = process
                    poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(max(0.0, seconds) * 1000):
            speakers[descriptor].drain()

    def beats(self, worker: int) -> int:
        """See `Host`."""
        self._processes[worker].drain()
        beats = self._control.tensors["beats"].tolist()
        return sum(beats[group] for group in self._staff.groups_of(worker, self.num_workers))

    def close(self, timeout: float) -> None:
        """See `Host`; workers close what they host, and who does not is killed."""
        processes, self._processes = self._processes, []
        self._control.tensors["stop"].fill_(1)
        deadline = time.monotonic() + timeout
        with suppress(Exception):
            farewells = [process.call("close") for process in processes]
            for farewell in farewells:
                with suppress(Exception):
                    farewell(max(0.0, deadline - time.monotonic()))
        for process in processes:
            process.close(0.2 if time.monotonic() < deadline else 0.0)
        self._control.close()


def _attach(residents: Residents, name: str, layout: Any, *, fds: Sequence[int]) -> None:
    residents.attach(name, layout, fds=fds)

"""`LocalWorkers`: objects hosted in the caller's own process."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch

from plangym_like.batchers.engine.hosted_objects import HostedObjects
from plangym_like.batchers.engine.workers import Call, PoolOptions, Workers


class LocalWorkers(Workers):
    """A single worker: the caller's own process, in which `wait` executes the calls.

    All objects are made when `wait` executes the first call.
    """

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        self._memory: dict[str, Any] = {}
        self._hosted: HostedObjects | None = None
        self._calls: list[tuple[int, str, tuple[Any, ...], Future[Any]]] = []

    def describe(self, worker: int) -> str:
        return "this process"

    def is_ready(self, worker: int) -> bool:
        return True

    def share(self, name: str, shared: Any) -> None:
        self._memory[name] = shared.arrays

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        future: Future[Any] = Future()
        self._calls.append((group, method, args, future))
        return future

    def wait(self, seconds: float, group: int | None) -> None:
        """Execute the next call; if `group` is given, the next call of that group."""
        chosen = next((call for call in self._calls if group in (None, call[0])), None)
        if chosen is None:
            return
        *call, future = chosen
        # The call is done already if an interrupt came before it was removed from the list.
        if not future.done():
            self._make(call, future)
        self._calls.remove(chosen)

    def _make(self, call: list[Any], future: Future[Any]) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if self._hosted is None:
                options, groups = self.options, range(self.options.num_groups)
                self._hosted = HostedObjects(
                    options.make_object, groups, self._memory, own_process=False
                )
            group, method, args = call
            future.set_result(self._hosted.call(group, method, *args))
        except Exception as error:
            future.set_exception(error)
        finally:
            torch.set_num_threads(threads)

    def close(self, timeout: float) -> None:
        super().close(timeout)
        self._calls.clear()
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()

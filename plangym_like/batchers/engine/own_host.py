"""Residents in the caller's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plangym_like.batchers.engine.hosts import Staff
from plangym_like.batchers.engine.pools import Pool, SharedPool
from plangym_like.batchers.engine.residents import Residents


class _OwnCall:
    """Something that is done when somebody listens."""

    settled = False

    def __init__(self, group: int, method: str, args: tuple[Any, ...]) -> None:
        self.group, self.method, self.args = group, method, args
        self._result: Any = None
        self._error: Exception | None = None

    def settle(self, result: Any, error: Exception | None = None) -> None:
        self._result, self._error, self.settled = result, error, True

    def __call__(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class OwnHost:
    """See `Host`. Residents are made when the first of them is needed."""

    num_workers = 1
    start_seconds = 0.0

    def __init__(self, staff: Staff) -> None:
        self._staff = staff
        self._memory: dict[str, Any] = {}
        self._residents: Residents | None = None
        self._calls: list[_OwnCall] = []

    @property
    def pids(self) -> list[int]:
        """See `Host`."""
        return []

    def where(self, worker: int) -> str:
        """See `Host`."""
        return "this process"

    def stands(self, worker: int) -> bool:
        """See `Host`."""
        return True

    def share(self, name: str, shared: Any) -> list[_OwnCall]:
        """See `Host`."""
        self._memory[name] = shared.tensors
        return []

    def renew(self, name: str) -> None:
        """See `Host`; here it is the same memory."""

    def make_pool(
        self, name: str, layout: Any, count: int, group: int | None
    ) -> tuple[Pool, Sequence[_OwnCall]]:
        """See `Host`."""
        pool = SharedPool(layout, count)
        return pool, self.share(name, pool.shared)

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> _OwnCall:
        """See `Host`."""
        self._calls.append(_OwnCall(group, method, args))
        return self._calls[-1]

    def listen(self, seconds: float, wanted: Any) -> None:
        """Do `wanted`, or else the first call, after what was asked of its group before."""
        if not self._calls:
            return
        wanted = self._calls[0] if wanted is None else wanted
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for call in [call for call in self._calls if call.group == wanted.group]:
                # A Ctrl-C may have come before a call that was done could be removed.
                if not call.settled:
                    try:
                        call.settle(self._hosted().do(call.group, call.method, *call.args))
                    except Exception as error:
                        call.settle(None, error)
                self._calls.remove(call)
                if call is wanted:
                    break
        finally:
            torch.set_num_threads(threads)

    def _hosted(self) -> Residents:
        if self._residents is None:
            groups, memory = range(self._staff.num_groups), self._memory
            self._residents = Residents(self._staff.make_resident, groups, memory, alone=False)
        return self._residents

    def beats(self, worker: int) -> int:
        """See `Host`."""
        return 0

    def close(self, timeout: float) -> None:
        """See `Host`."""
        self._calls.clear()
        residents, self._residents = self._residents, None
        if residents is not None:
            residents.close()

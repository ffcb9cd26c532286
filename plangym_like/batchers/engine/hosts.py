"""What a crew asks of the place where its residents live, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plangym_like.batchers.engine.pools import Pool
from plangym_like.batchers.engine.residents import Workplace


@dataclass(frozen=True)
class Staff:
    """Who is to be hosted: an object for each group, made by `make_resident`.

    Attributes
    ----------
    num_workers : int or None
        Processes, ``None`` for as many as the host has cores.
    timeout : float
        Seconds without progress after which a worker counts as hung.
    name : str
        What the workers are called, with a number.
    preload : sequence of str
        Modules that all of them need.
    """

    make_resident: Callable[[Workplace], Any]
    num_groups: int
    num_workers: int | None
    timeout: float
    name: str
    preload: Sequence[str]

    def groups_of(self, worker: int, num_workers: int) -> list[int]:
        """Return the groups that `worker` hosts, of so many workers."""
        return list(range(worker, self.num_groups, num_workers))


class Call(Protocol):
    """Something that a worker was asked to do."""

    @property
    def settled(self) -> bool:
        """Whether the outcome has been taken in, without looking for it."""

    def __call__(self) -> Any:
        """Return the result, or raise what it failed with; again is fine."""


class Host(Protocol):
    """Workers, by their numbers: group g lives in worker ``g % num_workers``.

    Attributes
    ----------
    num_workers : int
    start_seconds : float
        For how long a worker may be made before it counts as hung, at least.
    """

    num_workers: int
    start_seconds: float

    @property
    def pids(self) -> list[int]:
        """The process ids of workers that have processes of their own."""

    def where(self, worker: int) -> str:
        """Return what errors call a worker."""

    def stands(self, worker: int) -> bool:
        """Return whether the residents of a worker are known to have been made."""

    def share(self, name: str, shared: Any) -> Sequence[Call]:
        """Let all workers see `shared`, and return what has been asked of each for that."""

    def renew(self, name: str) -> None:
        """Let what was shared under `name` be seen as it is now, by what is called from now on."""

    def make_pool(
        self, name: str, layout: Any, count: int, group: int | None
    ) -> tuple[Pool, Sequence[Call]]:
        """Make a pool (see `Crew.make_pool`), and return what has been asked of each worker too."""

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        """Have a method of a group's resident called, after what was called before."""

    def listen(self, seconds: float, wanted: Call | None) -> None:
        """Wait for outcomes, of `wanted` above all, but no longer than `seconds`."""

    def beats(self, worker: int) -> int:
        """Return how much progress a worker has made, as far as that is known."""

    def close(self, timeout: float) -> None:
        """End all workers within little more than `timeout` seconds."""

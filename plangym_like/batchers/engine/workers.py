"""`Workers`: the base class of the three kinds of workers that host objects."""

from __future__ import annotations

import abc
import concurrent.futures
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from plangym_like.batchers.engine.group_context import GroupContext
from plangym_like.batchers.engine.tensor_tree import tensor_over
from plangym_like.execution.known_ids import know, known_ids
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.results import Future
from plangym_like.vector.make_lanes import Sample, compare_sample, sample_episode
from plangym_like.vector.memory import SharedArrays
from plangym_like.vector.tree import take, with_axes

# The future of a method call.
Call = Future[Any] | concurrent.futures.Future[Any]

# How long a copy of the caller may take to make and play environments.
_COPY_SECONDS = 10.0


@dataclass(frozen=True)
class PoolOptions:
    """The objects that workers host, and the number of workers to start.

    Attributes
    ----------
    make_object : callable
        Given a `GroupContext`, returns the object of its group.
    num_groups : int
    num_workers : int or None
        ``None`` starts one per core. There are never more workers than groups.
    timeout : float
        Seconds without progress after which a worker counts as hung.
    name : str
        What to call workers in error messages; the number of the worker is appended.
    preload : sequence of str
        Modules that all workers use; a fork server imports them once.
    sample : Sample or None
        Makes one environment like those of the objects; workers compare it with the caller's.
    """

    make_object: Callable[[GroupContext], Any]
    num_groups: int
    num_workers: int | None
    timeout: float
    name: str
    preload: Sequence[str]
    sample: Sample | None = None

    def count_workers(self, num_cores: int) -> int:
        """Return how many workers to start on a machine or cluster with `num_cores` cores."""
        wanted = num_cores if self.num_workers is None else self.num_workers
        return min(wanted, self.num_groups)

    def groups_of(self, worker: int, num_workers: int) -> list[int]:
        """Return the groups that `worker` hosts if there are `num_workers` workers."""
        return list(range(worker, self.num_groups, num_workers))


class Workers(abc.ABC):
    """The workers of a `WorkerGroup`, numbered from 0.

    Worker ``g % num_workers`` hosts the object of group g.

    Parameters
    ----------
    options : PoolOptions

    Attributes
    ----------
    num_workers : int
    start_seconds : float
        How many seconds a worker may take to make its objects, unless `timeout` is longer.
    """

    num_workers = 1
    start_seconds = 60.0

    def __init__(self, options: PoolOptions) -> None:
        self.options = options
        self._shared_buffers: list[SharedArrays] = []

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers; empty if the worker is this process."""
        return []

    @abc.abstractmethod
    def describe(self, worker: int) -> str:
        """Return the name of a worker for error messages."""

    @abc.abstractmethod
    def is_ready(self, worker: int) -> bool:
        """Return whether the worker is known to have made its objects."""

    @abc.abstractmethod
    def share(self, name: str, shared: Any) -> None:
        """Make `shared` available to later jobs; see `WorkerGroup.share`."""

    def mark_changed(self, name: str) -> None:
        """Let later jobs see the new content of the memory shared as `name`."""

    def make_buffers(self, name: str, layout: Any, count: int, group: int | None) -> Any:
        """Make buffers that hosted objects fill; see `WorkerGroup.make_buffers`."""
        shared = SharedArrays(with_axes(layout, (count,)), tensor_over)
        self._shared_buffers.append(shared)
        self.share(name, shared)
        return [take(shared.arrays, index) for index in range(count)]

    @abc.abstractmethod
    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        """Call `method` on the object of `group`, after all earlier calls for that group."""

    @abc.abstractmethod
    def wait(self, seconds: float, group: int | None) -> None:
        """Wait at most `seconds` for a call to finish.

        If this process is the worker, run a call instead: a call of `group`, if `group` is given.
        """

    def beats(self, worker: int) -> int:
        """Return how many times the worker has reported progress, as far as is known."""
        return 0

    @abc.abstractmethod
    def close(self, timeout: float) -> None:
        """Close the hosted objects; kill workers still running after about `timeout` seconds.

        Nested tensors that were already read from the workers' memory stay valid.
        """
        for shared in self._shared_buffers:
            shared.close()


class ObjectMaker:
    """Makes the objects of a worker, with the settings of the process that started the worker.

    The settings are the registered ids, which decide what environments a factory makes, and torch's
    default dtype (one of `KnownIds`) and precision, which decide how an actor computes. Before the
    first object is made, a short episode of a new environment is compared with one of the caller,
    which a copy of the caller's process has played. So the caller makes no environment itself.

    Parameters
    ----------
    options : PoolOptions
    compares : bool
        Whether to compare the short episodes.
    """

    def __init__(self, options: PoolOptions, *, compares: bool = True) -> None:
        self._make_object, self._sample = options.make_object, options.sample
        self._ids, self._precision = known_ids(), torch.get_float32_matmul_precision()
        self._expected: ShortEpisode | None = None
        if compares and options.sample is not None:
            self._expected = _episode_of_copy(options.sample)
        self._is_prepared = False

    def __call__(self, context: GroupContext) -> Any:
        """Return the object of a group; runs in the worker."""
        if not self._is_prepared:
            know(self._ids)
            torch.set_float32_matmul_precision(self._precision)
            if self._sample is not None and self._expected is not None:
                compare_sample(self._sample, self._expected)
            self._is_prepared = True
        return self._make_object(context)


def _episode_of_copy(sample: Sample) -> ShortEpisode | None:
    """Return `sample_episode`, played in a copy of this process, or ``None`` if this fails.

    It is not tried once JAX is imported, because JAX's threads make such copies hang.
    """
    if "jax" in sys.modules:
        return None
    try:
        with warnings.catch_warnings():
            # Python warns that a copy of a process with threads may hang.
            warnings.simplefilter("ignore")
            copy = ExternalProcess(partial(_silent_episode, sample), start_method="fork")
        try:
            episode: ShortEpisode | None = copy.apply(_itself).result(_COPY_SECONDS)
            return episode
        finally:
            copy.close(0.0)
    except Exception:
        return None


def _silent_episode(sample: Sample) -> ShortEpisode | None:
    # What an environment prints is printed by the workers, too.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    try:
        return sample_episode(sample)
    except BaseException:  # also `SystemExit`, which would end the caller
        return None


def _itself(hosted: Any) -> Any:
    return hosted

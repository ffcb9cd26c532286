"""`Workers`: where objects are hosted; and `HostedObjects`, the objects that one worker hosts.

The worker can be this process (`LocalWorkers`), a process (`workers.processes`) or an actor on a
Ray cluster (`workers.ray`).
"""

from __future__ import annotations

import abc
import concurrent.futures
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from plangym_like.batchers.trees import tensor_over
from plangym_like.execution.known_ids import know, known_ids
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.results import Future
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.vector.make_lanes import Sample, compare_sample, sample_episode
from plangym_like.vector.memory import SharedArrays, attach_arrays
from plangym_like.vector.tree import Leaf, take, tree_leaves, with_axes

# The name of the memory that holds heartbeats and the flag that stops all work.
CONTROL = "control"
# ``send(name, index, tree)`` sends `tree` to the owner: the content of buffer `index` of `name`.
Send = Callable[[str, int, Any], None]


def control_layout(num_groups: int) -> Any:
    """Return the layout of the control memory: a heartbeat for each group, and the stop flag."""
    return {"beats": Leaf((num_groups,), torch.int64), "stop": Leaf((1,), torch.int64)}


class StoppedError(Exception):
    """Raised in a job to end it early, because the owner is closing its workers."""


class GroupContext:
    """Connects the object of one group to the owner of the workers.

    Attributes
    ----------
    group : int
        The group's number.
    memory : dict of str to tree of torch.Tensor
        The memory that `WorkerGroup.share` and `make_buffers` have shared so far, by name.
    own_process : bool
        Whether the worker has a separate process. If not, it runs in the owner's process.
    """

    def __init__(
        self, group: int, memory: dict[str, Any], *, own_process: bool, send: Send | None = None
    ) -> None:
        self.group = group
        self.memory = memory
        self.own_process = own_process
        self._send = send
        self._beats: memoryview | None = None
        self._stop: memoryview | None = None

    def beat(self) -> None:
        """Report progress to the owner; a hosted object calls this at least once per step.

        Raises
        ------
        StoppedError
            The owner is closing its workers.
        """
        if self._beats is None or self._stop is None:
            control = self.memory.get(CONTROL)
            if control is None:
                return
            self._beats = memoryview(control["beats"].numpy())
            self._stop = memoryview(control["stop"].numpy())
        self._beats[self.group] += 1
        if self._stop[0]:
            raise StoppedError("the workers are being closed")

    def local_index(self, name: str, index: int) -> int:
        """Return the index in ``memory[name]`` at which buffer `index` is stored.

        Memory that is not shared with the owner may hold fewer buffers than the owner has.
        """
        return index % len(tree_leaves(self.memory[name])[0])

    def publish(
        self, name: str, index: int, trim: Callable[[Any], Any] = lambda content: content
    ) -> None:
        """Let the owner read buffer `index` of the buffers called `name` once the job is done.

        Parameters
        ----------
        name : str
        index : int
        trim : callable
            Given the buffer's content, returns the part that the owner needs.
        """
        if self._send is not None:
            content = take(self.memory[name], self.local_index(name, index))
            self._send(name, index, trim(content))


class HostedObjects:
    """One object for each of `groups`. The objects are made in the order of `groups`.

    Parameters
    ----------
    make_object : callable
        Given a `GroupContext`, returns the object of its group.
    groups : sequence of int
    memory : dict, optional
        Memory that is shared from the beginning, by name.
    own_process : bool
        Whether the process does nothing but host these objects. If so, torch uses one thread.
    send : callable, optional
        Sends buffers to the owner; needed if this worker shares no memory with the owner.
    """

    def __init__(
        self,
        make_object: Callable[[GroupContext], Any],
        groups: Sequence[int],
        memory: dict[str, Any] | None = None,
        *,
        own_process: bool = True,
        send: Send | None = None,
    ) -> None:
        if own_process:
            torch.set_num_threads(1)
        self._own_process = own_process
        self.memory: dict[str, Any] = {} if memory is None else memory
        self._objects: dict[int, Any] = {}
        self._failure: BaseException | None = None
        trials = KnownTrials()
        for group in groups:
            context = GroupContext(group, self.memory, own_process=own_process, send=send)
            try:
                with trials_shared(trials):
                    self._objects[group] = self._guarded(make_object, context)
            except BaseException:
                with suppress(Exception):
                    self.close()
                raise

    def attach(self, name: str, layout: Any, *, fds: Sequence[int]) -> None:
        """Map shared memory as ``memory[name]``. If this fails, every later `call` fails too."""
        (fd,) = fds
        try:
            self.memory[name] = attach_arrays(fd, layout, tensor_over)
        except BaseException as error:
            self._failure = error
            raise

    def call(self, group: int, method: str, *args: Any) -> Any:
        """Call `method` on the object of `group`, and return its result."""
        if self._failure is not None:
            raise self._failure
        return self._guarded(getattr(self._objects[group], method), *args)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function`; turn exceptions that would end a loop or process into `RuntimeError`.

        They are `StopIteration`, `SystemExit`, `KeyboardInterrupt` and `GeneratorExit`. In the
        owner's process, all but `StopIteration` are raised unchanged.
        """
        try:
            return function(*args)
        except StopIteration as error:
            raise RuntimeError("an environment, actor or factory raised StopIteration") from error
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            if not self._own_process:
                raise
            raise RuntimeError(f"an environment, actor or factory raised {error!r}") from error

    def close(self) -> None:
        """Close all objects that have a ``close`` method, then raise the first error, if any."""
        failures: list[Exception] = []
        for hosted in self._objects.values():
            try:
                getattr(hosted, "close", bool)()
            except Exception as error:
                failures.append(error)
        self._objects.clear()
        if failures:
            raise failures[0]


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


class LocalWorkers(Workers):
    """A single worker: the caller's own process, in which `wait` executes the calls.

    All objects are made when `wait` executes the first call.
    """

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        self._memory: dict[str, Any] = {}
        self._hosted: HostedObjects | None = None
        self._calls: list[tuple[int, str, tuple[Any, ...], concurrent.futures.Future[Any]]] = []

    def describe(self, worker: int) -> str:
        return "this process"

    def is_ready(self, worker: int) -> bool:
        return True

    def share(self, name: str, shared: Any) -> None:
        self._memory[name] = shared.arrays

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
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

    def _make(self, call: list[Any], future: concurrent.futures.Future[Any]) -> None:
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

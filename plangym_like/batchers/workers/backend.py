"""`Workers`: how many workers a batcher has, and where; and what the three kinds have in common.

A worker is this process (`LocalBackend`), another process, or an actor on a Ray cluster
(`workers.remote`). It hosts objects, `HostedObjects`, and each of these has a `GroupContext`.
"""

from __future__ import annotations

import abc
import concurrent.futures
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from plangym_like.batchers.trees import tensor_over
from plangym_like.batchers.weights import VersionedTree
from plangym_like.cluster import ray_session
from plangym_like.cluster.sites import check_resources
from plangym_like.errors import InputError
from plangym_like.execution.known_ids import KnownIds, know, known_ids
from plangym_like.processes.start_methods import check_start_method
from plangym_like.results import Future
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.support.arguments import as_count, check_seconds
from plangym_like.vector.memory import attach_arrays
from plangym_like.vector.tree import Leaf

# The future of a method call.
Call = Future[Any] | concurrent.futures.Future[Any]

_RAY_OPTIONS = ("address", "resources", "runtime_env")


@dataclass(frozen=True)
class Workers:
    """How many workers a batcher has, where they run, and when one counts as hung.

    Parameters
    ----------
    n : int, optional
        The number of workers; ``None`` starts one per core of this machine or of the cluster. There
        are never more than there are groups of environments. With 0, this process does the work.
    start_method : {"forkserver", "spawn", "fork"}
        How processes are started; see `plangym_like.ExternalProcess`.
    timeout : float
        Seconds without a step after which a worker counts as hung.
    ray : bool or dict
        ``True`` starts actors on a Ray cluster instead of processes. A dict does the same, with
        the options ``address``, ``resources`` and ``runtime_env`` of `plangym_like.RayEnv`. By
        default, each actor claims one core, or none if this program starts a local Ray.

    Raises
    ------
    InputError
        An argument is invalid.
    MissingExtraError
        `ray` is true, but Ray is not installed.

    Examples
    --------
    >>> Workers(4, timeout=120.0)
    Workers(n=4, start_method='forkserver', timeout=120.0, ray=False)
    """

    n: int | None = None
    start_method: str = "forkserver"
    timeout: float = 30.0
    ray: bool | Mapping[str, Any] = False

    def __post_init__(self) -> None:
        if self.n is not None:
            as_count("the number of workers", self.n, 0)
        check_start_method(self.start_method)
        check_seconds("timeout", self.timeout)
        if not isinstance(self.ray, bool | Mapping):
            raise InputError(f"ray must be True, False or a dict of options, got {self.ray!r}")
        if unknown := self.ray_options.keys() - set(_RAY_OPTIONS):
            raise InputError(f"ray takes {', '.join(_RAY_OPTIONS)}, got {sorted(unknown)}")
        check_resources(self.ray_options.get("resources"))
        if self.on_ray:
            if self.n == 0:
                raise InputError("actors on Ray need at least 1 worker, got 0")
            ray_session.import_ray()

    @classmethod
    def of(cls, given: Self | int | None) -> Self:
        """Return `given` if it is `Workers` already; a number or ``None`` is their number."""
        return given if isinstance(given, cls) else cls(given)  # type: ignore[arg-type]

    @property
    def on_ray(self) -> bool:
        """Whether workers are actors on a Ray cluster; an empty dict means so, too."""
        return self.ray is not False

    @property
    def ray_options(self) -> Mapping[str, Any]:
        """The options for Ray that were given."""
        return self.ray if isinstance(self.ray, Mapping) else {}


# In the worker


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
    own_process : bool
        Whether the worker has a separate process. If not, it runs in the owner's process.
    """

    def __init__(self, group: int, host: HostedObjects) -> None:
        self.group = group
        self.own_process = host.own_process
        self._host = host
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
            control = self._host.control
            if control is None:
                return
            self._beats = memoryview(control["beats"].numpy())
            self._stop = memoryview(control["stop"].numpy())
        self._beats[self.group] += 1
        if self._stop[0]:
            raise StoppedError("the workers are being closed")

    def load(self, known: int) -> tuple[int, Any] | None:
        """Return the version and a copy of the tree that the owner has published.

        Return ``None`` if the version is `known`, or if nothing has been published.
        """
        published = self._host.published
        return None if published is None else published.read(known)


class HostedObjects:
    """One object for each of `groups`. The objects are made in the order of `groups`.

    Parameters
    ----------
    make_object : callable
        Given a `GroupContext`, returns the object of its group.
    groups : sequence of int
    own_process : bool
        Whether the process does nothing but host these objects. If so, torch uses one thread.

    Attributes
    ----------
    own_process : bool
    control : tree of Tensor or None
        Memory of the layout `control_layout`, which is shared with the owner's process, or read for
        it; ``None`` in that process itself.
    published : VersionedTree or None
        What the owner has published.
    """

    def __init__(
        self,
        make_object: Callable[[GroupContext], Any],
        groups: Sequence[int],
        *,
        own_process: bool = True,
        control: Any = None,
    ) -> None:
        if own_process:
            torch.set_num_threads(1)
        self.own_process = own_process
        self.control = control
        self.published: VersionedTree | None = None
        self._objects: dict[int, Any] = {}
        self._failure: BaseException | None = None
        trials = KnownTrials()
        for group in groups:
            context = GroupContext(group, self)
            try:
                with trials_shared(trials):
                    self._objects[group] = self._guarded(make_object, context)
            except BaseException:
                with suppress(Exception):
                    self.close()
                raise

    def attach(self, kind: str, layout: Any, *, fds: Sequence[int]) -> None:
        """Map shared memory. If this fails, every later `call` fails too.

        Parameters
        ----------
        kind : {"control", "published"}
            The attribute that it belongs to.
        """
        (fd,) = fds
        try:
            # Mapping the memory closes its descriptor, but locks need one.
            lock = os.dup(fd) if kind == "published" else -1
            tree = attach_arrays(fd, layout, tensor_over)
        except BaseException as error:
            self._failure = error
            raise
        if kind == "control":
            self.control = tree
            return
        if self.published is not None:
            self.published.close()
        self.published = VersionedTree(tree, lock)

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
            if not self.own_process:
                raise
            raise RuntimeError(f"an environment, actor or factory raised {error!r}") from error

    def close(self) -> None:
        """Close all objects that have a ``close`` method, even if one raises an error."""
        with ExitStack() as stack:
            for hosted in reversed(self._objects.values()):
                stack.callback(getattr(hosted, "close", bool))
            self._objects = {}


# In the owner's process


class Backend(abc.ABC):
    """The workers of a `WorkerGroup`, numbered from 0; one subclass for each place to run them.

    Worker ``g % num_workers`` hosts the object of group g.

    Parameters
    ----------
    make_object, num_groups, workers, name, preload
        See `WorkerGroup`.

    Attributes
    ----------
    num_workers : int
    start_seconds : float
        How many seconds a worker may take to make its objects, unless `timeout` is longer.
    """

    num_workers = 1
    start_seconds = 60.0

    def __init__(
        self,
        make_object: Callable[[GroupContext], Any],
        num_groups: int,
        workers: Workers,
        name: str,
        preload: Sequence[str],
    ) -> None:
        self.make_object, self.num_groups = make_object, num_groups
        self.options, self.name, self.preload = workers, name, preload
        self.start()

    def start(self) -> None:
        """Start the workers."""

    def count_workers(self, num_cores: int) -> int:
        """Return how many workers to start on a machine or cluster with `num_cores` cores."""
        wanted = num_cores if self.options.n is None else self.options.n
        return min(wanted, self.num_groups)

    def groups_of(self, worker: int) -> list[int]:
        """Return the groups that `worker` hosts."""
        return list(range(worker, self.num_groups, self.num_workers))

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
    def publish(self, tree: Any, version: int) -> None:
        """Let jobs load `tree` from now on; see `WorkerGroup.publish`."""

    @abc.abstractmethod
    def call(self, group: int, method: str, args: tuple[Any, ...]) -> Call:
        """Call `method` on the object of `group`, after all earlier calls for that group."""

    def result(self, call: Call) -> Any:
        """Return the result of a call that is done, or raise its exception."""
        return call.result()

    def release(self, call: Call) -> None:
        """Reuse the memory of the result of `call`; see `WorkerGroup.release`."""

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

        Results that were read before stay valid.
        """


class LocalBackend(Backend):
    """A single worker: the caller's own process, in which `wait` executes the calls.

    All objects are made when `wait` executes the first call.
    """

    def start(self) -> None:
        self._published: VersionedTree | None = None
        self._hosted: HostedObjects | None = None
        self._calls: list[tuple[int, str, tuple[Any, ...], concurrent.futures.Future[Any]]] = []

    def describe(self, worker: int) -> str:
        return "this process"

    def is_ready(self, worker: int) -> bool:
        return True

    def publish(self, tree: Any, version: int) -> None:
        self._published = VersionedTree.of(tree, version)

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
                groups = range(self.num_groups)
                self._hosted = HostedObjects(self.make_object, groups, own_process=False)
            self._hosted.published = self._published
            group, method, args = call
            future.set_result(self._hosted.call(group, method, *args))
        except Exception as error:
            future.set_exception(error)
        finally:
            torch.set_num_threads(threads)

    def close(self, timeout: float) -> None:
        self._calls.clear()
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()


def with_settings_of_here(
    make_object: Callable[[GroupContext], Any],
) -> Callable[[GroupContext], Any]:
    """Return `make_object` for another process, where it gets the settings of this process.

    The settings are the registered ids, which decide what environments a factory makes, and torch's
    default dtype (one of `KnownIds`) and precision, which decide how an actor computes.
    """
    return partial(_make, known_ids(), torch.get_float32_matmul_precision(), make_object)


def _make(
    ids: KnownIds, precision: str, make_object: Callable[[GroupContext], Any], context: GroupContext
) -> Any:
    know(ids)
    torch.set_float32_matmul_precision(precision)
    return make_object(context)

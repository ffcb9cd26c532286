"""What a worker hosts: `HostedObjects`, each of which has a `GroupContext`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch

from plangym_like.batchers.trees import tensor_over
from plangym_like.batchers.weights import VersionedTree
from plangym_like.execution.known_ids import KnownIds, know, known_ids
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.vector.memory import attach_arrays
from plangym_like.vector.tree import Leaf


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

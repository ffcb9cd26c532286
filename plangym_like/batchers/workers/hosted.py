"""What a worker hosts: `HostedObjects`, each of which has a `GroupContext`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from plangym_like.batchers.trees import clone_tree
from plangym_like.execution.known_ids import KnownIds, know, known_ids
from plangym_like.processes.shared_memory import attach
from plangym_like.snapshots.trial import KnownTrials, trials_shared


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

    def beat(self) -> None:
        """Report progress to the owner; a hosted object calls this at least once per step.

        Raises
        ------
        StoppedError
            The owner is closing its workers.
        """
        control = self._host.control
        if control is not None:
            control[1 + self.group] += 1
            if control[0]:
                raise StoppedError("the workers are being closed")

    def load(self, known: int) -> tuple[int, Any] | None:
        """Return the version and a copy of the tree published last when the job was submitted.

        Return ``None`` if the version is `known`, or if nothing was published.
        """
        version, tree = self._host.published
        return None if version in (-1, known) else (version, clone_tree(tree))


class HostedObjects:
    """One object for each of `groups`, made by ``make_object(context)`` in their order.

    Attributes
    ----------
    own_process : bool
        Whether the process does nothing but host these objects. If so, torch uses one thread.
    control : array int64 or None
        The stop flag, and a count of heartbeats for each group. The memory is shared with the
        owner's process, or read for it; ``None`` in that process itself.
    published : (int, tree of Tensor)
        What was published last when the current job was submitted, and its version; -1 if nothing.
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
        self.published: tuple[int, Any] = (-1, None)
        self._objects: dict[int, Any] = {}
        trials = KnownTrials()
        for group in groups:
            context = GroupContext(group, self)
            try:
                with trials_shared(trials):
                    self._objects[group] = make_object(context)
            except BaseException:
                with suppress(Exception):
                    self.close()
                raise

    def attach_control(self, *, fds: Sequence[int]) -> None:
        """Map the memory of `control`."""
        self.control = attach(fds[0]).view(np.int64)

    def call(self, group: int, method: str, *args: Any) -> Any:
        """Call `method` on the object of `group`, and return its result."""
        return getattr(self._objects[group], method)(*args)

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

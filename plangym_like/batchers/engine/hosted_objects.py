"""`HostedObjects`: the objects that a worker hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from plangym_like.batchers.engine.group_context import GroupContext, Send
from plangym_like.batchers.engine.tensor_tree import tensor_over
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.vector.memory import attach_arrays


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

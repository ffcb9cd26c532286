"""`GroupContext`: connects the object of one group to the owner of the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plangym_like.vector.tree import Leaf, take, tree_leaves

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

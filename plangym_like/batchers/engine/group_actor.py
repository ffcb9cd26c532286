"""`GroupActor`: the Ray actor that hosts objects for `RayWorkers`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from plangym_like.batchers.engine.group_context import CONTROL, control_layout
from plangym_like.batchers.engine.hosted_objects import HostedObjects
from plangym_like.batchers.engine.tensor_tree import PackedTree, copy_to, empty, pack, unpack
from plangym_like.cluster import ray_session
from plangym_like.cluster.node_actor import enter_worker_context
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.processes.wire import dumps, loads
from plangym_like.states.rows import adopt_session_key
from plangym_like.vector.tree import tree_map


class Heartbeat(NamedTuple):
    """The process id and node of an actor, and how often its objects have reported progress."""

    pid: int
    node: str
    beats: int


class SharedUpdate(NamedTuple):
    """New content of the memory shared as `name`; if `is_empty`, `packed` holds only a layout."""

    name: str
    packed: PackedTree
    is_empty: bool = False


@dataclass(slots=True)
class JobResult:
    """The pickled value or error of a job, and the buffers that the job has published."""

    heartbeat: Heartbeat
    value: bytes = b""
    error: bytes | None = None
    buffers: list[tuple[str, int, PackedTree]] = field(default_factory=list)


class GroupActor:
    """Hosts the objects of `groups`, and shares no memory with the owner.

    One thread makes the objects and runs all methods except `heartbeat` and `stop`, which run in a
    second thread.

    Parameters
    ----------
    recipe : bytes
        A pickled tuple of three parts: the caller's worker context, the caller's session key, and
        the function that makes an object.
    groups : sequence of int
    num_groups : int
        The total number of groups in all workers.
    """

    def __init__(self, recipe: bytes, groups: Sequence[int], num_groups: int) -> None:
        self._recipe = recipe
        self._node: str = ray_session.import_ray().util.get_node_ip_address()
        self._groups = groups
        self._control = empty(control_layout(num_groups), ())
        self._memory: dict[str, Any] = {CONTROL: self._control}
        self._layouts: dict[str, Any] = {}
        self._hosted: HostedObjects | None = None
        self._failure: bytes | None = None
        self._published: list[tuple[str, int, PackedTree]] = []

    def make(self) -> JobResult:
        """Make the hosted objects; if that fails, every later job fails with the same error."""
        try:
            context, key, make_object = loads(self._recipe)
            enter_worker_context(**context)
            adopt_session_key(key)
            self._hosted = HostedObjects(
                loads(make_object), self._groups, self._memory, send=self._send
            )
        except BaseException as error:
            self._failure = pack_exception(error, skip_frames=1)
        return JobResult(self.heartbeat(), dumps(None), self._failure)

    def call(self, group: int, method: str, args: bytes, *updates: SharedUpdate) -> JobResult:
        """Apply `updates` to the actor's memory, then call `method` on the object of `group`."""
        hosted = self._hosted
        if hosted is None:
            return JobResult(self.heartbeat(), error=self._failure)
        try:
            for update in updates:
                self._apply(update)
            value = dumps(hosted.call(group, method, *loads(args)))
            published, self._published = self._published, []
            return JobResult(self.heartbeat(), value, buffers=published)
        except BaseException as error:
            return JobResult(self.heartbeat(), error=pack_exception(error, skip_frames=1))

    def _apply(self, update: SharedUpdate) -> None:
        name, (layout, _), is_empty = update
        if is_empty:
            self._memory[name] = empty(layout, ())
        elif self._layouts.get(name) == layout:
            # Copied in place, because hosted objects may already hold these tensors.
            copy_to(self._memory[name], unpack(update.packed))
        else:
            self._memory[name] = tree_map(torch.clone, unpack(update.packed))
        self._layouts[name] = layout

    def _send(self, name: str, index: int, content: Any) -> None:
        self._published.append((name, index, pack(content)))

    def heartbeat(self) -> Heartbeat:
        """Return the actor's process id, its node, and the progress of its objects."""
        return Heartbeat(os.getpid(), self._node, int(self._control["beats"].sum()))

    def stop(self) -> None:
        """End the current job at its next step."""
        self._control["stop"].fill_(1)

    def close(self) -> None:
        """Close the objects, once the current job has ended."""
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()

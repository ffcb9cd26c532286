"""The far side of a `ClusterHost`: what an actor of a Ray cluster does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from plangym_like.batchers.engine.nests import copy_to, empty, map_nest
from plangym_like.batchers.engine.parcels import Parcel, pack, unpack
from plangym_like.batchers.engine.residents import CONTROL, Residents, control_layout
from plangym_like.cluster import ray_session
from plangym_like.cluster.surroundings import settle_in
from plangym_like.processes.messages import dumps, loads
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.states import adopt_session_key


class Pulse(NamedTuple):
    """Which process an actor is, on which node, and how much progress its residents have made."""

    pid: int
    node: str
    beats: int


class Notice(NamedTuple):
    """What the owner shares under a name; a pool of its own is only told how it looks."""

    name: str
    parcel: Parcel
    is_pool: bool = False


@dataclass(slots=True)
class Answer:
    """What a job came to: its pickled result or error, and the pieces that it has handed in."""

    pulse: Pulse
    result: bytes = b""
    error: bytes | None = None
    pieces: list[tuple[str, int, Parcel]] = field(default_factory=list)


class ClusterWorker:
    """Hosts the objects of `groups` in memory of its own.

    Ray calls everything in one thread, which also makes them, but for `pulse` and `stop`.

    Parameters
    ----------
    recipe : bytes
        Pickled: the caller's surroundings and session key, and what makes a resident.
    groups : sequence of int
    num_groups : int
        Of all workers.
    """

    def __init__(self, recipe: bytes, groups: Sequence[int], num_groups: int) -> None:
        self._recipe = recipe
        self._node: str = ray_session.load().util.get_node_ip_address()
        self._groups = groups
        self._control = empty(control_layout(num_groups), ())
        self._memory: dict[str, Any] = {CONTROL: self._control}
        self._layouts: dict[str, Any] = {}
        self._residents: Residents | None = None
        self._failure: bytes | None = None
        self._pieces: list[tuple[str, int, Parcel]] = []

    def make(self) -> Answer:
        """Make the residents; where that fails, every job fails with the same."""
        try:
            surroundings, key, make_resident = loads(self._recipe)
            settle_in(**surroundings)
            adopt_session_key(key)
            self._residents = Residents(
                loads(make_resident), self._groups, self._memory, send=self._send
            )
        except BaseException as error:
            self._failure = pack_exception(error, skip_frames=1)
        return Answer(self.pulse(), dumps(None), self._failure)

    def do(self, group: int, method: str, args: bytes, *notices: Notice) -> Answer:
        """Take over what is new in shared memory, and call a method of a group's object."""
        residents = self._residents
        if residents is None:
            return Answer(self.pulse(), error=self._failure)
        try:
            for notice in notices:
                self._heed(notice)
            result = dumps(residents.do(group, method, *loads(args)))
            pieces, self._pieces = self._pieces, []
            return Answer(self.pulse(), result, pieces=pieces)
        except BaseException as error:
            return Answer(self.pulse(), error=pack_exception(error, skip_frames=1))

    def _heed(self, notice: Notice) -> None:
        name, (layout, contents), is_pool = notice
        if is_pool:
            self._memory[name] = empty(layout, ())
        elif self._layouts.get(name) == layout:
            # Whoever has seen it before looks at the same memory.
            copy_to(self._memory[name], unpack(notice.parcel))
        else:
            self._memory[name] = map_nest(torch.clone, unpack(notice.parcel))
        self._layouts[name] = layout

    def _send(self, name: str, index: int, piece: Any) -> None:
        self._pieces.append((name, index, pack(piece)))

    def pulse(self) -> Pulse:
        """Say who is there and how far it is."""
        return Pulse(os.getpid(), self._node, int(self._control["beats"].sum()))

    def stop(self) -> None:
        """End the job that is being done at its next step."""
        self._control["stop"].fill_(1)

    def close(self) -> None:
        """Close the residents, once the job that is being done has ended."""
        residents, self._residents = self._residents, None
        if residents is not None:
            residents.close()

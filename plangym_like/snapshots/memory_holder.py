"""One object that remembers: a wrapper, or an ordinary object that a wrapper holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.configuration import is_handle, qualified_name

# Attributes of an environment that no step changes.
CONSTANT = frozenset(
    [
        *("env", "spec", "metadata", "action_space", "observation_space", "render_mode"),
        *("_action_space", "_observation_space", "_metadata", "_cached_spec", "_saved_kwargs"),
    ]
)


@dataclass(slots=True)
class MemoryHolder:
    """An object and which of its attributes are memory.

    Attributes
    ----------
    place : str
        What errors call it.
    kind : type
        The class of the object.
    locate : callable
        Returns the object; one that a wrapper makes anew in ``reset`` is found each time.
    names : tuple of str or None
        Attributes (dotted: of an attribute's object) that are its memory; ``None``: all that are
        neither constant, nor windows, nor in `fixed`.
    fixed : dict
        Attributes that are configuration, with their values.
    opened : set of str
        Attributes whose objects have holders of their own.
    constant : set of str
        Attributes that never are memory.
    """

    place: str
    kind: type
    locate: Callable[[], Any]
    names: tuple[str, ...] | None
    fixed: dict[str, Any] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    constant: frozenset[str] = CONSTANT
    _get: Callable[[Any], Any] = field(init=False)

    def __post_init__(self) -> None:
        names = self.names or ()
        one = attrgetter(*names) if names else lambda thing: ()
        self._get = (lambda thing: (one(thing),)) if len(names) == 1 else one

    def read(self) -> Any:
        """Return the memory: a tuple after `names`, else a dict in the order of its keys."""
        thing = self._thing()
        if self.names is not None:
            try:
                return self._get(thing)
            except AttributeError as error:
                raise SnapshotError(f"{self.place} cannot be saved: {error}") from error
        attributes = vars(thing)
        for name, value in self.fixed.items():
            if attributes.get(name) is not value:
                raise SnapshotError(
                    f"{self.place}.{name} was {kind_of(value)} when the environment was made, so "
                    "it was not counted as memory, and has been replaced since; keep what changes "
                    "in attributes that are plain data"
                )
        names = [name for name in attributes if self._is_memory(name, attributes)]
        return {name: attributes[name] for name in sorted(names)}

    def write(self, memory: Any) -> None:
        """Make `memory`, which `fits`, the object's own."""
        thing = self._thing()
        attributes = vars(thing)
        if self.names is not None:
            for name, value in zip(self.names, memory, strict=True):
                owner, _, last = name.rpartition(".")
                setattr(attrgetter(owner)(thing) if owner else thing, last, value)
            return
        for name in list(attributes):
            if name not in memory and self._is_memory(name, attributes):
                del attributes[name]
        for name, value in memory.items():
            if not is_handle(attributes.get(name)):
                attributes[name] = value

    def fits(self, memory: Any) -> bool:
        """Tell whether `memory` has the form of this object's."""
        if self.names is not None:
            return type(memory) is tuple and len(memory) == len(self.names)
        return type(memory) is dict and all(
            type(name) is str
            and name not in self.fixed
            and name not in self.opened
            and name not in self.constant
            for name in memory
        )

    def items(self, memory: Any) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of `memory`."""
        yield from memory.items() if self.names is None else zip(self.names, memory, strict=True)

    def _is_memory(self, name: str, attributes: dict[str, Any]) -> bool:
        return not (
            name in self.constant
            or name in self.fixed
            or name in self.opened
            or is_handle(attributes[name])
        )

    def _thing(self) -> Any:
        try:
            thing = self.locate()
        except AttributeError as error:
            raise SnapshotError(f"{self.place} is gone: {error}") from error
        if type(thing) is not self.kind:
            raise SnapshotError(
                f"{self.place} was an object of class {qualified_name(self.kind)} when the "
                f"environment was made and is {kind_of(thing)} now; keep one object, or plain data"
            )
        return thing


def restart_generators(holders: list[MemoryHolder], own: Any, seed: int) -> None:
    """Restart the random generators in attributes of `holders` from `seed`, all but `own`."""
    number = 0
    for holder in holders:
        for _, value in holder.items(holder.read()):
            if isinstance(value, np.random.Generator) and value is not own:
                bits: Any = value.bit_generator
                bits.state = type(bits)(np.random.SeedSequence([int(seed), number])).state
                number += 1


def kind_of(value: Any) -> str:
    """Return what errors call `value`."""
    return f"an object of class {qualified_name(type(value))}"

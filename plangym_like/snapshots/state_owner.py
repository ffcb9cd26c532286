"""`StateOwner`: a wrapper, or an object in a wrapper, that owns state; `put` sets attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.configuration import is_handle, qualified_name
from plangym_like.states.random_state import restart

# Attributes of an environment that no step changes.
CONSTANT = frozenset(
    [
        *("env", "spec", "metadata", "action_space", "observation_space", "render_mode"),
        *("_action_space", "_observation_space", "_metadata", "_cached_spec", "_saved_kwargs"),
    ]
)


@dataclass(slots=True)
class StateOwner:
    """An object, and the names of the attributes that are its state.

    Attributes
    ----------
    place : str
        The name of the object in error messages.
    kind : type
        The class of the object.
    locate : callable
        Returns the current object; a wrapper may replace it in ``reset``.
    names : tuple of str or None
        The attributes that are the object's state; a dotted name is an attribute of an attribute.
        ``None`` means all attributes except handles (see `is_handle`) and those in `constant`.
    constant : set of str
        Attributes that are not state of this object.
    fixed : dict
        The values of attributes in `constant` that are configuration; they must not change.
    """

    place: str
    kind: type
    locate: Callable[[], Any]
    names: tuple[str, ...] | None
    constant: frozenset[str] = CONSTANT
    fixed: dict[str, Any] = field(default_factory=dict)
    _get: Callable[[Any], Any] = field(init=False)

    def __post_init__(self) -> None:
        names = self.names or ()
        one = attrgetter(*names) if names else lambda thing: ()
        self._get = (lambda thing: (one(thing),)) if len(names) == 1 else one

    def read(self) -> Any:
        """Return the state: a tuple in the order of `names`, or a dict if `names` is ``None``.

        The keys of the dict are sorted.
        """
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
                    "it is not saved, and has been replaced since; keep data that changes in "
                    "attributes that are plain data, or make the environment with "
                    "snapshot='replay'"
                )
        names = [name for name in attributes if self._is_state(name, attributes)]
        return {name: attributes[name] for name in sorted(names)}

    def write(self, state: Any) -> None:
        """Set the state of the object to `state`; ``fits(state)`` must be true."""
        thing = self._thing()
        attributes = vars(thing)
        if self.names is not None:
            for name, value in zip(self.names, state, strict=True):
                path, _, last = name.rpartition(".")
                setattr(attrgetter(path)(thing) if path else thing, last, value)
            return
        for name in list(attributes):
            if name not in state and self._is_state(name, attributes):
                del attributes[name]
        for name, value in state.items():
            if not is_handle(attributes.get(name)):
                attributes[name] = value

    def fits(self, state: Any) -> bool:
        """Return whether `state` has the form of this object's state."""
        if self.names is not None:
            return type(state) is tuple and len(state) == len(self.names)
        return type(state) is dict and all(
            type(name) is str and name not in self.constant for name in state
        )

    def items(self, state: Any) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each attribute in `state`."""
        yield from state.items() if self.names is None else zip(self.names, state, strict=True)

    def exclude(self, name: str, value: Any, *, fixed: bool = False) -> None:
        """Exclude attribute `name` from the state; if `fixed` is true, it must keep `value`."""
        self.constant |= {name}
        if fixed:
            self.fixed[name] = value

    def leave_out_missing(self) -> None:
        """Leave out the named attributes that the object does not have yet."""
        if self.names is not None:
            thing = self.locate()
            self.names = tuple(name for name in self.names if _has(thing, name))
            self.__post_init__()

    def _is_state(self, name: str, attributes: dict[str, Any]) -> bool:
        return name not in self.constant and not is_handle(attributes[name])

    def _thing(self) -> Any:
        try:
            thing = self.locate()
        except AttributeError as error:
            raise SnapshotError(f"{self.place} no longer exists: {error}") from error
        if type(thing) is not self.kind:
            raise SnapshotError(
                f"{self.place} was an object of class {qualified_name(self.kind)} when the "
                f"environment was made and is {kind_of(thing)} now; keep one object, or plain data"
            )
        return thing


def _has(thing: Any, name: str) -> bool:
    try:
        attrgetter(name)(thing)
    except AttributeError:
        return False
    return True


def restart_generators(owners: list[StateOwner], own: Any, seed: int) -> None:
    """Restart the random generators in the attributes of `owners`, except `own`, from `seed`."""
    number = 0
    for owner in owners:
        for _, value in owner.items(owner.read()):
            if isinstance(value, np.random.Generator) and value is not own:
                bits: Any = value.bit_generator
                start = np.random.SeedSequence(int(seed), spawn_key=(number,))
                restart(bits, type(bits)(start))
                number += 1


def always(value: Any) -> Callable[[], Any]:
    """Return a function that returns `value`."""
    return lambda: value


def kind_of(value: Any) -> str:
    """Return a phrase that names the class of `value`, for error messages."""
    return f"an object of class {qualified_name(type(value))}"


def put(thing: Any, name: str, value: Any) -> None:
    """Set attribute `name` of `thing` to `value`; change arrays and containers in place.

    Other objects may hold the same array, list, dict or random generator.
    """
    attributes = vars(thing)
    attributes[name] = _into(attributes.get(name), value)


def _into(old: Any, new: Any) -> Any:
    if type(old) is not type(new):
        return new
    if isinstance(new, np.ndarray):
        if (old.shape, old.dtype) != (new.shape, new.dtype) or not old.flags.writeable:
            return new
        if old.tobytes() != new.tobytes():
            old[...] = new
    elif isinstance(new, np.random.Generator):
        if type(old.bit_generator) is not type(new.bit_generator):
            return new
        old.bit_generator.state = new.bit_generator.state
    elif type(new) is list:
        old[:] = new
    elif type(new) is dict or type(new) is set:
        old.clear()
        old.update(new)
    elif type(new) is deque and old.maxlen == new.maxlen:
        old.clear()
        old.extend(new)
    else:
        return new
    return old

"""`BaseSettings`: notices that a wrapper has changed data of the environment that no row holds.

The rows of a family hold the variables of its simulator, such as a pose. They do not hold its
settings: all other attributes of the environment, such as the force of a motor. A wrapper may
change these at any time, but a state that is saved then could not be restored.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import marshal
from collections.abc import Collection, Sequence
from operator import is_, itemgetter
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from plangym_like.errors import ChangedSettingError
from plangym_like.snapshots.chains import ATOMS, CONSTANT
from plangym_like.snapshots.configuration import is_handle, kind_of, qualified_name
from plangym_like.snapshots.differences import difference

# After the trial, one check in a hundred is thorough; each row is checked twice.
_EVERY = 100
# After so many steps, it is known which attributes an environment sets itself.
_PLAYED = 12
_MISSING = object()
# Rows hold the generator; Gymnasium computes the spec when it is first read.
_NEVER = ("_np_random", "_np_random_seed", "_cached_spec")


class Settings(abc.ABC):
    """The settings in one object, as they were when this was made."""

    @abc.abstractmethod
    def change(self, *, thorough: bool = False) -> str:
        """Return which setting has changed since, and how; ``""`` if none has.

        What takes long to compare is compared only if `thorough` is true.
        """


class AttributeSettings(Settings):
    """The attributes of one object.

    Numbers, text, tuples and arrays are compared, and the content of lists and dicts. Any other
    attribute must stay the same object. A new attribute is a change, too, unless its class computes
    it once.

    Parameters
    ----------
    thing : object
    but : collection of str
        Attributes that are no settings: rows hold them, or steps do not read them.
    """

    def __init__(self, thing: Any, but: Collection[str] = ()) -> None:
        self._kind, self._attributes = type(thing), vars(thing)
        self._but = frozenset((*_NEVER, *but))
        self._values: dict[str, Any] = {
            name: value.copy() if _is_array(value) else value
            for name, value in self._attributes.items()
            if self._is_setting(name, value)
        }
        # The content of lists and dicts, as bytes.
        self._contents = {name: _content(value) for name, value in self._values.items()}
        names = [*self._values]
        # One name is read twice, because an itemgetter of one name does not return a tuple.
        self._get = itemgetter(*names, names[0]) if names else lambda _: ()
        self._note_objects()

    def _is_setting(self, name: str, value: Any) -> bool:
        return not (name in self._but or is_handle(value))

    def _note_objects(self) -> None:
        """Note which objects the attributes are now; they have the values in `_values`."""
        self._count = len(self._attributes)
        self._objects: Sequence[Any] = self._get(self._attributes)
        self._arrays = [value for value in self._objects if _is_array(value)]
        self._bytes = [array.tobytes() for array in self._arrays]

    def change(self, *, thorough: bool = False) -> str:
        if self._is_as_noted():
            return self._other_content() if thorough else ""
        for name in dict.fromkeys((*self._values, *self._attributes)):
            now = self._attributes.get(name, _MISSING)
            if self._is_setting(name, now) and (change := self._change_of(name, now)):
                return f"{self._kind.__name__}.{name} {change}"
        self._note_objects()
        return ""

    def _is_as_noted(self) -> bool:
        attributes = self._attributes
        return (
            len(attributes) == self._count
            and all(map(is_, self._get(attributes), self._objects))
            and [array.tobytes() for array in self._arrays] == self._bytes
        )

    def _other_content(self) -> str:
        for name, then in self._contents.items():
            if then is not None and _content(self._attributes[name]) != then:
                return f"{self._kind.__name__}.{name} changed"
        return ""

    def _change_of(self, name: str, now: Any) -> str:
        if now is _MISSING:
            return "was deleted"
        then = self._values.get(name, getattr(self._kind, name, _MISSING))
        if isinstance(then, functools.cached_property):
            return ""
        if not isinstance(then, (*ATOMS, tuple, np.ndarray)) or type(then) is not type(now):
            return "" if now is then else f"changed from {_shown(then)} to {_shown(now)}"
        found = difference(then, now)
        if found is None:
            return ""
        at, values = f" at {found[0]}" if found[0] else "", found[1].replace(" and ", " to ", 1)
        return f"changed{at} from {values}"


class BaseSettings:
    """All settings of the environment inside the wrappers.

    Parameters
    ----------
    parts : sequence of Settings
    remedy : str
        What to do about a changed setting, for messages.

    Attributes
    ----------
    every : int
        Every which check is thorough.
    """

    every: int = 1

    def __init__(self, parts: Sequence[Settings], remedy: str) -> None:
        self._parts, self._remedy, self._checks = parts, remedy, 0

    def use(self) -> None:
        """From now on, compare large or slow parts only rarely; the trial is over."""
        self.every = _EVERY

    def check(self) -> None:
        """Raise `ChangedSettingError` if a setting has changed since this was made."""
        self._checks += 1
        thorough = self._checks % self.every == 0
        for part in self._parts:
            if change := part.change(thorough=thorough):
                raise ChangedSettingError(f"{change}, which no state row holds. {self._remedy}")


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray and not value.dtype.hasobject


def _content(value: Any) -> bytes | None:
    """Return the content of a list or dict as bytes; ``None`` if it holds other objects."""
    try:
        return marshal.dumps(value, 2) if type(value) in (list, dict) else None
    except ValueError:
        return None


def own_names(used: Any, new: dict[str, Any] | None = None) -> frozenset[str]:
    """Return the names of the attributes with numbers or text that an environment sets itself.

    Parameters
    ----------
    used : gymnasium.Env
        The environment without wrappers. It is reset, and takes a dozen steps.
    new : dict, optional
        What `atoms_of` returned for a new environment, by default for `used`. An attribute that
        differs from it, such as the number of a connection, is counted too.
    """
    before = atoms_of(used) if new is None else new
    actions = copy.deepcopy(used.action_space)
    actions.seed(0)
    with contextlib.suppress(Exception):
        used.reset(seed=0)
        for _ in range(_PLAYED):
            if any(used.step(actions.sample())[2:4]):
                break
    after = atoms_of(used)
    names = {**before, **after}
    return frozenset(name for name in names if not is_same(before.get(name), after.get(name)))


def atoms_of(env: Any) -> dict[str, Any]:
    """Return the numbers and text in attributes of `env`, by name."""
    return {k: value for k, value in vars(env).items() if k not in CONSTANT and _is_atom(value)}


def _is_atom(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_atom, value))
    return isinstance(value, ATOMS) and not isinstance(value, bytearray)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two numbers or texts are the same."""
    return type(one) is type(other) and bool(one == other)


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, (FunctionType, MethodType, type)):
        return qualified_name(value)
    return repr(value) if isinstance(value, (*ATOMS, tuple)) else kind_of(value)

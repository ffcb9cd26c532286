"""`BaseSettings`: notices that a wrapper has changed data of the environment that no row holds.

The rows of a family hold the variables of its simulator, such as a pose. They do not hold its
settings: all other attributes of the environment, such as the force of a motor, and its class. A
wrapper may change these at any time, but a state that is saved then could not be restored.
"""

from __future__ import annotations

import abc
import copy
import marshal
from collections.abc import Collection, Sequence
from operator import is_, itemgetter
from types import FunctionType, MethodType
from typing import Any, ClassVar

import gymnasium
import numpy as np

from plangym_like.errors import ChangedSettingError
from plangym_like.snapshots.chains import ATOMS, CONSTANT
from plangym_like.snapshots.configuration import is_handle, kind_of, qualified_name
from plangym_like.snapshots.differences import difference, has_only_grown

# After the trial, one check in a hundred is thorough; each row is checked twice.
_EVERY = 100
_MISSING = object()
_GENERATOR = ("_np_random", "_np_random_seed")


class Settings(abc.ABC):
    """The settings in one object, as they were when this was made.

    Attributes
    ----------
    remedy : str
        What to do about a changed setting; ``""`` if another way of saving states may hold it.
    """

    remedy: ClassVar[str] = ""

    @abc.abstractmethod
    def change(self, *, thorough: bool = False) -> str:
        """Return which setting has changed since, and how; ``""`` if none has.

        What takes long to compare, such as the content of lists and dicts, is compared only if
        `thorough` is true.
        """


class AttributeSettings(Settings):
    """The attributes of one object, or of one class.

    Numbers, text and arrays are compared, and the content of lists and dicts. Any other attribute
    must stay the same object. New attributes do not count, unless they hide those of a class, and
    neither do new items in a list or dict, which may be a cache.

    Parameters
    ----------
    thing : object
    but : collection of str
        Attributes that are no settings: rows hold them, or steps do not read them.
    """

    def __init__(self, thing: Any, but: Collection[str] = ()) -> None:
        is_class = isinstance(thing, type)
        self._name = thing.__name__ if is_class else type(thing).__name__
        self._classes = thing.__mro__[1:] if is_class else type(thing).__mro__
        self._attributes = vars(thing)
        self._but = frozenset((*CONSTANT, *_GENERATOR, *but))
        self._values: dict[str, Any] = {}
        # The lists and dicts, as bytes.
        self._contents: dict[str, bytes] = {}
        for name, value in self._attributes.items():
            if name in self._but or name.startswith("__") or is_handle(value):
                continue
            content = _content(value) if type(value) in (list, dict) else None
            if content is not None:
                self._contents[name] = content
            copied = content is not None or _is_array(value)
            self._values[name] = copy.deepcopy(value) if copied else value
        names = [*self._values]
        # One name is read twice, because an itemgetter of one name does not return a tuple.
        self._get = itemgetter(*names, names[0]) if names else lambda _: ()
        self._note_objects()

    def _note_objects(self) -> None:
        """Note which objects the attributes are now; they have the values in `_values`."""
        self._count = len(self._attributes)
        self._objects: Sequence[Any] = self._get(self._attributes)
        self._arrays = [value for value in self._objects if _is_array(value)]
        self._bytes = [array.tobytes() for array in self._arrays]

    def change(self, *, thorough: bool = False) -> str:
        if self._same_objects() and not (thorough and self._has_other_content()):
            return ""
        for name in self._values:
            if change := self._change_of(name):
                return f"{self._name}.{name} {change}"
        for name in self._attributes.keys() - self._values.keys() - self._but:
            now = self._attributes[name]
            for kind in () if name.startswith("__") or is_handle(now) else self._classes:
                if name in vars(kind):
                    then = vars(kind)[name]
                    return f"{self._name}.{name} changed from {_shown(then)} to {_shown(now)}"
        self._note_objects()
        return ""

    def _same_objects(self) -> bool:
        attributes = self._attributes
        return (
            len(attributes) == self._count
            and all(map(is_, self._get(attributes), self._objects))
            and [array.tobytes() for array in self._arrays] == self._bytes
        )

    def _has_other_content(self) -> bool:
        attributes = self._attributes
        return any(_content(attributes[name]) != then for name, then in self._contents.items())

    def _change_of(self, name: str) -> str:
        then, now = self._values[name], self._attributes.get(name, _MISSING)
        if now is _MISSING:
            return "was deleted"
        if is_handle(now):
            return ""
        if name in self._contents:
            return "" if has_only_grown(then, now) else "has changed"
        if type(then) is type(now) and isinstance(then, (*ATOMS, tuple, np.ndarray)):
            found = difference(then, now)
            if found is None:
                return ""
            before, after = found[1].split(" and ", 1)
            return (
                f"changed from {before} to {after}"
                if not found[0]
                else (f"changed at {found[0]} from {before} to {after}")
            )
        return "" if now is then else f"changed from {_shown(then)} to {_shown(now)}"


class ClassSettings(Settings):
    """The attributes and methods of a class and its bases.

    `gymnasium.Env` and its bases are left out, and so are classes of this package.
    """

    remedy = (
        "Copies of the environment share their class, so no way of saving states holds it; change "
        "an attribute of the environment itself instead"
    )

    def __init__(self, kind: type) -> None:
        kinds = [each for each in kind.__mro__ if each not in gymnasium.Env.__mro__]
        kinds = [each for each in kinds if not each.__module__.startswith("plangym_like.")]
        self._parts = list(map(AttributeSettings, kinds))

    def change(self, *, thorough: bool = False) -> str:
        return next(filter(None, (part.change(thorough=thorough) for part in self._parts)), "")


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
                remedy = part.remedy or self._remedy
                raise ChangedSettingError(f"{change}, which no state row holds. {remedy}")


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray and not value.dtype.hasobject


def _content(value: Any) -> bytes | None:
    """Return the content of a list or dict as bytes; ``None`` if it holds other objects."""
    try:
        return marshal.dumps(value, 2)  # later versions also encode how often objects are shared
    except ValueError:
        return None


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, (FunctionType, MethodType, type)):
        return qualified_name(value)
    return repr(value) if isinstance(value, (*ATOMS, tuple)) else kind_of(value)

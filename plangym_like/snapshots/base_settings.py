"""`BaseSettings`: notices that a wrapper has changed data of the environment that no row holds.

The rows of a family hold the variables of its simulator, such as a pose. They do not hold its
settings: all other attributes of the environment, such as the force of a motor, and its class. A
wrapper may change these at any time, but a state that is saved then could not be restored.
"""

from __future__ import annotations

import abc
import copy
import functools
import marshal
import pickle
from collections.abc import Collection, Iterator, Sequence, ValuesView
from operator import is_, itemgetter
from types import FunctionType, MethodType
from typing import Any, ClassVar

import gymnasium
import numpy as np

from plangym_like.errors import ChangedSettingError
from plangym_like.snapshots.chains import ATOMS, links, reachable
from plangym_like.snapshots.configuration import is_handle, kind_of, qualified_name
from plangym_like.snapshots.differences import difference

# After the trial, one check in a hundred is thorough; each row is checked twice.
_EVERY = 100
_MISSING = object()
_generator_of = itemgetter("_np_random")
# Rows hold the generator; Gymnasium computes the spec when it is first read.
_NEVER = ("_np_random", "_np_random_seed", "_cached_spec")
# Attributes in which a space holds other spaces.
_NESTED = ("spaces", "feature_space", "node_space", "edge_space")


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

    def note(self) -> None:
        """Accept what a reset has just changed, if resets may change these settings."""


class AttributeSettings(Settings):
    """The attributes of one object, or of one class.

    Numbers, text and arrays are compared, and the content of lists and dicts. Any other attribute
    must stay the same object. A new attribute is a change, too, unless its class computes it once.

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
        self._but = frozenset((*_NEVER, *but))
        self._values: dict[str, Any] = {}
        # The lists and dicts, as bytes.
        self._contents: dict[str, bytes] = {}
        for name, value in self._attributes.items():
            if self._is_setting(name, value):
                content = _content(value) if type(value) in (list, dict) else None
                if content is not None:
                    self._contents[name] = content
                copied = content is not None or _is_array(value)
                self._values[name] = copy.deepcopy(value) if copied else value
        names = [*self._values]
        # One name is read twice, because an itemgetter of one name does not return a tuple.
        self._get = itemgetter(*names, names[0]) if names else lambda _: ()
        self._note_objects()

    def _is_setting(self, name: str, value: Any) -> bool:
        return not (name in self._but or name.startswith("__") or is_handle(value))

    def _note_objects(self) -> None:
        """Note which objects the attributes are now; they have the values in `_values`."""
        self._count = len(self._attributes)
        self._objects: Sequence[Any] = self._get(self._attributes)
        self._arrays = [value for value in self._objects if _is_array(value)]
        self._bytes = [array.tobytes() for array in self._arrays]

    def change(self, *, thorough: bool = False) -> str:
        if self._same_objects() and not (thorough and self._has_other_content()):
            return ""
        for name in dict.fromkeys((*self._values, *self._attributes)):
            now = self._attributes.get(name, _MISSING)
            if self._is_setting(name, now) and (change := self._change_of(name, now)):
                return f"{self._name}.{name} {change}"
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

    def _change_of(self, name: str, now: Any) -> str:
        if now is _MISSING:
            return "was deleted"
        then = self._values.get(name, _MISSING)
        if then is _MISSING:
            owners = (vars(kind) for kind in self._classes)
            then = next((owned[name] for owned in owners if name in owned), _MISSING)
            if isinstance(then, functools.cached_property):
                return ""
        compared = isinstance(then, (*ATOMS, tuple, np.ndarray)) or name in self._contents
        if not compared or type(then) is not type(now):
            return "" if now is then else f"changed from {_shown(then)} to {_shown(now)}"
        found = difference(then, now)
        if found is None:
            return ""
        at, values = f" at {found[0]}" if found[0] else "", found[1].replace(" and ", " to ", 1)
        return f"changed{at} from {values}"


class SpaceSettings(Settings):
    """The random generators of all spaces in the attributes of a chain of wrappers.

    A reset may draw from them, but a step may not: no state row holds them.

    Parameters
    ----------
    env : gymnasium.Env
        The chain. No other environment, and no other code, may use its spaces.
    """

    remedy = "Draw from self.np_random, or make the environment with snapshot='replay'"

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        found = [each for each in _spaces_of_chain(env) if "_np_random" in each[1]]
        self._places = [place for place, _ in found]
        self._spaces = [attributes for _, attributes in found]
        self.note()

    def note(self) -> None:
        used = filter(None, map(_generator_of, self._spaces))
        self._used = {id(generator): _state_of(generator) for generator in used}

    def change(self, *, thorough: bool = False) -> str:
        # A space gets a generator when it is seeded or first sampled.
        if not self._used and not any(map(_generator_of, self._spaces)):
            return ""
        for place, generator in zip(self._places, map(_generator_of, self._spaces), strict=True):
            if generator is not None and self._used.get(id(generator)) != _state_of(generator):
                return f"steps draw from the generator of {place}"
        return ""


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

    def note(self) -> None:
        """Accept what a reset has just changed, if resets may change it."""
        for part in self._parts:
            part.note()

    def check(self) -> None:
        """Raise `ChangedSettingError` if a setting has changed since this was made."""
        self._checks += 1
        thorough = self._checks % self.every == 0
        for part in self._parts:
            if change := part.change(thorough=thorough):
                remedy = part.remedy or self._remedy
                raise ChangedSettingError(f"{change}, which no state row holds. {remedy}")


def own_spaces(base: Any) -> None:
    """Give the environment `base` copies of the spaces in its class, which others may use."""
    for name in ("action_space", "observation_space"):
        space = getattr(type(base), name, None)
        if isinstance(space, gymnasium.Space):
            getattr(base, "__dict__", {}).setdefault(name, copy.deepcopy(space))


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray and not value.dtype.hasobject


def _content(value: Any) -> bytes | None:
    """Return the content of a list or dict as bytes; ``None`` if it holds other objects."""
    try:
        return marshal.dumps(value, 2)  # later versions also encode how often objects are shared
    except ValueError:
        return None


def space_generators(env: gymnasium.Env[Any, Any]) -> dict[str, bytes]:
    """Return the states of the generators of all spaces in the chain `env`, by place."""
    found = enumerate(_spaces_of_chain(env))
    return {f"{at} {place}": _state_of(space.get("_np_random")) for at, (place, space) in found}


def _spaces_of_chain(env: gymnasium.Env[Any, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and attributes of each space in the attributes of `env`, and in other spaces."""
    seen = {id(link) for link in links(env)}
    for link in links(env):
        for name, value in list(vars(link).items()):
            for place, thing in reachable(value, f"{type(link).__name__}.{name}", seen):
                for space in _spaces_in(thing):
                    if space is thing or id(space) not in seen:
                        seen.add(id(space))
                        yield place, vars(space)


def _spaces_in(value: Any) -> Iterator[gymnasium.Space[Any]]:
    """Yield `value`, if it is a space, and the spaces inside it."""
    if isinstance(value, gymnasium.Space):
        yield value
        for name in _NESTED:
            inner = vars(value).get(name)
            parts = inner.values() if isinstance(inner, dict) else inner
            for part in parts if isinstance(parts, list | tuple | ValuesView) else (parts,):
                yield from _spaces_in(part)


def _state_of(generator: Any) -> bytes:
    return b"" if generator is None else pickle.dumps(generator.bit_generator.state)


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, (FunctionType, MethodType, type)):
        return qualified_name(value)
    return repr(value) if isinstance(value, (*ATOMS, tuple)) else kind_of(value)

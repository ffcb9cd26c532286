"""Where two results differ, to the last bit, and which attributes are behind it."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from plangym_like.errors import SnapshotError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.configuration import (
    FUNCTIONS,
    is_configuration,
    is_handle,
    is_ordinary,
    qualified_name,
)
from plangym_like.snapshots.memory_holder import CONSTANT
from plangym_like.snapshots.stage import Stage

_LONGEST = 60
_DEEPEST = 4
_NUMBERS: tuple[Any, ...] = (int, float, complex, str, bytes)
# What nobody reads after the reset that set it.
_IDLE = CONSTANT | {"_np_random_seed"}


def difference(one: Any, other: Any, place: str = "") -> tuple[str, str] | None:
    """Return the place of the first difference between two nests, and the two values.

    Types, dtypes and bits count: 1 and 1.0 differ, as do 0.0 and -0.0; a NaN is itself.

    >>> difference({"reward": 1.0}, {"reward": 2.0})
    ("['reward']", '1.0 and 2.0')
    """
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _array_difference(one, other, place)
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            if key not in one or key not in other:
                there = "first" if key in one else "second"
                return f"{place}[{key!r}]", f"only there the {there} time"
            if found := difference(one[key], other[key], f"{place}[{key!r}]"):
                return found
        return None
    if isinstance(one, list | tuple | deque) and type(one) is type(other):
        if len(one) != len(other):
            return f"len({place})", f"{len(one)} and {len(other)}"
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            if found := difference(left, right, f"{place}[{index}]"):
                return found
        return None
    if _bits(one) != _bits(other):
        return place, f"{_shown(one)} and {_shown(other)}"
    return None


def without_clock(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return `info` without the one entry that a wrapper of Gymnasium's reads off the clock.

    `gymnasium.wrappers.RecordEpisodeStatistics` puts a dict of return, length and elapsed seconds
    into ``"episode"``, or under the key that it is given: ``{"r": ..., "l": ..., "t": ...}``.
    """
    left = dict(info)
    for key, value in info.items():
        if type(value) is dict and value.keys() == {"r", "l", "t"}:
            left[key] = {"r": value["r"], "l": value["l"]}
    return left


def object_difference(
    one: Any, other: Any, place: str, seen: set[tuple[int, int]] | None = None
) -> tuple[str, str] | None:
    """Return where two objects differ, through all that they hold; see `difference`.

    Which parts are one object does not count. It is why two pickles of equal objects may differ.
    """
    seen = set() if seen is None else seen
    if one is other or (id(one), id(other)) in seen:
        return None
    seen.add((id(one), id(other)))
    if type(one) is not type(other):
        return place, f"{_shown(one)} and {_shown(other)}"
    if isinstance(one, gymnasium.Env):
        # Infos that hold an environment are not copies of it, so it has gone on since.
        return None
    parts = [_parts_of(thing) for thing in (one, other)]
    if parts[0] is None or parts[1] is None:
        # An iterator that is pickled in another way may well go on in the same.
        return None if hasattr(type(one), "__next__") else difference(one, other, place)
    if parts[0].keys() != parts[1].keys():
        return place, f"{_shown(list(parts[0]))} and {_shown(list(parts[1]))}"
    for name, value in parts[0].items():
        if found := object_difference(value, parts[1][name], f"{place}{name}", seen):
            return found
    return None


def _parts_of(thing: Any) -> dict[str, Any] | None:
    """Return what `thing` holds, by place, or ``None`` if it is to be compared as a whole."""
    if isinstance(thing, dict):
        return {f"[{_name_of(key, at)}]": thing[key] for at, key in enumerate(thing)}
    if isinstance(thing, set | frozenset):
        names = [_name_of(item, 0) for item in thing]
        return {"": sorted(names)}
    if isinstance(thing, np.ndarray | np.generic):
        return None
    if hasattr(thing, "detach") and hasattr(thing, "__array__"):
        # A tensor of torch: two pickles of one need not be equal.
        with contextlib.suppress(Exception):
            return {"": np.asarray(thing.detach().cpu())}
    if isinstance(thing, list | tuple | deque):
        return {f"[{index}]": value for index, value in enumerate(thing)}
    if isinstance(thing, np.random.Generator):
        return {".state": thing.bit_generator.state}
    kind = type(thing)
    if is_ordinary(kind) and not isinstance(thing, (*FUNCTIONS, type)):
        return {f".{name}": value for name, value in vars(thing).items()}
    if is_configuration(thing) or is_handle(thing):
        return None
    if kind.__module__ == "builtins" and not isinstance(thing, BaseException):
        return None
    if beside := _parts_beside(thing):
        own = getattr(thing, "__dict__", {})
        return {**{f".{name}": value for name, value in own.items()}, **beside}
    return _reduced(thing)


def _name_of(key: Any, at: int) -> str:
    """Return what a key or an item of a set is called, without its address."""
    name = repr(key)
    return f"{qualified_name(type(key))} {at}" if " at 0x" in name else name


def _reduced(thing: Any) -> dict[str, Any] | None:
    """Return what a pickle of `thing` would hold."""
    try:
        reduced = thing.__reduce_ex__(4)
    except Exception:
        return None
    if not isinstance(reduced, tuple):
        return None
    parts = dict(zip(("", ".__dict__", "[...]", "{...}"), reduced[1:5], strict=False))
    for name in ("[...]", "{...}"):
        # Items and pairs are iterators.
        parts[name] = list(parts.get(name) or ())
    return parts


def _parts_beside(thing: Any) -> dict[str, Any]:
    """Return what an object of a class that is not written in Python holds beside attributes."""
    for kind in _NUMBERS:
        if isinstance(thing, kind):
            return {"": kind(thing)}
    if isinstance(thing, random.Random):
        return {".state": thing.getstate()}
    if isinstance(thing, BaseException):
        return {".args": thing.args}
    if hasattr(thing, "__array__"):
        with contextlib.suppress(Exception):
            return {"": np.asarray(thing)}
    return {}


def _array_difference(one: Any, other: Any, place: str) -> tuple[str, str] | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return place, f"{one.dtype}{one.shape} and {other.dtype}{other.shape}"
    if one.dtype == object:
        return difference(one.tolist(), other.tolist(), place)
    if one.tobytes() == other.tobytes():
        return None
    left = np.ascontiguousarray(one).reshape(-1)
    right = np.ascontiguousarray(other).reshape(-1)
    for flat, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.tobytes() != b.tobytes():
            at = ", ".join(map(str, np.unravel_index(flat, one.shape))) if one.ndim else ""
            return f"{place}[{at}]", f"{a!s} and {b!s}"
    raise AssertionError("two arrays differ, and none of their elements does")


def _bits(value: Any) -> bytes:
    if isinstance(value, (set, frozenset)):
        # Two equal sets may have two orders.
        return b"set" + b"".join(sorted(map(_bits, value)))
    try:
        return plain_data.encode(value)
    except SnapshotError:
        pass
    try:
        return pickle.dumps(value)
    except Exception:
        # What shows no more than an address cannot be compared.
        shown = "" if " at 0x" in repr(value) else repr(value)
        return f"{type(value).__qualname__} {shown}".encode()


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def attributes(env: gymnasium.Env[Any, Any]) -> dict[str, bytes]:
    """Return what all attributes in a chain of wrappers hold, as far as they are data.

    Keys are called ``Class.attribute``, or ``Class.attribute.attribute`` inside objects.
    """
    found: dict[str, bytes] = {}
    link: Any = env
    while True:
        if not isinstance(link, Stage):
            _gather(type(link).__name__, link, found, {id(link)}, 0)
        if not isinstance(link, gymnasium.Wrapper):
            return found
        link = link.env


def _gather(place: str, thing: Any, found: dict[str, bytes], seen: set[int], depth: int) -> None:
    for name, value in vars(thing).items():
        if name in _IDLE or isinstance(value, FUNCTIONS):
            continue
        if is_configuration(value) or is_handle(value) or id(value) in seen:
            continue
        try:
            found[f"{place}.{name}"] = plain_data.encode(value)
        except SnapshotError:
            if hasattr(value, "__dict__") and depth < _DEEPEST:
                if not isinstance(value, gymnasium.Env):
                    seen.add(id(value))
                    _gather(f"{place}.{name}", value, found, seen, depth + 1)


def differing_attributes(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Return the names under which two environments hold different data."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))

"""Compare two results bit by bit, and find the attributes that make them differ."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from plangym_like.batch.ownership import check_info
from plangym_like.errors import SnapshotError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chains import ATOMS, CONSTANT, links, reachable
from plangym_like.snapshots.configuration import (
    FUNCTIONS,
    is_configuration,
    is_handle,
    is_ordinary,
    name_of_key,
    qualified_name,
)
from plangym_like.snapshots.known_wrappers import is_transparent

_LONGEST = 60
# Attributes that no step changes; they are not compared.
_IDLE = CONSTANT | {"_np_random_seed"}


def difference(
    one: Any, other: Any, place: str = "", seen: dict[tuple[int, int], Any] | None = None
) -> tuple[str, str] | None:
    """Return where two values first differ and what they hold there, or ``None`` if equal.

    Everything that the values contain is compared. Types, dtypes and bits must be equal: 1 and 1.0
    differ, as do 0.0 and -0.0; a NaN equals itself. Object identity is ignored: equal parts may be
    one object or two, although their pickles would differ.

    >>> difference({"reward": 1.0}, {"reward": 2.0})
    ("['reward']", '1.0 and 2.0')
    """
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _array_difference(one, other, place)
    seen = {} if seen is None else seen
    if one is other or (id(one), id(other)) in seen:
        return None
    # Kept alive, so that no other object gets their ids.
    seen[id(one), id(other)] = one, other
    if type(one) is not type(other) and not (isinstance(one, dict) and isinstance(other, dict)):
        return place, f"{_shown(one)} and {_shown(other)}"
    if isinstance(one, gymnasium.Env):
        # An environment in an info is not a copy, so it has been stepped since.
        return None
    parts = [_parts_of(thing) for thing in (one, other)]
    if parts[0] is None or parts[1] is None:
        # An iterator that is pickled differently may still yield the same values.
        if hasattr(type(one), "__next__") or _bits(one) == _bits(other):
            return None
        return place, f"{_shown(one)} and {_shown(other)}"
    if isinstance(one, list | tuple | deque) and len(one) != len(other):
        return f"len({place})", f"{len(one)} and {len(other)}"
    for name in dict.fromkeys((*parts[0], *parts[1])):
        if name not in parts[0] or name not in parts[1]:
            return f"{place}{name}", f"only the {'first' if name in parts[0] else 'second'} time"
        if found := difference(parts[0][name], parts[1][name], f"{place}{name}", seen):
            if name == ".__dict__" and isinstance(parts[0][name], bytes):
                # An object whose class is written in C; its bytes say nothing to a reader.
                return place, f"two different contents of a {qualified_name(type(one))}"
            return found
    return None


def without_clock(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return `info` without the elapsed time that a wrapper of Gymnasium adds to it.

    `gymnasium.wrappers.RecordEpisodeStatistics` puts a dict of return, length and elapsed seconds,
    ``{"r": ..., "l": ..., "t": ...}``, under the key ``"episode"`` or another key that the user
    chose.
    """
    check_info(info)
    left = dict(info)
    for key, value in info.items():
        if type(value) is dict and value.keys() == {"r", "l", "t"}:
            left[key] = {"r": value["r"], "l": value["l"]}
    return left


def attributes(env: gymnasium.Env[Any, Any]) -> dict[str, bytes]:
    """Return the attributes of a wrapper chain that are plain data, encoded as bytes, by name.

    Keys are ``Class.attribute``, or ``Class.attribute.attribute`` inside objects. Wrappers
    without any effect are left out.
    """
    found: dict[str, bytes] = {}
    seen = {id(link) for link in links(env)}
    for link in links(env):
        if is_transparent(link):
            continue
        for place, thing in reachable(link, type(link).__name__, seen - {id(link)}):
            if isinstance(thing, gymnasium.Env) and thing is not link:
                continue
            if is_configuration(thing) or not is_ordinary(type(thing)):
                continue
            for name, value in vars(thing).items():
                if name not in _IDLE and not (is_configuration(value) or is_handle(value)):
                    with contextlib.suppress(SnapshotError):
                        found[f"{place}.{name}"] = plain_data.encode(value)
    return found


def differing_attributes(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Return the names of attributes whose data differ between two environments."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _parts_of(thing: Any) -> dict[str, Any] | None:
    """Return the parts of `thing` in a dict, or ``None`` if it must be compared as a whole.

    The keys say where each part is, such as ``"[0]"`` or ``".name"``.
    """
    kind = type(thing)
    if isinstance(thing, dict):
        return {f"[{name_of_key(key, at)}]": thing[key] for at, key in enumerate(thing)}
    if isinstance(thing, set | frozenset):
        return {"": sorted(name_of_key(item, 0) for item in thing)}
    if kind in ATOMS or isinstance(thing, np.ndarray | np.generic):
        return None
    if hasattr(thing, "detach") and hasattr(thing, "__array__"):
        # A torch tensor: two pickles of the same tensor may differ.
        with contextlib.suppress(Exception):
            return {"": np.asarray(thing.detach().cpu())}
    if isinstance(thing, list | tuple | deque):
        return {f"[{index}]": value for index, value in enumerate(thing)}
    if isinstance(thing, np.random.Generator):
        return {".state": thing.bit_generator.state}
    if is_ordinary(kind) and not isinstance(thing, (*FUNCTIONS, type)):
        return {f".{name}": value for name, value in vars(thing).items()}
    if is_configuration(thing) or is_handle(thing):
        return None
    if kind.__module__ == "builtins" and not isinstance(thing, BaseException):
        return None
    return _reduced(thing)


def _reduced(thing: Any) -> dict[str, Any] | None:
    """Return the parts of `thing` that a pickle would contain."""
    try:
        reduced = thing.__reduce_ex__(4)
    except Exception:
        return None
    if not isinstance(reduced, tuple):
        return None
    parts = dict(zip(("", ".__dict__", "[...]", "{...}"), reduced[1:5], strict=False))
    for name in ("[...]", "{...}"):
        # The items and the key-value pairs are iterators.
        parts[name] = list(parts.get(name) or ())
    return parts


def _array_difference(one: Any, other: Any, place: str) -> tuple[str, str] | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return place, f"{one.dtype}{one.shape} and {other.dtype}{other.shape}"
    if one.dtype == object:
        return difference(one.tolist(), other.tolist(), place)
    if one.tobytes() == other.tobytes():
        return None
    left, right = (np.ascontiguousarray(each).reshape(-1) for each in (one, other))
    raw = (each.view(np.uint8).reshape(each.size, -1) for each in (left, right))
    first = int(np.argmax(np.not_equal(*raw).any(axis=1)))
    at = ", ".join(map(str, np.unravel_index(first, one.shape))) if one.ndim else ""
    return f"{place}[{at}]", f"{left[first]!s} and {right[first]!s}"


def _bits(value: Any) -> bytes:
    try:
        return plain_data.encode(value)
    except SnapshotError:
        pass
    try:
        return pickle.dumps(value)
    except Exception:
        # A value whose repr is only an address cannot be compared.
        shown = "" if " at 0x" in repr(value) else repr(value)
        return f"{type(value).__qualname__} {shown}".encode()


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


# The global random generators


@contextlib.contextmanager
def watched_generators() -> Iterator[Callable[[], str]]:
    """Watch the global random generators during the block, and restore them at its end.

    Yield a function that returns a sentence about the generators that were used so far. What
    another thread draws during the block, it draws again afterwards.
    """
    before = global_generators()
    saved = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield lambda: draws_note(moved_generators(before))
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def global_generators() -> dict[str, Any]:
    """Return the states of the global random generators by name, as values to compare by ``==``."""
    numpys: Any = np.random.get_state(legacy=False)
    inner = [v.tobytes() if isinstance(v, np.ndarray) else v for v in numpys["state"].values()]
    return {
        "the module random": random.getstate(),
        "numpy.random": (inner, numpys.get("has_gauss"), numpys.get("gauss")),
    }


def moved_generators(before: dict[str, Any]) -> list[str]:
    """Return the names of the global random generators whose states differ from `before`."""
    return [name for name, state in global_generators().items() if state != before[name]]


def draws_note(names: Iterable[str]) -> str:
    """Return a sentence saying that the global random generators `names` were used.

    Without names, the sentence is empty.
    """
    drawn = " and of ".join(names)
    return f"It draws from the global generator of {drawn}. " if drawn else ""

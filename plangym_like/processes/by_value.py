"""`ByValuePickler`: pickles classes and functions that other processes cannot import."""

from __future__ import annotations

import functools
from typing import Any

import cloudpickle  # type: ignore[import-untyped]


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles classes of ``__main__`` and local classes, including slots and cached members.

    This works around three limits of cloudpickle 3.1:

    - It replaces a class that has ``__slots__`` by a class without them. The original class cannot
      restore pickled objects of the new class.
    - Before Python 3.12, it rejects ``functools.cached_property``.
    - It looks up functions with an ``lru_cache`` in modules that another process does not have.
    """

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is functools.cached_property:
            return _cached_property, (thing.func, thing.attrname)
        if type(thing) is functools._lru_cache_wrapper and _is_nowhere(thing):
            return _cached_function, (thing.__wrapped__, thing.cache_parameters())
        reduced = super().reducer_override(thing)
        if isinstance(thing, type) and "__slots__" in vars(thing) and isinstance(reduced, tuple):
            name_space = reduced[1][3:4]
            if name_space and isinstance(name_space[0], dict):
                name_space[0]["__slots__"] = vars(thing)["__slots__"]
        return reduced


def _is_nowhere(function: Any) -> bool:
    return function.__module__ == "__main__" or "<locals>" in function.__qualname__


def _cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _cached_function(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)

"""Files of searches that can be resumed: a pickle that can only refer to what is marked here.

A file has the format of `plangym_like.archive.archive_file`. Its only array is the pickle. The
classes and functions that it may refer to are those marked with `stored`, so no other code runs
when it is loaded.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from plangym_like.archive import archive_file
from plangym_like.errors import InputError, StateFormatError
from plangym_like.states.rows import StateFormat

MAGIC = b"PLSPLAN1"
_KIND = "a search: give a file that Planner.save wrote"
# All classes and functions that files may refer to, by module and name.
_STORED: dict[tuple[str, str], Any] = {("collections", "deque"): deque}
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")

Stored = TypeVar("Stored", bound=Callable[..., Any])


def stored(thing: Stored) -> Stored:
    """Allow files of searches to hold objects of this class, or to refer to this function.

    When an object is loaded, its attributes are set, and its ``__init__`` is not called.
    """
    _STORED[_full_name(thing)] = thing
    return thing


def _full_name(thing: Any) -> tuple[str, str]:
    return getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")


def save(path: str | os.PathLike[str], state_format: StateFormat, value: Any) -> None:
    """Write `value` to a file, completely or not at all.

    Raises
    ------
    InputError
        It holds an object that is neither plain data nor of a class marked with `stored`.
    """
    content = np.frombuffer(_dumped(value), np.uint8)
    archive_file.save(path, state_format, 0, {"search": [content]}, MAGIC)


def load(path: str | os.PathLike[str], state_format: StateFormat) -> Any:
    """Return the value in a file.

    Raises
    ------
    StateFormatError
        The file is not one that `save` wrote, or it is damaged.
    StateMismatchError
        It belongs to another environment, version or configuration.
    """
    _, arrays = archive_file.load(path, state_format, MAGIC, _KIND)
    try:
        return _Unpickler(io.BytesIO(arrays["search"].tobytes())).load()
    except Exception as error:  # damaged data may raise anything
        raise StateFormatError(f"{path} is damaged, or of another version: {error!r}") from error


def can_hold(value: Any) -> bool:
    """Return whether a file of a search can hold this value."""
    try:
        _dumped(value)
    except InputError:
        return False
    return True


def _dumped(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, 5).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Refuses what is not plain data, and not marked with `stored`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            kind = repr(np.lib.format.dtype_to_descr(value.dtype))
            return _array, (value.tobytes(), kind, value.shape)
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return _scalar, (value.dtype.str, value.item())
        if isinstance(value, np.random.Generator):
            bits, seeds = value.bit_generator, value.bit_generator.seed_seq
            if not isinstance(seeds, np.random.SeedSequence):
                raise InputError("a search can be saved only if its generator has a SeedSequence")
            return _generator, (type(bits).__name__, bits.state, seeds.state)
        is_marked = _STORED.get(_full_name(value)) is value
        if is_marked or _STORED.get(_full_name(type(value))) is type(value):
            return NotImplemented
        raise InputError(f"a file of a search cannot hold {value!r}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _STORED[module, name]


@stored
def _array(content: bytes, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    dtype = np.lib.format.descr_to_dtype(ast.literal_eval(kind))
    return np.frombuffer(bytearray(content), dtype).reshape(shape)


@stored
def _scalar(dtype: str, value: Any) -> Any:
    return np.dtype(dtype).type(value)


@stored
def _generator(kind: str, state: Any, seeds: dict[str, Any]) -> np.random.Generator:
    if kind not in _GENERATORS:
        raise ValueError(f"there is no generator {kind}")
    bits = getattr(np.random, kind)(np.random.SeedSequence(**seeds))
    bits.state = state
    return np.random.Generator(bits)

"""Files of searches that can be resumed: plain data and arrays, from which no code runs.

A file has the format of `plangym_like.archive.archive_file`. One of its arrays, ``tree``, is JSON:
the structure of the data, in which arrays are replaced by their numbers.
"""

from __future__ import annotations

import ast
import base64
import json
import os
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
# The names of all classes and functions that files may refer to.
_STORED: dict[str, Any] = {}
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")

Stored = TypeVar("Stored", bound=Callable[..., Any])


def stored(thing: Stored) -> Stored:
    """Allow files of searches to hold objects of this class, or to refer to this function.

    When an object is loaded, its attributes are set, and its ``__init__`` is not called.
    """
    _STORED[_name(thing)] = thing
    return thing


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def save(path: str | os.PathLike[str], state_format: StateFormat, value: Any) -> None:
    """Write `value` to a file, completely or not at all.

    Raises
    ------
    InputError
        It holds an object that is neither plain data nor of a class marked with `stored`.
    """
    encoder = _Encoder()
    text = json.dumps(encoder.encode(value)).encode()
    arrays = {"tree": [np.frombuffer(text, np.uint8)]}
    for index, array in enumerate(encoder.arrays):
        arrays[str(index)] = [np.frombuffer(array.tobytes(), np.uint8)]
    archive_file.save(path, state_format, 0, arrays, MAGIC)


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
        return _Decoder(arrays).decode(json.loads(arrays["tree"].tobytes()))
    except (KeyError, TypeError, ValueError, SyntaxError, AttributeError) as error:
        raise StateFormatError(f"{path} is damaged, or of another version: {error!r}") from error


def can_hold(value: Any) -> bool:
    """Return whether a file of a search can hold this value."""
    try:
        _Encoder().encode(value)
    except InputError:
        return False
    return True


class _Encoder:
    """Turns data into JSON; `arrays` are the arrays that it refers to by number."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._numbers: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        """Return `value` as JSON: plain values as they are, and others as a list with a tag."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return self._array(value)
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return ["scalar", value.dtype.str, value.item()]
        if type(value) is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if type(value) is list and value and all(type(item) is bytes for item in value):
            lengths = np.array([len(item) for item in value])
            return [
                "blobs",
                self._array(lengths),
                self._array(np.frombuffer(b"".join(value), "u1")),
            ]
        if type(value) in (list, tuple, set, frozenset):
            return [type(value).__name__, [self.encode(item) for item in value]]
        if type(value) is deque:
            return ["deque", value.maxlen, [self.encode(item) for item in value]]
        if type(value) is dict:
            return ["dict", [[self.encode(key), self.encode(one)] for key, one in value.items()]]
        if isinstance(value, np.random.Generator):
            return ["rng", *self._generator(value)]
        if _STORED.get(_name(type(value))) is type(value):
            if isinstance(value, tuple):
                return ["record", _name(type(value)), [self.encode(item) for item in value]]
            return ["object", _name(type(value)), self.encode(value.__getstate__() or {})]
        if callable(value) and _STORED.get(_name(value)) is value:
            return ["name", _name(value)]
        raise InputError(f"a file of a search cannot hold {value!r}")

    def _array(self, array: NDArray[Any]) -> Any:
        number = self._numbers.get(id(array))
        if number is None:
            number = self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
        kind = repr(np.lib.format.dtype_to_descr(array.dtype))
        return ["array", number, kind, list(array.shape)]

    def _generator(self, rng: np.random.Generator) -> list[Any]:
        seeds = rng.bit_generator.seed_seq
        if not isinstance(seeds, np.random.SeedSequence):
            raise InputError("a search can be saved only if its generator has a SeedSequence")
        spawned = self.encode(seeds.state)
        return [type(rng.bit_generator).__name__, self.encode(rng.bit_generator.state), spawned]


class _Decoder:
    """Turns JSON back into data; see `_Encoder`."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._raw = arrays
        self._arrays: dict[int, NDArray[Any]] = {}

    def decode(self, value: Any) -> Any:
        """Return the data that the JSON `value` describes."""
        if not isinstance(value, list):
            return value
        tag, *rest = value
        decoded: Any = getattr(self, f"_{tag}")(*rest)
        return decoded

    def _array(self, number: int, kind: str, shape: list[int]) -> NDArray[Any]:
        if number not in self._arrays:
            dtype = np.lib.format.descr_to_dtype(ast.literal_eval(kind))
            raw = self._raw[str(number)].tobytes()
            self._arrays[number] = np.frombuffer(bytearray(raw), dtype).reshape(shape)
        return self._arrays[number]

    def _scalar(self, dtype: str, value: Any) -> Any:
        return np.dtype(dtype).type(value)

    def _bytes(self, text: str) -> bytes:
        return base64.b64decode(text)

    def _blobs(self, lengths: Any, content: Any) -> list[bytes]:
        ends, joined = np.cumsum(self.decode(lengths)).tolist(), self.decode(content).tobytes()
        return [joined[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _list(self, items: list[Any]) -> list[Any]:
        return [self.decode(item) for item in items]

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self._list(items))

    def _set(self, items: list[Any]) -> set[Any]:
        return set(self._list(items))

    def _frozenset(self, items: list[Any]) -> frozenset[Any]:
        return frozenset(self._list(items))

    def _deque(self, maxlen: int | None, items: list[Any]) -> deque[Any]:
        return deque(self._list(items), maxlen)

    def _dict(self, items: list[Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(one) for key, one in items}

    def _rng(self, kind: str, state: Any, seeds: Any) -> np.random.Generator:
        if kind not in _GENERATORS:
            raise ValueError(f"there is no generator {kind}")
        bits = getattr(np.random, kind)(np.random.SeedSequence(**self.decode(seeds)))
        bits.state = self.decode(state)
        return np.random.Generator(bits)

    def _record(self, name: str, items: list[Any]) -> Any:
        return _STORED[name](*self._list(items))

    def _object(self, name: str, attributes: Any) -> Any:
        found = _STORED[name]
        made = found.__new__(found)
        vars(made).update(self.decode(attributes))
        return made

    def _name(self, name: str) -> Any:
        return _STORED[name]

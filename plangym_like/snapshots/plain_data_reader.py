"""`PlainDataReader`: decodes the format of `plangym_like.snapshots.plain_data`.

Damaged bytes cannot cause large allocations, because every length is checked against the number of
remaining bytes.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from plangym_like.errors import StateFormatError
from plangym_like.snapshots.array_layout import view_of
from plangym_like.snapshots.plain_data_writer import FACTORIES, MAX_DEPTH
from plangym_like.states import random_state

_MAX_AXES = 32
_LONG = struct.Struct("<q")
_COUNT = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_DTYPE = re.compile(rb"[<>|][biufcSUmM][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,7}\])?")


class PlainDataReader:
    """Reads values from `data`, which may contain references to the objects in `known`."""

    def __init__(self, data: bytes, known: Sequence[Any]) -> None:
        self.data = data
        self.place = 0
        self.depth = 0
        self.seen: list[Any] = list(known)

    def get(self) -> Any:
        if self.depth >= MAX_DEPTH:
            self.damaged("nested too deeply")
        reader = _READERS.get(self.data[self.place : self.place + 1])
        if reader is None:
            self.damaged("unknown tag")
        self.place += 1
        self.depth += 1
        value = reader(self)
        self.depth -= 1
        return value

    def take(self, count: int) -> bytes:
        start = self.place
        if not 0 <= count <= len(self.data) - start:
            self.damaged("it ends too early")
        self.place = start + count
        return self.data[start : self.place]

    def unpack(self, layout: struct.Struct) -> Any:
        if layout.size > len(self.data) - self.place:
            self.damaged("it ends too early")
        (value,) = layout.unpack_from(self.data, self.place)
        self.place += layout.size
        return value

    def count(self) -> int:
        """Return the next length; raise `StateFormatError` if it exceeds the remaining bytes."""
        count: int = self.unpack(_COUNT)
        if count > len(self.data) - self.place:
            self.damaged("it ends too early")
        return count

    def items(self) -> list[Any]:
        """Return the items of the next collection."""
        return [self.get() for _ in range(self.count())]

    def remember(self, value: Any) -> Any:
        self.seen.append(value)
        return value

    def dtype(self) -> np.dtype[Any]:
        (length,) = self.take(1)
        return _dtype_of(self.take(length))

    def damaged(self, what: str) -> NoReturn:
        raise StateFormatError(f"the bytes of plain data are damaged at {self.place}: {what}")


def _get_complex(decoder: PlainDataReader) -> complex:
    return complex(*_COMPLEX.unpack(decoder.take(_COMPLEX.size)))


def _get_text(decoder: PlainDataReader) -> str:
    return decoder.take(decoder.count()).decode("utf-8", "surrogatepass")


def _get_scalar(decoder: PlainDataReader) -> Any:
    dtype = decoder.dtype()
    return np.frombuffer(decoder.take(dtype.itemsize), dtype)[0]


def _get_array(decoder: PlainDataReader) -> Any:
    dtype = decoder.dtype()
    axes, permuted = decoder.take(2)
    if axes > _MAX_AXES:
        decoder.damaged("too many axes")
    order = decoder.take(axes) if permuted else b""
    shape = struct.unpack(f"<{axes}Q", decoder.take(8 * axes))
    count = 1
    for length in shape:
        count *= length
    nbytes = count * dtype.itemsize
    if nbytes > len(decoder.data) - decoder.place:
        decoder.damaged("it ends too early")
    array = np.empty(shape, dtype)
    if count:
        source = np.frombuffer(decoder.data, dtype, count, decoder.place)
        array[...] = source.reshape(shape)
    decoder.place += nbytes
    if permuted:
        if sorted(order) != list(range(axes)):
            decoder.damaged("invalid order of axes")
        array = array.transpose(np.argsort(np.frombuffer(order, np.uint8)))
    return decoder.remember(array)


def _get_view(decoder: PlainDataReader) -> Any:
    dtype = decoder.dtype()
    number, axes, offset = struct.unpack("<qqq", decoder.take(24))
    if not (0 <= number < len(decoder.seen) and 0 <= axes <= _MAX_AXES):
        decoder.damaged("a view of an unknown array, or with too many axes")
    owner = decoder.seen[number]
    if type(owner) is not np.ndarray or not (owner.flags.c_contiguous or owner.flags.f_contiguous):
        decoder.damaged("a view of another object than an array")
    shape = struct.unpack(f"<{axes}q", decoder.take(8 * axes))
    strides = struct.unpack(f"<{axes}q", decoder.take(8 * axes))
    if min(shape, default=1) < 1:
        decoder.damaged("a view without elements")
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    low = offset + sum(part for part in reach if part < 0)
    high = offset + sum(part for part in reach if part > 0) + dtype.itemsize
    if low < 0 or high > owner.nbytes:
        decoder.damaged("a view beyond its array")
    return decoder.remember(view_of(owner, dtype, shape, strides, offset))


def _get_array_and_view(decoder: PlainDataReader) -> Any:
    decoder.get()
    if decoder.take(1) != b"v":
        decoder.damaged("an array without a view")
    return _get_view(decoder)


def _get_list(decoder: PlainDataReader) -> list[Any]:
    value: list[Any] = decoder.remember([])
    value += decoder.items()
    return value


def _get_set(decoder: PlainDataReader) -> set[Any]:
    value: set[Any] = decoder.remember(set())
    value.update(decoder.items())
    return value


def _get_deque(decoder: PlainDataReader) -> deque[Any]:
    maxlen = decoder.unpack(_LONG)
    if maxlen < -1:
        decoder.damaged("invalid length of a deque")
    value: deque[Any] = decoder.remember(deque(maxlen=None if maxlen == -1 else maxlen))
    value.extend(decoder.items())
    return value


def _get_mapping(make: Callable[[], Any]) -> Callable[[PlainDataReader], Any]:
    def get(decoder: PlainDataReader) -> Any:
        value = make()
        if type(value) is defaultdict:
            (factory,) = decoder.take(1)
            if factory >= len(FACTORIES):
                decoder.damaged("unknown factory")
            value.default_factory = FACTORIES[factory]
        decoder.remember(value)
        for _ in range(decoder.count()):
            key = decoder.get()
            value[key] = decoder.get()
        return value

    return get


def _get_generator(decoder: PlainDataReader) -> Any:
    memory = decoder.take(random_state.GENERATOR_NBYTES)
    generator = random_state.load_generator(memory, None)
    if generator is None:
        decoder.damaged("a random generator without a state")
    return decoder.remember(generator)


def _get_reference(decoder: PlainDataReader) -> Any:
    number = decoder.unpack(_COUNT)
    if number >= len(decoder.seen):
        decoder.damaged("a reference to an unknown object")
    return decoder.seen[number]


_READERS: dict[bytes, Callable[[PlainDataReader], Any]] = {
    b"N": lambda decoder: None,
    b"T": lambda decoder: True,
    b"F": lambda decoder: False,
    b"i": lambda decoder: decoder.unpack(_LONG),
    b"I": lambda decoder: int.from_bytes(decoder.take(decoder.count()), "little", signed=True),
    b"f": lambda decoder: decoder.unpack(_FLOAT),
    b"c": _get_complex,
    b"s": _get_text,
    b"u": lambda decoder: np.str_(_get_text(decoder)),
    b"b": lambda decoder: decoder.take(decoder.count()),
    b"U": lambda decoder: np.bytes_(decoder.take(decoder.count())),
    b"B": lambda decoder: decoder.remember(bytearray(decoder.take(decoder.count()))),
    b"y": _get_scalar,
    b"a": _get_array,
    b"v": _get_view,
    b"V": _get_array_and_view,
    b"l": _get_list,
    b"t": lambda decoder: tuple(decoder.items()),
    b"q": _get_deque,
    b"S": _get_set,
    b"Z": lambda decoder: frozenset(decoder.items()),
    b"d": _get_mapping(dict),
    b"o": _get_mapping(OrderedDict),
    b"C": _get_mapping(Counter),
    b"D": _get_mapping(defaultdict),
    b"g": _get_generator,
    b"r": _get_reference,
}


@lru_cache(maxsize=256)
def _dtype_of(name: bytes) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(name):
        raise StateFormatError("the bytes of plain data are damaged: no such dtype")
    dtype = np.dtype(name.decode("ascii"))
    if not dtype.itemsize:
        raise StateFormatError("the bytes of plain data are damaged: no such dtype")
    return dtype

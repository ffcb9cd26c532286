"""`PlainDataWriter`: encodes values in the format of `plangym_like.snapshots.plain_data`."""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.array_layout import ArrayLayout, refuse_hidden_memory
from plangym_like.snapshots.set_order import order_is_kept
from plangym_like.states import random_state

MAX_DEPTH = 64
# The factories that a defaultdict may have; the bytes hold the index of its factory.
FACTORIES: tuple[Any, ...] = (None, int, float, bool, str, list, dict, set)
DTYPE_KINDS = frozenset("biufcSUmM")
_INT64 = range(-(2**63), 2**63)
_LONG = struct.Struct("<q")
_COUNT = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")


class PlainDataWriter:
    """Collects the bytes of a value in `parts`.

    Objects in `known` are written as references. Arrays whose ids are in `whole` are written before
    any view of them. If `attributes` is true, arrays in the memory of a library are refused.
    `on_set` is called with each set whose iteration order the bytes do not hold.
    """

    def __init__(
        self,
        known: Sequence[Any],
        whole: Collection[int],
        *,
        attributes: bool,
        on_set: Callable[[Any], object] = bool,
    ) -> None:
        self.parts: list[bytes] = []
        self.depth = 0
        self.numbers = {id(thing): number for number, thing in enumerate(known)}
        self.arrays = ArrayLayout(whole)
        self.attributes = attributes
        self.on_set = on_set
        self.count = len(known)

    def put(self, value: Any) -> None:
        kind = type(value)
        number = self.numbers.get(id(value))
        if number is not None:
            self.parts.append(b"r" + _COUNT.pack(number))
            return
        writer = WRITERS.get(kind)
        if writer is None:
            if not isinstance(value, np.generic):
                raise SnapshotError(f"{_name_of(kind)} is not plain data")
            writer = _put_scalar
        if self.depth >= MAX_DEPTH:
            raise SnapshotError(f"data nested more than {MAX_DEPTH} levels deep is not plain data")
        self.depth += 1
        writer(self, value)
        self.depth -= 1

    def remember(self, value: Any) -> None:
        self.numbers[id(value)] = self.count
        self.count += 1

    def items(self, items: Any) -> None:
        for item in items:
            self.put(item)


def _put_int(encoder: PlainDataWriter, value: int) -> None:
    if value in _INT64:
        encoder.parts.append(b"i" + _LONG.pack(value))
    else:
        digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        encoder.parts.append(b"I" + _COUNT.pack(len(digits)) + digits)


def _put_text(tag: bytes) -> Callable[[PlainDataWriter, Any], None]:
    def put(encoder: PlainDataWriter, value: str) -> None:
        text = value.encode("utf-8", "surrogatepass")
        encoder.parts.append(tag + _COUNT.pack(len(text)) + text)

    return put


def _put_bytes(tag: bytes) -> Callable[[PlainDataWriter, Any], None]:
    def put(encoder: PlainDataWriter, value: bytes) -> None:
        if tag == b"B":
            encoder.remember(value)
        encoder.parts.append(tag + _COUNT.pack(len(value)) + bytes(value))

    return put


def _put_scalar(encoder: PlainDataWriter, value: np.generic) -> None:
    encoder.parts.append(b"y" + _dtype_bytes(value.dtype) + value.tobytes())


def _put_array(encoder: PlainDataWriter, value: NDArray[Any]) -> None:
    if encoder.attributes:
        refuse_hidden_memory(value)
    reduced = encoder.arrays.reduce(value)
    if reduced is None:
        encoder.remember(value)
        if value.flags.c_contiguous:
            encoder.parts += (_array_head(value.dtype, value.shape, None), value.tobytes())
            return
        # The order of the axes in memory determines the order of summation, and so the last bits of
        # sums.
        order = tuple(sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis])))
        dense = value.transpose(order)
        encoder.parts += (_array_head(value.dtype, dense.shape, order), dense.tobytes())
        return
    _, (owner, dtype, shape, strides, offset) = reduced
    if id(owner) not in encoder.numbers:
        encoder.parts.append(b"V")
        encoder.put(owner)
    encoder.remember(value)
    numbers = (encoder.numbers[id(owner)], len(shape), offset, *shape, *strides)
    encoder.parts.append(b"v" + _dtype_bytes(dtype) + struct.pack(f"<{len(numbers)}q", *numbers))


def _put_sequence(tag: bytes) -> Callable[[PlainDataWriter, Any], None]:
    def put(encoder: PlainDataWriter, value: Any) -> None:
        if tag == b"l":
            encoder.remember(value)
        encoder.parts.append(tag + _COUNT.pack(len(value)))
        encoder.items(value)

    return put


def _put_deque(encoder: PlainDataWriter, value: deque[Any]) -> None:
    encoder.remember(value)
    maxlen = -1 if value.maxlen is None else value.maxlen
    encoder.parts.append(b"q" + _LONG.pack(maxlen) + _COUNT.pack(len(value)))
    encoder.items(value)


def _put_set(tag: bytes) -> Callable[[PlainDataWriter, Any], None]:
    def put(encoder: PlainDataWriter, value: Any) -> None:
        kept = order_is_kept(value)
        if not kept:
            encoder.on_set(value)
        if tag == b"S":
            encoder.remember(value)
        parts, before = encoder.parts, encoder.count
        items = []
        for item in value:
            encoder.parts = []
            encoder.put(item)
            items.append(b"".join(encoder.parts))
        encoder.parts = parts
        if encoder.count != before:
            raise SnapshotError("a set of mutable objects is not plain data")
        ordered = items if kept else sorted(items)
        encoder.parts.append(tag + _COUNT.pack(len(value)) + b"".join(ordered))

    return put


def _put_mapping(tag: bytes) -> Callable[[PlainDataWriter, Any], None]:
    def put(encoder: PlainDataWriter, value: dict[Any, Any]) -> None:
        encoder.remember(value)
        head = tag
        if isinstance(value, defaultdict):
            if value.default_factory not in FACTORIES:
                raise SnapshotError("a defaultdict is plain data only with a builtin factory")
            head += bytes([FACTORIES.index(value.default_factory)])
        encoder.parts.append(head + _COUNT.pack(len(value)))
        for key, item in value.items():
            encoder.put(key)
            encoder.put(item)

    return put


def _put_generator(encoder: PlainDataWriter, value: np.random.Generator) -> None:
    encoder.remember(value)
    encoder.parts.append(b"g" + random_state.save_generator(value))


WRITERS: dict[type, Callable[[PlainDataWriter, Any], None]] = {
    type(None): lambda encoder, value: encoder.parts.append(b"N"),
    bool: lambda encoder, value: encoder.parts.append(b"T" if value else b"F"),
    int: _put_int,
    float: lambda encoder, value: encoder.parts.append(b"f" + _FLOAT.pack(value)),
    complex: lambda encoder, value: encoder.parts.append(
        b"c" + _COMPLEX.pack(value.real, value.imag)
    ),
    str: _put_text(b"s"),
    np.str_: _put_text(b"u"),
    bytes: _put_bytes(b"b"),
    np.bytes_: _put_bytes(b"U"),
    bytearray: _put_bytes(b"B"),
    np.ndarray: _put_array,
    list: _put_sequence(b"l"),
    tuple: _put_sequence(b"t"),
    deque: _put_deque,
    set: _put_set(b"S"),
    frozenset: _put_set(b"Z"),
    dict: _put_mapping(b"d"),
    OrderedDict: _put_mapping(b"o"),
    Counter: _put_mapping(b"C"),
    defaultdict: _put_mapping(b"D"),
    np.random.Generator: _put_generator,
}


@lru_cache(maxsize=256)
def _dtype_bytes(dtype: np.dtype[Any]) -> bytes:
    name = dtype.str.encode("ascii")
    if dtype.kind not in DTYPE_KINDS or not dtype.itemsize:
        raise SnapshotError(f"an array of dtype {dtype} is not plain data")
    return bytes([len(name)]) + name


@lru_cache(maxsize=1024)
def _array_head(
    dtype: np.dtype[Any], shape: tuple[int, ...], order: tuple[int, ...] | None
) -> bytes:
    axes = b"" if order is None else bytes(order)
    head = bytes([len(shape), order is not None]) + axes + struct.pack(f"<{len(shape)}Q", *shape)
    return b"a" + _dtype_bytes(dtype) + head


def _name_of(kind: type) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"

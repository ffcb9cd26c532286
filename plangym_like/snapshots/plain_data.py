"""Encode plain data as deterministic bytes, and decode them without running code.

Plain data are ``None``, ``bool``, ``int``, ``float``, ``complex``, ``str``, ``bytes``,
``bytearray``, numpy scalars and arrays (except arrays of objects), ``list``, ``tuple``, ``dict``,
``OrderedDict``, ``Counter``, ``defaultdict`` of a builtin type, ``set``, ``frozenset``, ``deque``,
and `numpy.random.Generator` with PCG64. Containers may be nested. Each value is encoded as one tag
byte and the fields of that tag, all in little-endian order:

==================  ============================================================================
tag                 what follows
==================  ============================================================================
``N T F``           nothing: ``None``, ``True``, ``False``
``i f c``           an int64; a float64; two float64
``I s b B``         a length, then a big int, str, bytes, bytearray
``y``               dtype, then the bytes of a numpy scalar
``a``               dtype, order of the axes in memory, shape, then the elements
``t l S Z``         a length, then the items (of a set, sorted by their bytes)
``q``               ``maxlen`` or -1, a length, then the items
``d o C D``         a length, then keys and values; ``D`` has its factory's number first
``g``               the 40 bytes of `plangym_like.states.random_state`
``r``               number of an earlier mutable object, to which this is a reference
==================  ============================================================================

Shared objects stay shared, including cycles. Arrays that share memory become separate arrays. A
restored set may be iterated in another order than the saved set, since Python offers no way to set
that order.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.states import random_state

_MAX_DEPTH, _MAX_AXES = 64, 32
# The factories that a defaultdict may have; the bytes hold the index of its factory.
_FACTORIES: tuple[Any, ...] = (None, int, float, bool, str, list, dict, set)
_DTYPE_KINDS = frozenset("biufcSUmM")
_DTYPE = re.compile(rb"[<>|][biufcSUmM][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,7}\])?")
_INT64 = range(-(2**63), 2**63)
_LONG = struct.Struct("<q")
_COUNT = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")


def encode(value: Any, known: Sequence[Any] = ()) -> bytes:
    """Return the bytes of `value`.

    Parameters
    ----------
    value
        Plain data.
    known : sequence
        Objects that are written as references; `decode` needs the corresponding objects in the
        same order.

    Raises
    ------
    SnapshotError
        A part of `value` is not plain data.

    Examples
    --------
    >>> from collections import deque
    >>> decode(encode({"lives": 3, "frames": deque([1.5], maxlen=4)}))
    {'lives': 3, 'frames': deque([1.5], maxlen=4)}
    """
    writer = _Writer(known)
    writer.put(value)
    return b"".join(writer.parts)


def decode(data: bytes, known: Sequence[Any] = ()) -> Any:
    """Return the value that `data` encodes; it shares no memory with `data`.

    Raises
    ------
    StateFormatError
        The bytes do not encode a value.
    """
    reader = _Reader(data, known)
    try:
        value = reader.get()
    except StateFormatError:
        raise
    except Exception as error:
        raise StateFormatError(f"the bytes of plain data are damaged: {error}") from error
    if reader.offset != len(data):
        raise StateFormatError("the bytes of plain data are damaged: more than one value")
    return value


def is_plain_kind(value: Any) -> bool:
    """Return whether `value` is of a plain-data type; its content is not checked."""
    return type(value) in _WRITERS or isinstance(value, np.generic)


# Writing


class _Writer:
    """Collects the bytes of a value in `parts`; objects in `known` are written as references."""

    def __init__(self, known: Sequence[Any]) -> None:
        self.parts: list[bytes] = []
        self.depth = 0
        self.numbers = {id(thing): number for number, thing in enumerate(known)}
        self.count = len(known)

    def put(self, value: Any) -> None:
        kind = type(value)
        number = self.numbers.get(id(value))
        if number is not None:
            self.parts.append(b"r" + _COUNT.pack(number))
            return
        writer = _WRITERS.get(kind)
        if writer is None:
            if not isinstance(value, np.generic):
                raise SnapshotError(f"{_name_of(kind)} is not plain data")
            writer = _put_scalar
        if self.depth >= _MAX_DEPTH:
            raise SnapshotError(f"data nested more than {_MAX_DEPTH} levels deep is not plain data")
        self.depth += 1
        writer(self, value)
        self.depth -= 1

    def remember(self, value: Any) -> None:
        self.numbers[id(value)] = self.count
        self.count += 1

    def items(self, items: Any) -> None:
        for item in items:
            self.put(item)


def _put_int(writer: _Writer, value: int) -> None:
    if value in _INT64:
        writer.parts.append(b"i" + _LONG.pack(value))
    else:
        digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        writer.parts.append(b"I" + _COUNT.pack(len(digits)) + digits)


def _put_text(writer: _Writer, value: str) -> None:
    text = value.encode("utf-8", "surrogatepass")
    writer.parts.append(b"s" + _COUNT.pack(len(text)) + text)


def _put_bytes(tag: bytes) -> Callable[[_Writer, Any], None]:
    def put(writer: _Writer, value: bytes) -> None:
        if tag == b"B":
            writer.remember(value)
        writer.parts.append(tag + _COUNT.pack(len(value)) + bytes(value))

    return put


def _put_scalar(writer: _Writer, value: np.generic) -> None:
    writer.parts.append(b"y" + _dtype_bytes(value.dtype) + value.tobytes())


def in_order_of_memory(array: NDArray[Any]) -> tuple[tuple[int, ...], NDArray[Any]]:
    """Return the axes of `array` in the order in which they lie in memory, and it in this order.

    This order determines the order of summation, and so the last bits of sums.
    """
    order = tuple(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
    return order, array.transpose(order)


def _put_array(writer: _Writer, value: NDArray[Any]) -> None:
    writer.remember(value)
    order, dense = None, value
    if not value.flags.c_contiguous:
        order, dense = in_order_of_memory(value)
    writer.parts += (_array_head(value.dtype, dense.shape, order), dense.tobytes())


def _put_sequence(tag: bytes) -> Callable[[_Writer, Any], None]:
    def put(writer: _Writer, value: Any) -> None:
        if tag == b"l":
            writer.remember(value)
        writer.parts.append(tag + _COUNT.pack(len(value)))
        writer.items(value)

    return put


def _put_deque(writer: _Writer, value: deque[Any]) -> None:
    writer.remember(value)
    maxlen = -1 if value.maxlen is None else value.maxlen
    writer.parts.append(b"q" + _LONG.pack(maxlen) + _COUNT.pack(len(value)))
    writer.items(value)


def _put_set(tag: bytes) -> Callable[[_Writer, Any], None]:
    def put(writer: _Writer, value: Any) -> None:
        if tag == b"S":
            writer.remember(value)
        parts, before = writer.parts, writer.count
        items = []
        for item in value:
            writer.parts = []
            writer.put(item)
            items.append(b"".join(writer.parts))
        writer.parts = parts
        if writer.count != before:
            raise SnapshotError("a set of mutable objects is not plain data")
        writer.parts.append(tag + _COUNT.pack(len(value)) + b"".join(sorted(items)))

    return put


def _put_mapping(tag: bytes) -> Callable[[_Writer, Any], None]:
    def put(writer: _Writer, value: dict[Any, Any]) -> None:
        writer.remember(value)
        head = tag
        if isinstance(value, defaultdict):
            if value.default_factory not in _FACTORIES:
                raise SnapshotError("a defaultdict is plain data only with a builtin factory")
            head += bytes([_FACTORIES.index(value.default_factory)])
        writer.parts.append(head + _COUNT.pack(len(value)))
        for key, item in value.items():
            writer.put(key)
            writer.put(item)

    return put


def _put_generator(writer: _Writer, value: np.random.Generator) -> None:
    writer.remember(value)
    writer.parts.append(b"g" + random_state.save_generator(value))


_WRITERS: dict[type, Callable[[_Writer, Any], None]] = {
    type(None): lambda writer, value: writer.parts.append(b"N"),
    bool: lambda writer, value: writer.parts.append(b"T" if value else b"F"),
    int: _put_int,
    float: lambda writer, value: writer.parts.append(b"f" + _FLOAT.pack(value)),
    complex: lambda writer, value: writer.parts.append(
        b"c" + _COMPLEX.pack(value.real, value.imag)
    ),
    str: _put_text,
    bytes: _put_bytes(b"b"),
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
    if dtype.kind not in _DTYPE_KINDS or not dtype.itemsize:
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


# Reading


class _Reader:
    """Reads values from `data`, which may contain references to the objects in `known`."""

    def __init__(self, data: bytes, known: Sequence[Any]) -> None:
        self.data = data
        self.offset = 0
        self.depth = 0
        self.seen: list[Any] = list(known)

    def get(self) -> Any:
        if self.depth >= _MAX_DEPTH:
            self.damaged("nested too deeply")
        reader = _READERS.get(self.data[self.offset : self.offset + 1])
        if reader is None:
            self.damaged("unknown tag")
        self.offset += 1
        self.depth += 1
        value = reader(self)
        self.depth -= 1
        return value

    def take(self, count: int) -> bytes:
        start = self.offset
        if not 0 <= count <= len(self.data) - start:
            self.damaged("it ends too early")
        self.offset = start + count
        return self.data[start : self.offset]

    def unpack(self, layout: struct.Struct) -> Any:
        if layout.size > len(self.data) - self.offset:
            self.damaged("it ends too early")
        (value,) = layout.unpack_from(self.data, self.offset)
        self.offset += layout.size
        return value

    def count(self) -> int:
        """Return the next length; raise `StateFormatError` if it exceeds the remaining bytes."""
        count: int = self.unpack(_COUNT)
        if count > len(self.data) - self.offset:
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
        raise StateFormatError(f"the bytes of plain data are damaged at {self.offset}: {what}")


def _get_complex(reader: _Reader) -> complex:
    return complex(*_COMPLEX.unpack(reader.take(_COMPLEX.size)))


def _get_text(reader: _Reader) -> str:
    return reader.take(reader.count()).decode("utf-8", "surrogatepass")


def _get_scalar(reader: _Reader) -> Any:
    dtype = reader.dtype()
    return np.frombuffer(reader.take(dtype.itemsize), dtype)[0]


def _get_array(reader: _Reader) -> Any:
    dtype = reader.dtype()
    axes, permuted = reader.take(2)
    if axes > _MAX_AXES:
        reader.damaged("too many axes")
    order = reader.take(axes) if permuted else b""
    shape = struct.unpack(f"<{axes}Q", reader.take(8 * axes))
    count = 1
    for length in shape:
        count *= length
    nbytes = count * dtype.itemsize
    if nbytes > len(reader.data) - reader.offset:
        reader.damaged("it ends too early")
    array = np.empty(shape, dtype)
    if count:
        source = np.frombuffer(reader.data, dtype, count, reader.offset)
        array[...] = source.reshape(shape)
    reader.offset += nbytes
    if permuted:
        if sorted(order) != list(range(axes)):
            reader.damaged("invalid order of axes")
        array = array.transpose(np.argsort(np.frombuffer(order, np.uint8)))
    return reader.remember(array)


def _get_list(reader: _Reader) -> list[Any]:
    value: list[Any] = reader.remember([])
    value += reader.items()
    return value


def _get_set(reader: _Reader) -> set[Any]:
    value: set[Any] = reader.remember(set())
    value.update(reader.items())
    return value


def _get_deque(reader: _Reader) -> deque[Any]:
    maxlen = reader.unpack(_LONG)
    if maxlen < -1:
        reader.damaged("invalid length of a deque")
    value: deque[Any] = reader.remember(deque(maxlen=None if maxlen == -1 else maxlen))
    value.extend(reader.items())
    return value


def _get_mapping(make: Callable[[], Any]) -> Callable[[_Reader], Any]:
    def get(reader: _Reader) -> Any:
        value = make()
        if type(value) is defaultdict:
            (factory,) = reader.take(1)
            if factory >= len(_FACTORIES):
                reader.damaged("unknown factory")
            value.default_factory = _FACTORIES[factory]
        reader.remember(value)
        for _ in range(reader.count()):
            key = reader.get()
            value[key] = reader.get()
        return value

    return get


def _get_generator(reader: _Reader) -> Any:
    memory = reader.take(random_state.GENERATOR_NBYTES)
    generator = random_state.load_generator(memory, None)
    if generator is None:
        reader.damaged("a random generator without a state")
    return reader.remember(generator)


def _get_reference(reader: _Reader) -> Any:
    number = reader.unpack(_COUNT)
    if number >= len(reader.seen):
        reader.damaged("a reference to an unknown object")
    return reader.seen[number]


_READERS: dict[bytes, Callable[[_Reader], Any]] = {
    b"N": lambda reader: None,
    b"T": lambda reader: True,
    b"F": lambda reader: False,
    b"i": lambda reader: reader.unpack(_LONG),
    b"I": lambda reader: int.from_bytes(reader.take(reader.count()), "little", signed=True),
    b"f": lambda reader: reader.unpack(_FLOAT),
    b"c": _get_complex,
    b"s": _get_text,
    b"b": lambda reader: reader.take(reader.count()),
    b"B": lambda reader: reader.remember(bytearray(reader.take(reader.count()))),
    b"y": _get_scalar,
    b"a": _get_array,
    b"l": _get_list,
    b"t": lambda reader: tuple(reader.items()),
    b"q": _get_deque,
    b"S": _get_set,
    b"Z": lambda reader: frozenset(reader.items()),
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

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
``I s b B u U``     a length, then a big int, str, bytes, bytearray, numpy str, numpy bytes
``y``               dtype, then the bytes of a numpy scalar
``a``               dtype, order of the axes in memory, shape, then the elements
``v``               dtype, number of an earlier array, axes, byte offset, shape, strides
``V``               an array, then the ``v`` of a view of it
``t l S Z``         a length, then the items (sorted by their bytes if a set's order is not kept)
``q``               ``maxlen`` or -1, a length, then the items
``d o C D``         a length, then keys and values; ``D`` has its factory's number first
``g``               the 40 bytes of `plangym_like.states.random_state`
``r``               number of an earlier mutable object, to which this is a reference
==================  ============================================================================

Shared objects stay shared, including cycles and views of arrays. A restored set may be iterated in
another order than the saved set, since Python offers no way to set that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plangym_like.errors import StateFormatError
from plangym_like.snapshots.array_layout import OverlapError
from plangym_like.snapshots.plain_data_reader import PlainDataReader
from plangym_like.snapshots.plain_data_writer import WRITERS, PlainDataWriter


def encode(
    value: Any,
    known: Sequence[Any] = (),
    *,
    attributes: bool = False,
    on_set: Callable[[Any], object] = bool,
) -> bytes:
    """Return the bytes of `value`.

    Parameters
    ----------
    value
        Plain data.
    known : sequence
        Objects that are written as references; `decode` needs the corresponding objects in the
        same order.
    attributes : bool
        Whether `value` holds attributes that objects continue to use. Arrays in the memory of a
        library are then refused.
    on_set : callable
        Called with each set in `value` whose iteration order the bytes do not hold.

    Raises
    ------
    SnapshotError
        A part of `value` is not plain data; or an attribute is an array in a library's memory.

    Examples
    --------
    >>> from collections import deque
    >>> decode(encode({"lives": 3, "frames": deque([1.5], maxlen=4)}))
    {'lives': 3, 'frames': deque([1.5], maxlen=4)}
    """
    whole: set[int] = set()
    while True:
        writer = PlainDataWriter(known, whole, attributes=attributes, on_set=on_set)
        try:
            writer.put(value)
        except OverlapError as overlap:
            # Two views of one array overlap: write the whole array first, then the views.
            whole.add(overlap.args[0])
        else:
            return b"".join(writer.parts)


def decode(data: bytes, known: Sequence[Any] = ()) -> Any:
    """Return the value that `data` encodes; it shares no memory with `data`.

    Raises
    ------
    StateFormatError
        The bytes do not encode a value.
    """
    reader = PlainDataReader(data, known)
    try:
        value = reader.get()
    except StateFormatError:
        raise
    except Exception as error:
        raise StateFormatError(f"the bytes of plain data are damaged: {error}") from error
    if reader.place != len(data):
        raise StateFormatError("the bytes of plain data are damaged: more than one value")
    return value


def is_plain_kind(value: Any) -> bool:
    """Return whether `value` is of a plain-data type; its content is not checked."""
    return type(value) in WRITERS or isinstance(value, np.generic)

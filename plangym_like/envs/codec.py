"""`Codec`: saves the state of one kind of environment as bytes, and restores it.

`AttributeCodec` does so for a list of attributes.
"""

from __future__ import annotations

import abc
import itertools
import math
import reprlib
import struct
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Leaf
from plangym_like.errors import InputError, SnapshotError, StateCapacityError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chains import note_on_sets, scatter_sets
from plangym_like.snapshots.configuration import kind_of
from plangym_like.snapshots.known_wrappers import StateOwner, columns_of, restart_generators
from plangym_like.states.rows import Row, padded

# Bytes reserved for growing data, besides twice the size that they have at first.
_SLACK = 1024
_LENGTH = struct.Struct("<Q")
# The dtypes that a number may have, and their letters in the module `struct`.
_LETTERS = {np.dtype(letter).str: letter for letter in "?bBhHiIqQefd"}
# Numbers with these letters are numbers of Python, all others are of NumPy.
_PYTHON: dict[str, Any] = {"?": bool, "q": int, "d": float}


class Codec(abc.ABC):
    """Saves and restores the state of one environment, without its wrappers, as bytes.

    In a row, the random generator ``np_random`` and the wrappers' state follow these bytes; both
    are saved by `GymnasiumSimulator`.

    Attributes
    ----------
    nbytes : int
        The size of the state in bytes, a multiple of 8.
    saves_generator : bool
        Whether the environment's ``np_random`` is saved after these bytes.
    columns : dict of str to (shape, dtype), optional
        The shape and dtype of each info, if all steps have the same info keys; else ``None``.
    exactness : {"exact", "approximate"}
        Whether an episode continued from these bytes is bit-identical to an uninterrupted one.
    exactness_note : str
        Why `exactness` has its value; may be empty.
    scatters : bool
        Whether restored sets are iterated in another order than the saved ones. In trials, and in
        copies for audits, they are, to find steps that depend on the order.
    """

    nbytes: int
    saves_generator: bool = True
    columns: Mapping[str, Leaf] | None = None
    exactness: str = "exact"
    exactness_note: str = ""
    scatters: bool = False

    @abc.abstractmethod
    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return all facts that determine what the bytes mean.

        The environment's id, its arguments and its wrappers are left out; the simulator adds them.
        """

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the named fields of `payloads` ``(N, nbytes or more)``, each ``(N, ...)``."""
        return {}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write the physical quantities `physics`, a mapping of name to value, into `payload`.

        `payload` is a copy of the current state's payload.

        Raises
        ------
        InputError
            A name is unknown, or a value does not fit.
        """
        raise SnapshotError(
            "states of this environment cannot be built from physical quantities; get them from "
            "reset and step"
        )

    @abc.abstractmethod
    def read(self, payload: Row) -> int | None:
        """Write the current state into `payload` ``(nbytes,)``, and fill all of it.

        If states vary in length, `read` may instead fill only the beginning of `payload`, and
        return the number of bytes used. The state row then holds nothing after these bytes.
        """

    @abc.abstractmethod
    def write(self, payload: Row) -> None:
        """Replace the whole current state with the one in `payload` ``(nbytes,)``."""

    def reseed(self, seed: int) -> None:
        """Replace every random generator that this codec saves with one made from `seed`."""

    def renew(self) -> None:
        """Undo changes made by trials and batches, before a reset without a current state."""


class Attribute(NamedTuple):
    """An attribute of an environment that is part of its state, and how state rows hold it.

    Attributes
    ----------
    name : str
        The attribute; ``"a.b"`` is attribute ``b`` of attribute ``a``.
    dtype : dtype-like, optional
        The dtype of a number or an array, which never changes. Without it, rows hold the value as
        plain data (see `plangym_like.snapshots.plain_data`), of any type and size.
    shape : tuple of int, optional
        The shape of an array; ``None`` for a number.
    """

    name: str
    dtype: Any = None
    shape: tuple[int, ...] | None = None


class AttributeCodec(Codec):
    """Saves the attributes of an environment that are listed as its state.

    A payload holds the attributes that have a dtype, one after the other; then, if there are
    others, the length of their values as plain data, and these data. A number with the dtype
    ``int64``, ``float64`` or ``bool`` is restored as one of Python, any other as one of NumPy, and
    an array is C-contiguous. Subclasses may replace `values` and `put`, and `encoded` and
    `decoded`.

    Parameters
    ----------
    base : gymnasium.Env
        The environment; attributes without a dtype must exist already.
    attributes : sequence of Attribute
    capacity : int, optional
        Bytes for the attributes without a dtype; by default, more than twice what they need now.

    Attributes
    ----------
    attributes : tuple of Attribute
        The attributes, those with a dtype first.
    layout : numpy.dtype
        A structure of the attributes that have a dtype.
    is_strict : bool
        Whether saving raises an error if a number has another type than after a restore, or if two
        attributes are the same array.
    other_form, without_dtype : str
        What errors advise if an array has another dtype or shape, and so that values of any type,
        shape and order of axes can be saved.

    Raises
    ------
    SnapshotError
        An attribute is missing, or its value cannot be saved.
    """

    attributes: tuple[Attribute, ...] = ()
    layout: np.dtype[Any] = np.dtype([])
    is_strict: bool = False
    other_form: str = "give it another dtype or shape"
    without_dtype: str = "leave out its dtype: then any plain data are saved as they are"

    def __init__(
        self, base: Any, attributes: Sequence[Attribute], capacity: int | None = None
    ) -> None:
        self._base = base
        sized: list[Attribute] = []
        plain: list[Attribute] = []
        fields, plain_names, letters = [], [], "="
        # The types of the attributes with a dtype; which of them are arrays, and what restores
        # numbers of NumPy.
        self._kinds: list[type] = []
        self._arrays: list[int] = []
        self._decoders: list[tuple[int, type]] = []
        for each in attributes:
            if each.dtype is None:
                plain.append(each)
                plain_names.append(each.name)
                continue
            name, dtype, shape = each.name, np.dtype(each.dtype), each.shape
            letter = _letter_of(f"{type(base).__name__}.{name}", dtype, shape)
            letters += letter
            if shape is not None:
                self._arrays.append(len(sized))
            elif letter not in _PYTHON:
                self._decoders.append((len(sized), dtype.type))
            self._kinds.append(np.ndarray if shape is not None else _PYTHON.get(letter, dtype.type))
            sized.append(Attribute(name, dtype, shape))
            fields.append((name, dtype, shape or ()))
        self._pairs = [*itertools.combinations(self._arrays, 2)]
        self._sized, self.attributes = sized, (*sized, *plain)
        self._plain_names = tuple(plain_names)
        self.layout = np.dtype(fields)
        names = (*(self.layout.names or ()), *plain_names)
        self._owner = StateOwner(type(base).__name__, base, names)
        size = struct.calcsize(letters)
        self._packing = struct.Struct(f"{letters}{padded(size) - size}x")
        self._plain_at = self.nbytes = self._packing.size
        if self._plain_names:
            values = self.values()
            needed = 8 + len(self.encoded(values))
            self.nbytes += padded(capacity or 2 * needed + _SLACK)
            place = self.place(" or ".join(self._plain_names))
            if note := note_on_sets(values[len(self._sized) :], place):
                self.exactness, self.exactness_note = "approximate", note

    def values(self) -> Sequence[Any]:
        """Return the current values, in the order of `attributes`."""
        found: Sequence[Any] = self._owner.read()
        return found

    def put(self, values: Sequence[Any]) -> None:
        """Set the attributes to `values`, in the order of `attributes`."""
        self._owner.write(values)

    def place(self, name: str) -> str:
        """Return how messages call the attribute `name`."""
        return f"{type(self._base).__name__}.{name}"

    def fingerprint_fields(self) -> Mapping[str, Any]:
        return {
            "attributes": [
                [name, None if dtype is None else dtype.str, shape]
                for name, dtype, shape in self.attributes
            ]
        }

    def fields(self, payloads: Row) -> NDArray[Any]:
        """Return the attributes with a dtype as a structured array ``(N,)``.

        It refers to the memory of `payloads` ``(N, nbytes or more)`` if that is one payload.
        """
        raw = np.ascontiguousarray(payloads[:, : self.layout.itemsize])
        found: NDArray[Any] = raw.view(self.layout)[:, 0]
        return found

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the attributes by name, each ``(N, ...)``.

        Attributes without a dtype are left out unless their values are numbers, or arrays, of one
        shape and dtype.
        """
        found = {}
        if self._sized:
            fields = self.fields(payloads)
            found = {name: fields[name] for name in self.layout.names or ()}
        if not self._plain_names:
            return found
        plain = [self._plain_by_name(each, self._sized_values(each)) for each in payloads]
        return {**found, **columns_of(plain)}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write the attributes in `physics`, by name, into `payload`."""
        fields: Any = self.fields(payload[None]) if self._sized else None
        plain = {}
        for name, value in physics.items():
            if name in self._plain_names:
                plain[name] = value
            elif name not in (self.layout.names or ()):
                told = ", ".join(each.name for each in self.attributes)
                raise InputError(f"this state has no field {name!r}; its fields are {told}")
            else:
                _put_number(fields[name][0, ...], name, value)
        if plain:
            # Once, because the plain data may refer to these arrays.
            sized = self._sized_values(payload)
            values = {**self._plain_by_name(payload, sized), **plain}.values()
            self._put_plain(payload, self.encoded((*sized, *values)))

    def reseed(self, seed: int) -> None:
        """Restart the random generators that are attributes, except ``np_random``."""
        if self._plain_names:
            own = vars(self._base).get("_np_random")
            restart_generators(self.values(), [own, self._base], seed)

    def read(self, payload: Row) -> None:
        values = self.values()
        fields: Any = values[: len(self._sized)] if self._plain_names else values
        if self.is_strict:
            self._check_types(fields)
        if self._arrays:
            fields = [*fields]
            for at in self._arrays:
                fields[at] = self._bytes_of(fields[at], at)
        try:
            self._packing.pack_into(payload.data, 0, *fields)
        except (struct.error, OverflowError) as error:
            raise self._out_of_range(fields) from error
        if self._plain_names:
            self._put_plain(payload, self.encoded(values))

    def write(self, payload: Row) -> None:
        values = self._sized_values(payload) if self._sized else []
        if self._plain_names:
            values += self._plain_values(payload, values)
        self.put(values)

    def _sized_values(self, payload: Row) -> list[Any]:
        fields = list(self._packing.unpack_from(payload.data))
        for at, kind in self._decoders:
            fields[at] = kind(fields[at])
        for at in self._arrays:
            shape: Any
            _, dtype, shape = self._sized[at]
            fields[at] = np.ndarray(shape, dtype, fields[at]).copy()
        return fields

    def _check_types(self, values: Sequence[Any]) -> None:
        """Raise `SnapshotError` if a number has another type than after a restore.

        Two entries that are the same array are an error too, because they would be two arrays.
        """
        found = [*map(type, values)]
        if found != self._kinds:
            for at, kind in enumerate(self._kinds):
                if found[at] is not kind and kind is not np.ndarray:
                    raise self._wrong_number(values[at], at)
        for first, second in self._pairs:
            if values[first] is values[second] and type(values[first]) is np.ndarray:
                one, other = (self.place(self._sized[at].name) for at in (first, second))
                raise SnapshotError(
                    f"{one} and {other} are the same array, and would be two after a restore: "
                    "make one a copy, or leave out the dtypes and shapes of both"
                )

    def _wrong_number(self, value: Any, at: int) -> SnapshotError:
        (name, dtype, _), kind = self._sized[at], self._kinds[at]
        told = kind.__name__ if kind.__module__ == "builtins" else f"np.{kind.__name__}"
        advice = f"convert it with {told}(...)"
        if not _keeps(kind, value):
            advice = "give it another dtype"
        return SnapshotError(
            f"{self.place(name)} is {_shown(value)}, but a number with the dtype {dtype} must "
            f"have the type {told}: {advice}, or {self.without_dtype}"
        )

    def _out_of_range(self, fields: Sequence[Any]) -> SnapshotError:
        """Return the error for the first of `fields` that is not a number of its dtype."""
        for each, value in zip(self._sized, fields, strict=True):
            try:
                if each.shape is None:
                    struct.pack(_LETTERS[each.dtype.str], value)
            except (struct.error, OverflowError):
                break
        told = (
            f"{self.place(each.name)} is {_shown(value)}, which the dtype {each.dtype} cannot hold"
        )
        advice = f": give it another dtype, or {self.without_dtype}" if self.is_strict else ""
        return SnapshotError(f"{told}{advice}")

    def _bytes_of(self, value: Any, at: int) -> bytes:
        name, dtype, shape = self._sized[at]
        if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
            told = _shown(value)
        elif value.flags.c_contiguous:
            return value.tobytes()
        else:
            told = "not C-contiguous"
        advice = "convert it, for example with np.asarray(value, dtype, order='C')"
        if not _fits(value, dtype, shape):
            advice = self.other_form
        raise SnapshotError(
            f"{self.place(name)} is {told}, but must be a C-contiguous array {dtype}{shape}: "
            f"{advice}, or {self.without_dtype}"
        )

    # Attributes without a dtype

    def known(self, sized: Sequence[Any], *, for_decoding: bool = False) -> Sequence[Any]:
        """Return objects that plain data hold as references, in a fixed order.

        `sized` are the values of the attributes with a dtype. If `for_decoding` is true, all of
        these objects must exist.
        """
        return ()

    def encoded(self, values: Sequence[Any]) -> bytes:
        """Return the last of `values`, those of attributes without a dtype, as bytes."""
        count = len(self._sized)
        try:
            return plain_data.encode(tuple(values[count:]), self.known(values[:count]))
        except SnapshotError as error:
            place = self.place(" or ".join(self._plain_names))
            raise SnapshotError(f"{place} cannot be saved: {error}") from error

    def decoded(self, data: bytes, sized: Sequence[Any] = ()) -> Sequence[Any]:
        """Return the values whose bytes are `data`, a result of `encoded`.

        `sized` are the values of the attributes with a dtype in the same state.
        """
        values: Sequence[Any] = plain_data.decode(data, self.known(sized, for_decoding=True))
        if type(values) is not tuple or len(values) != len(self._plain_names):
            raise StateFormatError("a state row is damaged: it has other attributes")
        return values

    def _put_plain(self, payload: Row, data: bytes) -> None:
        begin, end = self._plain_at + _LENGTH.size, self._plain_at + _LENGTH.size + len(data)
        if end > self.nbytes:
            end -= self._plain_at
            raise StateCapacityError(
                f"a state of {end} bytes is larger than the {self.nbytes - self._plain_at} "
                f"reserved; make the environment with state_capacity={padded(2 * end)}"
            )
        memory = payload.data
        _LENGTH.pack_into(memory, self._plain_at, len(data))
        memory[begin : self.nbytes] = data.ljust(self.nbytes - begin, b"\0")

    def _plain_by_name(self, payload: Row, sized: Sequence[Any]) -> dict[str, Any]:
        values = self._plain_values(payload, sized)
        return dict(zip(self._plain_names, values, strict=True))

    def _plain_values(self, payload: Row, sized: Sequence[Any]) -> Sequence[Any]:
        memory, begin = payload.data, self._plain_at + _LENGTH.size
        (used,) = _LENGTH.unpack_from(memory, self._plain_at)
        if used > self.nbytes - begin:
            raise StateFormatError("a state row is damaged: its length is wrong")
        values = self.decoded(bytes(memory[begin : begin + used]), sized)
        if self.scatters:
            scatter_sets(values)
        return values


def _put_number(place: NDArray[Any], name: str, value: Any) -> None:
    """Write `value` to `place`, the field `name`; raise `InputError` if it does not fit."""
    try:
        given = np.asarray(value)
        with np.errstate(all="ignore"):
            written = given.astype(place.dtype)
        # Numbers of Python, because NumPy would round those that it compares. NaN fits NaN.
        pairs = zip(written.ravel().tolist(), given.ravel().tolist(), strict=True)
        same = all(one == other or (one != one and other != other) for one, other in pairs)
        fits = same and given.shape == place.shape
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise InputError(
            f"{name} must be {place.dtype}{place.shape}, and fit exactly, got {value!r}"
        )
    place[...] = written


def _shown(value: Any) -> str:
    """Return what error messages say of `value`: its class, and in short what it is."""
    if type(value) is np.ndarray:
        return f"an array {value.dtype}{value.shape}"
    show: Any = type(value).__repr__
    if isinstance(value, np.ndarray) or show is object.__repr__:  # that shows a memory address
        return kind_of(value)
    try:
        return f"{reprlib.repr(value)}, {kind_of(value)}"
    except ValueError:  # a number with more digits than Python shows
        return kind_of(value)


def _keeps(kind: Any, value: Any) -> bool:
    """Return whether ``kind(value)`` is the number `value`."""
    try:
        with warnings.catch_warnings(action="error"):  # NumPy warns where it cannot convert
            kept = kind(value)
            return np.ndim(value) == 0 and bool(kept == value or (kept != kept and value != value))
    except Exception:  # of a class of the user
        return False


def _fits(value: Any, dtype: np.dtype[Any], shape: Any) -> bool:
    """Return whether `value` can be made an array of `dtype` and `shape`."""
    try:
        array = np.asarray(value)
    except Exception:  # a nest of lists of several lengths, or a class of the user
        return False
    return array.shape == shape and np.can_cast(array.dtype, dtype, "same_kind")


def _letter_of(place: str, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> str:
    """Return the format of an attribute for `struct`; raise `SnapshotError` if there is none."""
    if shape is None:
        if dtype.str not in _LETTERS:
            raise SnapshotError(f"{place} cannot be saved as a number {dtype}; leave out its dtype")
        return _LETTERS[dtype.str]
    if dtype.hasobject:
        raise SnapshotError(
            f"{place} cannot be saved as an array {dtype}, whose items are objects: make it a "
            "list, and leave out its dtype and shape"
        )
    return f"{math.prod(shape) * dtype.itemsize}s"

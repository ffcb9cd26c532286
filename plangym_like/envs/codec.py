"""`Codec`: saves the state of one kind of environment as bytes, and restores it.

`AttributeCodec` does so for a list of attributes.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Leaf
from plangym_like.errors import InputError, SnapshotError, StateCapacityError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chains import note_on_sets, scatter_sets
from plangym_like.snapshots.configuration import kind_of
from plangym_like.snapshots.known_wrappers import StateOwner, columns_of, restart_generators
from plangym_like.snapshots.plain_data import in_order_of_memory
from plangym_like.states.rows import Row, padded

# Bytes reserved for growing data, besides twice the size that they have at first.
_SLACK = 1024
_LENGTH = struct.Struct("<Q")
# The dtypes that a number may have, and their letters in the module `struct`.
_LETTERS = {np.dtype(letter).str: letter for letter in "?bBhHiIqQefd"}
# The types that a number may have, in the order of their numbers in state rows.
_TYPES: list[Any] = [bool, int, float, *(np.dtype(letter).type for letter in "?bBhHiIlLqQefd")]
_PYTHON: dict[str, Any] = {"?": bool, "q": int, "d": float}
# Arrays with more axes must be C-contiguous: a byte holds the order of so many.
_MOST_AXES = 5


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
    an array is C-contiguous; but see `keeps_forms`. Subclasses may replace `values` and `put`, and
    `encoded` and `decoded`.

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
    keeps_forms : bool
        Whether numbers are restored with the types, and arrays with the order of axes in memory,
        that they had when they were saved (see `_Forms`).

    Raises
    ------
    SnapshotError
        An attribute is missing, or its value cannot be saved.
    """

    attributes: tuple[Attribute, ...] = ()
    layout: np.dtype[Any] = np.dtype([])
    keeps_forms: bool = False

    def __init__(
        self, base: Any, attributes: Sequence[Attribute], capacity: int | None = None
    ) -> None:
        self._base = base
        sized: list[Attribute] = []
        plain: list[Attribute] = []
        fields, plain_names, letters = [], [], "="
        self._decoders: list[Callable[[Any], Any] | None] = []
        for each in attributes:
            if each.dtype is None:
                plain.append(each)
                plain_names.append(each.name)
                continue
            name, dtype, shape = each.name, np.dtype(each.dtype), each.shape
            sized.append(Attribute(name, dtype, shape))
            fields.append((name, dtype, shape or ()))
            letter, decode = _packing_of(f"{type(base).__name__}.{name}", dtype, shape)
            letters += letter
            self._decoders.append(decode)
        # Whether all of these are numbers of Python, which are packed as they are.
        self._are_plain = not any(self._decoders)
        self._arrays = [at for at, each in enumerate(sized) if each.shape is not None]
        self._forms: _Forms | None = None
        # Where the forms begin; 0 if there are none.
        self._forms_at = 0
        if self.keeps_forms and sized:
            self._forms = _Forms(self, sized, self._arrays, self._decoders, letters)
            self._forms_at = self._forms.at
            letters += f"{self._forms.nbytes}x"  # zeros, unless a form is unusual
        self._sized, self.attributes = sized, (*sized, *plain)
        self._plain_names = tuple(plain_names)
        self.layout = np.dtype(fields)
        names = (*(self.layout.names or ()), *plain_names)
        self._owner = StateOwner(type(base).__name__, base, names)
        self._packing = _packing_with_zeros(letters)
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
        return {**found, **columns_of([self._plain_by_name(each) for each in payloads])}

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
                if self._forms is not None:
                    self._forms.fit(payload, name, value)
        if plain:
            now = self._plain_by_name(payload)
            values = *self._sized_values(payload), *{**now, **plain}.values()
            self._put_plain(payload, self.encoded(values))

    def reseed(self, seed: int) -> None:
        """Restart the random generators that are attributes, except ``np_random``."""
        if self._plain_names:
            own = vars(self._base).get("_np_random")
            restart_generators(self.values(), [own, self._base], seed)

    def read(self, payload: Row) -> None:
        values = self.values()
        fields = given = values[: len(self._sized)] if self._plain_names else values
        packing, forms = self._packing, self._forms
        if not self._are_plain:
            fields = [
                value if shape is None else self._bytes_of(value, name, dtype, shape)
                for value, (name, dtype, shape) in zip(values, self._sized, strict=False)
            ]
        if forms is not None and not forms.are_usual(given):
            packing, fields = forms.packing, (*fields, forms.of(given))
        try:
            packing.pack_into(payload.data, 0, *fields)
        except struct.error as error:
            told = ", ".join(map(repr, fields[: len(self._sized)]))
            raise SnapshotError(
                f"{self.place(self.attributes[0].name)} and the attributes after it cannot be "
                f"saved: {told} are not numbers of the dtypes that are given for them: {error}"
            ) from error
        if self._plain_names:
            self._put_plain(payload, self.encoded(values))

    def write(self, payload: Row) -> None:
        values = self._sized_values(payload) if self._sized else []
        if self._plain_names:
            values += self._plain_values(payload, values)
        self.put(values)

    def _sized_values(self, payload: Row) -> list[Any]:
        memory, decoders = payload.data, self._decoders
        fields = list(self._packing.unpack_from(memory))
        if self._forms_at and memory[self._forms_at]:
            assert self._forms is not None
            decoders = self._forms.decoders(memory)
        elif self._are_plain:
            return fields
        return [
            field if decode is None else decode(field)
            for field, decode in zip(fields, decoders, strict=False)
        ]

    def _bytes_of(self, value: Any, name: str, dtype: Any, shape: tuple[int, ...]) -> bytes:
        if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
            found = getattr(value, "shape", None)
            told = kind_of(value) if found is None else f"{value.dtype}{found}"
            raise SnapshotError(f"{self.place(name)} is {told}, not an array {dtype}{shape}")
        return value.tobytes()

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

    def _plain_by_name(self, payload: Row) -> dict[str, Any]:
        values = self._plain_values(payload, self._sized_values(payload))
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


class _Forms:
    """The types of numbers, and the order in which the axes of arrays lie in memory, as bytes.

    A row holds a byte that is 1 if any form is unusual, and one byte for each number, and for each
    array of several axes. 0 is the usual form: a number as `AttributeCodec` restores it, or an
    array that is C-contiguous. Any other byte is the number of a type, or of an order of axes,
    which determines the last bits of sums.

    Parameters
    ----------
    codec : AttributeCodec
        The codec, which names attributes in errors.
    sized : list of Attribute
        The attributes with a dtype.
    arrays : list of int
        The indices of arrays among them.
    decoders : list
        What restores the usual form of each attribute.
    letters : str
        The format of the attributes for `struct`.

    Attributes
    ----------
    packing : struct.Struct
        The format of the attributes and their forms.
    at, nbytes : int
        The place of the forms in a payload, and their length; 0 if there are none.
    """

    def __init__(
        self,
        codec: AttributeCodec,
        sized: list[Attribute],
        arrays: list[int],
        decoders: list[Any],
        letters: str,
    ) -> None:
        self._codec, self._sized = codec, sized
        # The indices of the attributes that have a byte; of these, the arrays, and the numbers with
        # their usual types.
        self._indices = [at for at, each in enumerate(sized) if len(each.shape or "ab") > 1]
        self._tables = [at for at in self._indices if sized[at].shape]
        self._numbers = {
            at: _PYTHON.get(_LETTERS[dtype.str], dtype.type)
            for at, (_, dtype, shape) in enumerate(sized)
            if shape is None
        }
        self._pairs = [*itertools.combinations(arrays, 2)]
        self._decoders = decoders
        self.nbytes = len(self._indices) and 1 + len(self._indices)
        self.packing = _packing_with_zeros(f"{letters}{self.nbytes}s")
        self.at = self.nbytes and struct.calcsize(letters)

    def are_usual(self, values: Sequence[Any]) -> bool:
        """Return whether `values` have their usual forms, and no two of them are one array."""
        for index, kind in self._numbers.items():
            if type(values[index]) is not kind:
                return False
        for index in self._tables:
            if not values[index].flags.c_contiguous:
                return False
        for one, other in self._pairs:  # noqa: SIM110, a generator takes longer
            if values[one] is values[other]:
                return False
        return True

    def of(self, values: Sequence[Any]) -> bytes:
        """Return the bytes for `values`; raise `SnapshotError` if rows cannot hold one exactly."""
        for pair in self._pairs:
            if values[pair[0]] is values[pair[1]]:
                one, other = (self._codec.place(self._sized[index].name) for index in pair)
                raise SnapshotError(
                    f"{one} and {other} are the same array, and would be two after a restore: "
                    "leave out their dtypes and shapes"
                )
        forms = bytes(self._form_of(values[index], index) for index in self._indices)
        return bytes([any(forms)]) + forms

    def _form_of(self, value: Any, index: int) -> int:
        (name, dtype, shape), kind = self._sized[index], type(value)
        if shape is not None:
            order = in_order_of_memory(value)[0]
            return 0 if value.flags.c_contiguous else self._orders(index).index(order)
        if kind is self._numbers[index]:
            return 0
        if kind not in _TYPES:
            raise SnapshotError(
                f"{self._codec.place(name)} is {value!r}, {kind_of(value)}, not a number of the "
                f"dtype {dtype}: leave out its dtype"
            )
        with np.errstate(all="ignore"), contextlib.suppress(OverflowError, ValueError):
            # If it does not fit at all, it cannot be packed.
            if kind(dtype.type(value).item()) != value and value == value:
                raise SnapshotError(
                    f"{self._codec.place(name)} is {value!r}, which a {dtype} cannot hold exactly: "
                    "give it another dtype, or none"
                )
        return 1 + _TYPES.index(kind)

    def decoders(self, memory: Any) -> list[Any]:
        """Return the functions that restore the attributes from the forms in a payload."""
        found = [*self._decoders]
        for index, form in zip(self._indices, memory[self.at + 1 :], strict=False):
            if form:
                found[index] = self._decoder(index, form)
        return found

    def _decoder(self, index: int, form: int) -> Any:
        _, dtype, shape = self._sized[index]
        forms = _TYPES if shape is None else self._orders(index)
        if form - (shape is None) >= len(forms):
            raise StateFormatError("a state row is damaged: a number of an unknown type")
        if shape is None:
            return forms[form - 1]
        order = forms[form]
        back = np.argsort(order)
        return lambda data: np.ndarray(shape, dtype, data).transpose(order).copy().transpose(back)

    def _orders(self, index: int) -> list[tuple[int, ...]]:
        name, _, shape = self._sized[index]
        if shape is None or len(shape) > _MOST_AXES:
            raise SnapshotError(
                f"{self._codec.place(name)} has more than {_MOST_AXES} axes, and is not "
                "C-contiguous: leave out its dtype and shape"
            )
        return [*itertools.permutations(range(len(shape)))]

    def fit(self, payload: Row, name: str, value: Any) -> None:
        """Give the number `name` in `payload` its usual form if its present one changes `value`."""
        forms = payload[self.at + 1 : self.at + self.nbytes]
        for at, index in enumerate(self._indices):
            if self._sized[index].name == name and self._sized[index].shape is None and forms[at]:
                if _TYPES[forms[at] - 1](value) != value:
                    forms[at] = 0
                    payload[self.at] = forms.any()


def _put_number(place: NDArray[Any], name: str, value: Any) -> None:
    """Write `value` to `place`, the field `name`; raise `InputError` if it does not fit."""
    try:
        given = np.asarray(value)
        fits = given.shape == place.shape and bool((given.astype(place.dtype) == given).all())
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise InputError(f"{name} must be {place.dtype}{place.shape}, got {value!r}")
    place[...] = value


def _packing_with_zeros(letters: str) -> struct.Struct:
    """Return the format `letters` for `struct`, with zeros up to a multiple of 8 bytes."""
    size = struct.calcsize(letters)
    return struct.Struct(f"{letters}{padded(size) - size}x")


def _packing_of(
    place: str, dtype: np.dtype[Any], shape: tuple[int, ...] | None
) -> tuple[str, Callable[[Any], Any] | None]:
    """Return the format of an attribute for `struct`, and what restores its value, if needed."""
    if shape is not None:
        if dtype.hasobject:
            raise SnapshotError(
                f"{place} cannot be saved as an array {dtype}, whose items are objects: make it a "
                "list, and leave out its dtype and shape"
            )
        nbytes = math.prod(shape) * dtype.itemsize
        return f"{nbytes}s", lambda data: np.ndarray(shape, dtype, data).copy()
    letter = _LETTERS.get(dtype.str)
    if letter is None:
        raise SnapshotError(f"{place} cannot be saved as a number {dtype}; leave out its dtype")
    return letter, None if letter in "?qd" else dtype.type

"""Plain data: every value comes back the same, and damaged bytes do no harm."""

import math
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.plain_data import decode, encode

_ARRAYS = arrays.arrays(
    dtype=st.one_of(
        arrays.boolean_dtypes(),
        arrays.integer_dtypes(),
        arrays.floating_dtypes(),
        arrays.complex_number_dtypes(),
        arrays.datetime64_dtypes(),
    ),
    shape=arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
_ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
    st.integers(-128, 127).map(np.int8),
    st.floats(width=32).map(np.float32),
)
_KEYS = st.one_of(st.none(), st.integers(), st.text(), st.tuples(st.integers(), st.text()))
_VALUES = st.recursive(
    st.one_of(_ATOMS, _ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.dictionaries(_KEYS, inner, max_size=4),
        st.dictionaries(_KEYS, inner, max_size=4).map(OrderedDict),
        st.sets(_KEYS, max_size=4),
        st.frozensets(_KEYS, max_size=4),
    ),
    max_leaves=12,
)


def _same(one: Any, other: Any) -> bool:
    """Compare values and types, all bits of them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (
            one == other or (one != one and other != other)
        )
    if isinstance(one, complex):
        return _same(one.real, other.real) and _same(one.imag, other.imag)
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            _same(a, b) and _same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


@given(_VALUES)
def test_a_value_comes_back_with_all_its_types_and_bits(value: Any) -> None:
    data = encode(value)
    back = decode(data)
    assert _same(value, back)
    assert encode(back) == data


@pytest.mark.parametrize(
    "value",
    [
        bytearray(b"frames"),
        Counter("banana"),
        defaultdict(int, {(1, 2): 3}),
        defaultdict(list, a=[1]),
        defaultdict(None, a=1),
        deque([1, 2], maxlen=7),
        np.str_("spades"),
        np.bytes_(b"hearts"),
        2**200,
        -(2**63) - 1,
        "\ud800",
        np.zeros((3, 0, 2), np.float32),
        np.array(["a", "bcd"]),
    ],
)
def test_the_less_common_kinds_come_back_too(value: Any) -> None:
    back = decode(encode(value))
    assert _same(value, back)
    if isinstance(value, defaultdict):
        assert back.default_factory is value.default_factory
    if isinstance(value, deque):
        assert back.maxlen == value.maxlen


def test_two_sets_of_the_same_have_the_same_bytes() -> None:
    forward = {f"item {number}" for number in range(50)}
    backward = {f"item {number}" for number in reversed(range(50))}
    assert encode(forward) == encode(backward)


def test_a_generator_goes_on_where_it_was() -> None:
    rng = np.random.default_rng(5)
    rng.integers(10, size=3, dtype=np.uint32)
    copy = decode(encode({"rng": rng}))["rng"]
    assert (copy.random(100) == rng.random(100)).all()
    assert copy is not rng


def test_what_is_shared_stays_shared() -> None:
    frame = np.arange(6.0)
    value = {"a": frame, "frames": deque([frame, frame], maxlen=3), "rows": [[1]] * 2}
    back = decode(encode(value))
    assert back["a"] is back["frames"][0] is back["frames"][1]
    assert back["rows"][0] is back["rows"][1]
    assert back["a"] is not frame


def test_an_object_that_holds_itself_comes_back() -> None:
    value: list[Any] = [1]
    value.append({"me": value})
    back = decode(encode(value))
    assert back[1]["me"] is back


@given(_ARRAYS, st.randoms())
def test_the_order_in_memory_comes_back(array: np.ndarray, random: Any) -> None:
    axes = list(range(array.ndim))
    random.shuffle(axes)
    turned = array.transpose(axes)
    back = decode(encode(turned))
    assert _same(turned, back)
    if turned.size > 1 and 1 not in turned.shape:
        assert np.argsort(back.strides).tolist() == np.argsort(turned.strides).tolist()


def test_nothing_shares_memory_with_the_bytes() -> None:
    array = np.zeros(4)
    data = encode([array, bytearray(3)])
    back = decode(data)
    back[0][:] = 7
    back[1][:] = b"xyz"
    array[:] = 9
    assert decode(data)[0].tolist() == [0, 0, 0, 0]
    assert decode(data)[1] == bytearray(3)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        lambda: 0,
        np.array([object()]),
        np.zeros(2, [("a", "i4")]),
        np.random.RandomState(0),
        np.random.Generator(np.random.MT19937(0)),
        defaultdict(lambda: 0),
        type("Plain", (list,), {})(),
        np.ma.zeros(2),
    ],
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(SnapshotError):
        encode([value])


def test_deep_nests_are_refused_on_both_sides() -> None:
    value: Any = 0
    for _ in range(1000):
        value = [value]
    with pytest.raises(SnapshotError, match="nested"):
        encode(value)
    with pytest.raises(StateFormatError, match="nested"):
        decode(b"t\x01\0\0\0\0\0\0\0" * 1000 + b"N")


def _decode_or_refuse(data: bytes) -> None:
    tracemalloc.start()
    try:
        decode(data)
    except StateFormatError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 200_000 + 100 * len(data)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    _decode_or_refuse(data)


@given(_VALUES, st.data())
def test_damaged_bytes_are_a_value_or_refused(value: Any, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    _decode_or_refuse(bytes(raw))
    _decode_or_refuse(bytes(raw[:cut]))
    _decode_or_refuse(bytes(raw) + b"N")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"NN",
        b"s\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"a\x03<f8\x02\0" + b"\xff" * 16,
        b"a\x03<f8\x02\0" + b"\0" * 8 + b"\xff" * 8,
        b"a\x03<f8\xff\0",
        b"a\x02|O\0\0",
        b"a\x09|S999999999\x01\0\x01" + b"\0" * 7,
        b"q\xfe" + b"\xff" * 7 + b"\0" * 8,
        b"r\x05" + b"\0" * 7,
        b"l\x01\0\0\0\0\0\0\0r\x07\0\0\0\0\0\0\0",
        b"D\x09\0\0\0\0\0\0\0\0",
        b"g" + bytes(40),
        b"v\x03<f8" + b"\0" * 24,
        b"VNN",
        b"VN",
        b"S\x01" + b"\0" * 7 + b"l" + b"\0" * 8,
        b"d\x01" + b"\0" * 7 + b"l" + b"\0" * 8 + b"N",
    ],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StateFormatError):
        decode(data)

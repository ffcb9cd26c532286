"""Objects pickled by the values of their attributes are what they were, in every form."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from plangym_like.snapshots.object_pickle import ObjectPickle


class Colour(enum.Enum):
    RED = 1


class Thing:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Other(Thing):
    pass


class Guarded(Thing):
    """Does more than to store a value when an attribute is set."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class Described(Thing):
    """Has an attribute that a property of the class hides."""

    @property
    def hidden(self) -> int:
        return 1

    @hidden.setter
    def hidden(self, value: int) -> None:
        raise AttributeError("hidden")


class Single:
    """There is one object of this class."""

    made: Any = None

    def __new__(cls) -> Single:
        cls.made = cls.made or super().__new__(cls)
        return cls.made


class NoNames:
    """Nothing is pickled as a reference."""

    def place_of(self, thing: Any) -> str | None:
        return None

    def thing_at(self, place: str) -> Any:
        raise KeyError(place)


def copied(value: Any) -> Any:
    """Return what another process would read."""
    return ObjectPickle(NoNames()).loads(ObjectPickle(NoNames()).dumps(value))


def test_attributes_keep_their_values_and_their_order() -> None:
    things = [Thing(a=1, b="x"), Thing(b="y", a=2), Thing(), Other(a=None), Thing(a=Colour.RED)]
    found = copied(things)
    assert [(type(each), list(vars(each).items())) for each in found] == [
        (type(each), list(vars(each).items())) for each in things
    ]


def test_equal_data_have_equal_bytes_whatever_was_pickled_before() -> None:
    pickler, plain = ObjectPickle(NoNames()), Thing(inside=Thing(a=1), again=[Thing(a=2)])
    before = pickler.dumps(plain)
    cycle = Thing(inside=Thing(a=1))
    cycle.inside.outside = cycle
    found = pickler.dumps(cycle)
    assert pickler.dumps(plain) == before
    assert pickler.dumps(cycle) == found
    loaded = pickler.loads(found)
    assert loaded.inside.outside is loaded


def test_what_is_shared_stays_shared_and_cycles_are_closed() -> None:
    shared = [1]
    one, other = Thing(shared=shared), Other(shared=shared)
    one.next, other.next = other, one
    one.itself = [one, {"one": one}]
    found = copied({"one": one, "other": other})
    first, second = found["one"], found["other"]
    assert first.next is second and second.next is first
    assert first.shared is second.shared and first.itself[0] is first
    assert first.itself[1]["one"] is first


def test_a_list_that_is_too_deep_is_an_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        ObjectPickle(NoNames()).dumps(deep)


@pytest.mark.parametrize("kind", [Guarded, Described])
def test_no_code_of_the_class_runs_when_attributes_are_restored(kind: Any) -> None:
    thing = kind.__new__(kind)
    vars(thing)["hidden"] = 5
    assert vars(copied(thing)) == {"hidden": 5}


def test_a_constructor_that_returns_one_object_is_called() -> None:
    assert copied([Single()])[0] is Single()


def test_names_that_are_no_variables_and_many_forms() -> None:
    things = [Thing(**{f"a{number}": number}) for number in range(40)]
    things += [Thing(**{"class": 1, "two words": 2})]
    assert [vars(each) for each in copied(things)] == [vars(each) for each in things]


def arrays() -> Iterator[Any]:
    yield np.arange(6, dtype=np.int8).reshape(2, 3)
    yield np.asfortranarray(np.arange(6.0).reshape(2, 3))
    yield np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2)
    yield np.array(3.5)
    yield np.zeros((0, 3), np.float32)
    yield np.array(["a", "bcd"])
    yield np.array([1, "x", None], object)
    yield np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])
    yield np.array(["2020-01-01"], "M8[D]")
    yield np.arange(4, dtype=">i4")


@pytest.mark.parametrize("array", [*arrays()], ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_keep_dtype_shape_order_and_memory_of_their_own(array: Any) -> None:
    found = copied(array)
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    order = np.argsort(np.abs(array.strides), kind="stable").tolist()
    assert np.argsort(np.abs(found.strides), kind="stable").tolist() == order
    assert found.flags.writeable


class Field(np.ndarray):
    def __array_finalize__(self, other: Any) -> None:
        self.charge = getattr(other, "charge", 0.0)


def test_arrays_of_subclasses_keep_their_attributes() -> None:
    field, masked = np.zeros(3).view(Field), np.ma.array([1.0, 2.0], mask=[False, True])
    field.charge = 4.5
    masked.harden_mask()
    one, other = copied([field, masked])
    assert type(one) is Field and one.charge == 4.5
    assert other.hardmask and other.mask.tolist() == [False, True]


@pytest.mark.parametrize(
    "scalar", [np.int64(-3), np.uint8(7), np.bool_(True), np.float64("nan"), np.float32(0.1)]
)
def test_scalars_keep_their_types_and_bits(scalar: Any) -> None:
    found = copied(scalar)
    assert type(found) is type(scalar) and found.tobytes() == scalar.tobytes()


def test_generators_go_on_and_spawn_as_before() -> None:
    rng = np.random.default_rng(5)
    rng.spawn(2)
    rng.integers(5, dtype=np.uint32)
    one, (other, again) = copied(rng), copied([rng, rng])
    assert other is again
    wanted = rng.integers(9, size=9, dtype=np.uint32).tolist(), rng.spawn(1)[0].random()
    for each in (one, other):
        assert each.integers(9, size=9, dtype=np.uint32).tolist() == wanted[0]
        assert each.spawn(1)[0].random() == wanted[1]

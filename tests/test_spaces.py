"""Spaces as nests of arrays, and actions that are in them or not."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st
from suite import is_at_least

from plangym_like.batch.spaces import (
    as_actions,
    empty,
    flatten,
    is_leaf,
    parts_of,
    put,
    put_parts,
    take,
)
from plangym_like.errors import ActionError, InputError, ObservationError

BOX = spaces.Box(-1, 1, (2,), np.float32)
NEST = spaces.Dict(
    b=spaces.Tuple((spaces.Discrete(4, start=-2), BOX)),
    a=spaces.Dict(x=spaces.MultiBinary(3), y=spaces.MultiDiscrete([2, 3])),
)
# Gymnasium 1.1 has no other type for this space.
OF_INT32: dict[str, Any] = {"dtype": np.int32} if is_at_least("gymnasium", "1.2.1") else {}
SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, start=10, **OF_INT32),
    BOX,
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(-5, 5, (2, 2), np.int16),
    spaces.MultiBinary((2, 3)),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-2, 3]]),
    NEST,
]
LEAVES = [space for space in SPACES if is_leaf(space)]


def samples(space: spaces.Space[Any], count: int, seed: int = 3) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(count)]


# Nests


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_batches_are_laid_out_as_gymnasium_does(space):
    elements = samples(space, 6)
    batch = empty(space, (6,))
    for index, element in enumerate(elements):
        put(space, batch, index, element)
    expected = concatenate(space, elements, create_empty_array(space, 6))
    assert_same(batch, _plain(expected))
    for index, element in enumerate(elements):
        for leaf, given_leaf in zip(
            flatten(space, take(batch, index)), flatten(space, element), strict=True
        ):
            assert np.array_equal(leaf, given_leaf)
    if not isinstance(space, spaces.MultiBinary):
        assert batch_space(space, 6).contains(batch)


def _plain(nest: Any) -> Any:
    if isinstance(nest, dict):
        return {key: _plain(value) for key, value in nest.items()}
    return tuple(map(_plain, nest)) if isinstance(nest, tuple) else nest


# Observations that do not fit

FLOATS = spaces.Box(-9, 9, (2,), np.float32)
BYTES = spaces.Box(0, 255, (2,), np.uint8)
PAIR = spaces.Tuple((spaces.Discrete(3), FLOATS))


@pytest.mark.parametrize("index", [1, (1, 2)])
@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (BYTES, [300, 1], "holds 300"),
        (BYTES, [-1, 1], "holds -1"),
        (BYTES, np.array([0, 1.5]), "float64"),
        (BYTES, 7, r"shape \(\)"),
        (BYTES, None, "None"),
        (FLOATS, np.zeros((1, 2), np.float32), r"shape \(1, 2\)"),
        (FLOATS, ["1", "2"], "list"),
        (FLOATS, [1, [2]], "inhomogeneous"),
        (FLOATS, np.array([1j, 0]), "complex"),
        (FLOATS, [0.1, 1e300], r"holds 1e\+300"),
        (FLOATS, {"a": 1}, "dict"),
        (spaces.Discrete(4), 1.0, "float"),
        (spaces.MultiDiscrete([4, 4], dtype=np.int8), [300, 0], "holds 300"),
        (spaces.Box(0, 1, (2,), bool), [0, 2], "holds 2"),
    ],
    ids=str,
)
def test_an_observation_that_does_not_fit_is_refused(space, value, told, index):
    lead = (3,) if index == 1 else (3, 4)
    batch = empty(space, lead)
    batch[...] = 1
    with pytest.raises(ObservationError, match=told):
        put(space, batch, index, value)
    assert (batch == 1).all()
    nest = spaces.Dict(a=spaces.Tuple((BOX, space)))
    with pytest.raises(ObservationError, match=rf"^obs\['a'\]\[1\]: .*{told}") as caught:
        put(nest, empty(nest, lead), index, {"a": (np.zeros(2, np.float32), value)})
    assert caught.value.path == ("a", 1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (spaces.Dict(a=BOX), {}, r"lacks \['a'\]"),
        (spaces.Dict(a=BOX), {"a": [0.0, 0], "b": 1}, r"\['b'\] are not"),
        (spaces.Dict(a=BOX), None, "None, not a dict"),
        (PAIR, (1,), "1 parts"),
        (PAIR, 3, "int, not a tuple"),
        (PAIR, np.array(3.0), "not a tuple"),
        (spaces.Text(5), None, "None"),
    ],
    ids=str,
)
def test_a_nest_that_is_another_is_refused(space, value, told):
    with pytest.raises(ObservationError, match=told):
        put(space, empty(space, (2,)), 0, value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (FLOATS, np.array([0.1, 1e-40])),
        (FLOATS, np.array([1, 2], np.uint8)),
        (FLOATS, [99.0, np.nan]),
        (BYTES, np.array([True, False])),
        (spaces.Discrete(3), np.uint8(7)),
        (spaces.MultiBinary(2), np.array([True, False])),
        (PAIR, [1, [0.5, 0.5]]),
        (spaces.Tuple((spaces.Discrete(3),) * 2), np.array([1, 2])),
    ],
    ids=str,
)
def test_what_fits_is_taken_as_numpy_takes_it(space, value):
    batch = empty(space, (2,))
    put(space, batch, 1, value)
    for leaf, given_leaf in zip(flatten(space, take(batch, 1)), flatten(space, value), strict=True):
        assert_same(np.asarray(leaf), np.asarray(given_leaf).astype(leaf.dtype))


FLAT = spaces.Dict(number=spaces.Discrete(4), box=BOX, text=spaces.Text(9))


@pytest.mark.parametrize(
    ("value", "is_usual"),
    [
        ({"number": 3, "box": np.ones(2, np.float32), "text": "hello"}, True),
        ({"text": "a", "box": np.ones(2, np.float32), "number": np.int64(2)}, True),
        ({"number": 3, "box": np.ones(2), "text": "a"}, False),
        ({"number": 2**63, "box": np.ones(2, np.float32), "text": "a"}, False),
        ({"number": 3, "box": np.ones((1, 2), np.float32), "text": "a"}, False),
        ({"number": 3, "box": np.ones(2, np.float32), "text": np.array("a", object)}, False),
        ({"number": 3, "box": np.ones(2, np.float32), "other": "a"}, False),
        ({"number": 3, "box": np.ones(2, np.float32)}, False),
        (None, False),
    ],
)
def test_parts_are_put_at_once_if_they_have_the_usual_types(value, is_usual):
    # A copied space has a copy of its dtype.
    batches = [empty(copy.deepcopy(FLAT), (2,)) for _ in range(2)]
    assert put_parts(batches[0], parts_of(batches[0]), 1, value) is is_usual
    if is_usual:
        put(FLAT, batches[1], 1, value)
        assert_same(take(batches[0], 1), take(batches[1], 1))
    array = np.zeros(2)
    assert not put_parts(array, parts_of(array), 1, value)


def test_parts_of_a_tuple_are_not_taken_from_a_dict():
    space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))
    batch = empty(space, (2,))
    assert put_parts(batch, parts_of(batch), 1, (1, 2))
    assert not put_parts(batch, parts_of(batch), 1, {0: 1, 1: 2})


# Actions that are in the space


@pytest.mark.parametrize("space", LEAVES, ids=str)
@pytest.mark.parametrize("lead", [1, 2])
def test_batches_of_actions_are_taken_as_lists_and_arrays(space, lead):
    elements = samples(space, 6)
    array = np.stack([np.asarray(element) for element in elements])
    given_actions = array if lead == 1 else array.reshape(2, 3, *array.shape[1:])
    for actions in (given_actions, list(given_actions), given_actions.tolist()):
        batch = as_actions(space, actions, lead)
        dtype = np.asarray(actions).dtype if isinstance(space, spaces.Box) else space.dtype
        assert_same(batch, np.ascontiguousarray(given_actions, dtype))


PAIR = spaces.Tuple((spaces.Discrete(5), spaces.Discrete(5)))


@pytest.mark.parametrize("kind", [np.array, list])
def test_rollouts_of_nested_actions_are_nests_of_arrays_too(kind):
    nest = kind([[0, 1], [2, 2]]), kind([[3, 3], [4, 1]])
    assert as_actions(PAIR, nest, 2) == [[(0, 3), (1, 3)], [(2, 4), (2, 1)]]
    named = spaces.Dict(a=PAIR, b=spaces.Discrete(5))
    (row, _) = as_actions(named, {"a": nest, "b": nest[1]}, 2)
    assert row == [{"a": (0, 3), "b": 3}, {"a": (1, 3), "b": 3}]


# Actions that are not


BYTE = spaces.Box(0, 200, (1,), np.uint8)
BAD_ACTIONS: list[tuple[spaces.Space[Any], list[Any]]] = [
    (spaces.Discrete(5), [5, -1, 2**40, 2**70, 1.0, float("nan"), "1", None, 1j, {"a": 1}]),
    (spaces.Discrete(3, start=2), [1, 5]),
    (BOX, [[0, float("nan")], [-float("inf"), 0], [0, "a"], [0, None], [0], [[0], [0, 0]], 0.5]),
    (BOX, [np.zeros(2, np.longdouble), np.zeros(2, complex), [[[[0.0, 0.0]]]]]),
    (BYTE, [[1.0], [2**70]]),
    (spaces.MultiBinary(2), [[0, 2], [0, -1], [0, 256]]),
    (spaces.MultiDiscrete([2, 3]), [[0, 3], [-1, 0], [0, 2**40], [0.0, 1.0]]),
    (spaces.MultiDiscrete([2, 3], start=[1, 1]), [[0, 1]]),
    (spaces.MultiDiscrete([127], np.int8, start=[-100]), [np.array([100], np.int8)]),
    (NEST, [{"a": 1}, 3, None, "ab", ()]),
    (spaces.Dict(a=BOX), [{"a": np.array([0, np.nan])}, {"a": np.zeros(3)}, {}]),
    (spaces.Tuple((BOX,)), [(np.zeros(2), 1)]),
    (PAIR, [(np.array([1]), np.array([0, 1, 2]))]),
    (spaces.Text(3), ["abcd", 5]),
]


@pytest.mark.parametrize(
    ("space", "action"), [(space, bad) for space, several in BAD_ACTIONS for bad in several]
)
def test_what_is_not_in_the_space_is_refused(space, action):
    with pytest.raises(ActionError) as caught:
        as_actions(space, action)
    assert isinstance(caught.value, InputError) and isinstance(caught.value, ValueError)
    with pytest.raises(ActionError):
        as_actions(space, [action])
    good = samples(space, 1)[0]
    with pytest.raises(ActionError):
        as_actions(space, [good, action])
    with pytest.raises(ActionError):
        as_actions(space, [[good, good], [good, action]], 2)


# Actions out of bounds

BEYOND: list[tuple[spaces.Box, Any]] = [
    (BOX, [0, 1e300]),
    (BOX, np.float32([0, -1.5])),
    (BOX, np.array([0, 9])),
    (BYTE, [-1]),
    (BYTE, [2**40]),
]


@pytest.mark.parametrize(("space", "action"), BEYOND, ids=str)
def test_finite_actions_out_of_bounds(space, action):
    given_action, nest = np.asarray(action), spaces.Dict(a=space, b=spaces.Discrete(2))
    clipped = np.clip(given_action, space.low, space.high)
    for policy, expected in (("pass", given_action), ("clip", clipped)):
        assert_same(as_actions(space, action, 0, policy), expected)
        assert_same(as_actions(space, [action] * 2, 1, policy), np.stack([expected] * 2))
        assert_same(as_actions(nest, {"a": action, "b": 1}, 0, policy)["a"], expected)
        assert_same(as_actions(nest, {"a": [action], "b": [1]}, 1, policy)[0]["a"], expected)
    with pytest.raises(ActionError, match=r"row 1\b"):
        as_actions(space, [space.low, action], 1, "raise")
    with pytest.raises(ActionError, match="is not in the action space"):
        as_actions(nest, {"a": action, "b": 1}, 0, "raise")


def test_infinite_actions_belong_to_unbounded_spaces_only():
    infinite = np.array([np.inf, -np.inf])
    with pytest.raises(ActionError):
        as_actions(BOX, infinite)
    half = spaces.Box(-np.inf, 1, (2,))
    with pytest.raises(ActionError):
        as_actions(half, infinite)
    assert_same(as_actions(half, -np.abs(infinite), 0), -np.abs(infinite))
    assert as_actions(BOX, infinite, 0, "clip").tolist() == [1, -1]
    for policy in ("pass", "raise", "clip"):
        with pytest.raises(ActionError):
            as_actions(BOX, [np.nan, 0], 0, policy)


def test_a_bound_in_double_precision_is_in_bounds():
    tenth = spaces.Box(-0.1, 0.1, (1,), np.float32)
    assert float(tenth.high[0]) > 0.1 and float(np.float32(-0.7)) > -0.7
    seven = spaces.Box(-0.7, 0.7, (1,), np.float32)
    for space, bound in ((tenth, 0.1), (seven, 0.7), (seven, -0.7)):
        assert as_actions(space, [bound], 0, "raise").tolist() == [bound]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, np.int8])
def test_actions_of_a_box_keep_their_dtype(kind):
    for actions in (np.ones(2, kind), [kind(1), kind(1)]):
        for lead in (0, 1):
            assert as_actions(BOX, actions, lead).dtype == kind
    assert as_actions(BOX, np.ones((3, 2), np.dtype(kind).newbyteorder(">"))).dtype == kind
    assert as_actions(spaces.Discrete(5), np.ones(3, np.int8)).dtype == np.int64


def test_the_message_names_the_first_bad_row():
    with pytest.raises(ActionError, match=r"action 9 \(row 2\) is not in .*Discrete\(5\)"):
        as_actions(spaces.Discrete(5), [0, 1, 9, 7])
    with pytest.raises(ActionError, match=r"\(row \(1, 2\)\)"):
        as_actions(spaces.Discrete(5), [[0, 1, 2], [3, 4, 5]], 2)
    with pytest.raises(ActionError, match=r"row 1\b"):
        as_actions(NEST, [samples(NEST, 1)[0], {"a": 3}])
    with pytest.raises(ActionError, match=r"shape \(N, T\), got"):
        as_actions(spaces.Discrete(5), [0, 1, 2], 2)
    with pytest.raises(ActionError, match="dtype bool"):
        as_actions(spaces.Discrete(5), [True, False])
    assert as_actions(spaces.MultiBinary(2), [True, False], 0).dtype == np.int8


@pytest.mark.parametrize("space", LEAVES, ids=str)
@given(data=st.data())
def test_actions_are_taken_exactly_where_gymnasium_would(space, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    array = np.asarray(space.sample()).copy()
    if data.draw(st.booleans()):
        place = tuple(int(rng.integers(n)) for n in array.shape)
        wild = [-1, 0, 1, 2, 3, 5, 12, 127, -128]
        if array.dtype.kind == "f":
            wild += [np.nan, np.inf, -np.inf, 0.5, 1.25]
        value = data.draw(st.sampled_from(wild))
        if array.dtype.kind == "u":
            value = abs(int(value))
        array[place] = value
    if space.contains(array[()] if isinstance(space, spaces.Discrete) else array):
        assert_same(as_actions(space, array[None]), np.ascontiguousarray(array[None]))
        return
    with pytest.raises(ActionError):
        as_actions(space, array[None], 1, "raise")
    if isinstance(space, spaces.Box) and np.isfinite(array).all():
        assert_same(as_actions(space, array[None]), np.ascontiguousarray(array[None]))
    else:
        with pytest.raises(ActionError):
            as_actions(space, array[None])

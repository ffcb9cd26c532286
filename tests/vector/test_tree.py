"""Trees: leaves, layouts, and what cannot be batched."""

import numpy as np
import pytest
from gymnasium import spaces
from small_trees import TREE

from plangym_like.errors import InputError
from plangym_like.vector.tree import (
    OBJECT,
    Leaf,
    layout_of,
    layout_of_space,
    named_parts,
    tree_leaves,
    tree_unflatten,
)


def test_leaves_and_back() -> None:
    found = tree_leaves(TREE)
    assert len(found) == 5
    again = tree_unflatten(TREE, iter(found))
    assert again["pair"].left is TREE["pair"].left


def test_layouts_of_examples() -> None:
    assert layout_of(3) == Leaf((), np.dtype(np.int64))
    assert layout_of(0.5) == Leaf((), np.dtype(np.float64))
    assert layout_of([1, 2]) == [Leaf((), np.dtype(np.int64))] * 2


def test_layouts_of_spaces() -> None:
    space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))))
    assert layout_of_space(space) == {
        "a": (Leaf((), np.dtype(np.int64)), Leaf((2,), np.dtype(np.int8)))
    }
    assert layout_of_space(spaces.Text(3)) == OBJECT


def test_what_is_no_number_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match=r"the value\['a'\]\[1\] is 'text'; only numbers"):
        layout_of({"a": (1, "text")})


def test_the_empty_tree_has_no_parts() -> None:
    assert named_parts(None) == {}
    assert named_parts({"a": None}) == {"a": None}
    assert named_parts(1) is None

"""Nests of tensors: layouts, rows, and what cannot become a tensor."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plangym_like.batchers.engine.nests import (
    Leaf,
    as_arrays,
    concatenate,
    empty,
    layout_of,
    layout_of_space,
    leaves,
    map_nest,
    put,
    rebuild,
    stack,
    take,
)
from plangym_like.batchers.engine.shared_nest import SharedNest, attach_nest
from plangym_like.errors import InputError


class Pair(NamedTuple):
    left: Any
    right: Any


NEST = {
    "image": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "both": (np.float64(0.25), [np.int16(3), True]),
    "pair": Pair(np.zeros(2, np.float16), None),
}


def test_dtypes_and_containers_are_kept() -> None:
    rows = empty(layout_of(NEST), (4,))
    for row in range(4):
        put(as_arrays(rows), row, NEST)
    assert rows["image"].dtype == torch.uint8
    assert rows["both"][0].dtype == torch.float64
    assert rows["both"][1][0].dtype == torch.int16
    assert rows["both"][1][1].dtype == torch.bool
    assert type(rows["pair"]) is Pair
    assert rows["pair"].left.dtype == torch.float16
    assert rows["pair"].right is None
    last = take(rows, 3)
    assert last["image"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (last["both"][0].item(), last["both"][1][0].item()) == (0.25, 3)


def test_stacked_and_joined_along_any_axis() -> None:
    rows = [empty(layout_of(NEST), (2, 1)) for _ in range(3)]
    assert stack(rows)["image"].shape == (3, 2, 1, 2, 3)
    assert concatenate(rows, 1)["image"].shape == (2, 3, 2, 3)
    assert concatenate(rows, 1)["both"][1][0].shape == (2, 3)


def test_leaves_and_back() -> None:
    found = leaves(NEST)
    assert len(found) == 5
    again = rebuild(NEST, iter(found))
    assert again["pair"].left is NEST["pair"].left


def test_the_space_decides_about_numbers_of_no_dtype() -> None:
    box = spaces.Box(0, 255, (), np.uint8)
    assert layout_of(3, box) == Leaf((), torch.uint8)
    assert layout_of(3) == Leaf((), torch.int64)
    assert layout_of(0.5) == Leaf((), torch.float64)
    assert layout_of([1, 2], spaces.MultiDiscrete([3, 3])) == Leaf((2,), torch.int64)
    assert layout_of([1, 2]) == [Leaf((), torch.int64)] * 2
    assert layout_of(np.float64(0.5), box) == Leaf((), torch.uint8)
    assert layout_of(np.zeros(2), spaces.Box(0, 1, (2,))) == Leaf((2,), torch.float32)


def test_layouts_of_spaces() -> None:
    space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))))
    assert layout_of_space(space) == {"a": (Leaf((), torch.int64), Leaf((2,), torch.int8))}
    with pytest.raises(InputError, match="Text"):
        layout_of_space(spaces.Text(3))


def test_what_is_no_number_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match=r"the value\['a'\]\[1\] is of dtype <U4"):
        layout_of({"a": (1, "text")})


def test_two_views_of_shared_memory() -> None:
    import os

    shared = SharedNest(layout_of(NEST), (3,))
    assert [tensor.count_nonzero().item() for tensor in leaves(shared.tensors)] == [0] * 5
    other = attach_nest(os.dup(shared.fd), shared.layout)
    put(as_arrays(other), 2, NEST)
    assert shared.tensors["image"][2].tolist() == NEST["image"].tolist()
    shared.close()
    assert other["image"][2, 1, 2] == 5
    assert all(tensor.data_ptr() % 64 == 0 for tensor in leaves(shared.tensors))


def test_an_empty_leaf_needs_no_memory() -> None:
    shared = SharedNest({"nothing": Leaf((0, 3), torch.float32), "x": Leaf((), torch.int64)}, (2,))
    assert shared.tensors["nothing"].shape == (2, 0, 3)
    assert map_nest(lambda leaf: leaf.shape, shared.layout)["x"] == (2,)

"""Trees of tensors: layouts, rows, and what cannot become a tensor."""

import torch
from small_trees import TREE, Pair

from plangym_like.batchers.trees import as_arrays, empty, tensor_layout, tensor_over
from plangym_like.vector.memory import SharedArrays, attach_arrays
from plangym_like.vector.tree import (
    Leaf,
    layout_of,
    take,
    tree_leaves,
    with_axes,
    write_rows,
)


def test_dtypes_and_containers_are_kept() -> None:
    rows = empty(tensor_layout(layout_of(TREE)), (4,))
    for row in range(4):
        write_rows(as_arrays(rows), row, TREE)
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


def test_two_views_of_shared_memory() -> None:
    import os

    layout = with_axes(tensor_layout(layout_of(TREE)), (3,))
    shared = SharedArrays(layout, tensor_over)
    assert [tensor.count_nonzero().item() for tensor in tree_leaves(shared.arrays)] == [0] * 5
    other = attach_arrays(os.dup(shared.fd), layout, tensor_over)
    write_rows(as_arrays(other), 2, TREE)
    assert shared.arrays["image"][2].tolist() == TREE["image"].tolist()
    shared.close()
    assert other["image"][2, 1, 2] == 5
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tree_leaves(shared.arrays))


def test_an_empty_leaf_needs_no_memory() -> None:
    layout = {"nothing": Leaf((2, 0, 3), torch.float32), "x": Leaf((2,), torch.int64)}
    shared = SharedArrays(layout, tensor_over)
    assert shared.arrays["nothing"].shape == (2, 0, 3)

"""`Trajectories`: rows of unequal length."""

import pytest
import torch

from plangym_like.batchers.episodes import DictTensor, Trajectories
from plangym_like.errors import InputError


def _make(lengths: list[int], longest: int, first: int = 0) -> Trajectories:
    steps = torch.zeros(len(lengths), longest, 2, dtype=torch.int64)
    for row, length in enumerate(lengths):
        steps[row, :length] = first + row
    info = DictTensor({"row": torch.arange(first, first + len(lengths))})
    return Trajectories({"x": steps}, torch.tensor(lengths), info)


def test_the_mask_says_which_steps_took_place() -> None:
    mask = _make([2, 0, 3], 3).mask()
    assert mask.dtype is torch.bool
    assert mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]


def test_parts_put_together_are_padded_with_zeros() -> None:
    whole = Trajectories.cat([_make([1, 2], 2, first=1), _make([4], 4, first=3)])
    assert whole["x"][..., 0].tolist() == [[1, 0, 0, 0], [2, 2, 0, 0], [3, 3, 3, 3]]
    assert whole.lengths.tolist() == [1, 2, 4] and whole.agent_info["row"].tolist() == [1, 2, 3]
    assert whole.env_info.is_empty() and whole.n_timesteps == 4
    with pytest.raises(InputError, match="no trajectories"):
        Trajectories.cat([])
    other = Trajectories({"x": whole["x"]}, whole.lengths)
    for parts in ([other, whole], [whole, other]):
        with pytest.raises(InputError, match="only some of the trajectories have an agent_info"):
            Trajectories.cat(parts)


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([1, 2]), [False, True, True]])
def test_rows_keep_what_belongs_to_them(rows: object) -> None:
    if isinstance(rows, list):
        rows = torch.tensor(rows)
    some = _make([1, 2, 3], 3).index(rows)
    assert some.n_elems() == 2 and some.agent_info["row"].tolist() == [1, 2]
    assert some.lengths.tolist() == [2, 3] and some["x"][0, 1].tolist() == [1, 1]


def test_unfolding_drops_the_padding() -> None:
    parts = _make([1, 3], 3).unfold()
    assert [part["x"].shape for part in parts] == [(1, 1, 2), (1, 3, 2)]
    assert [part.agent_info["row"].tolist() for part in parts] == [[0], [1]]
    assert _make([1, 3], 3).index(-1)["x"].shape == (1, 3, 2)


def test_a_part_of_the_time() -> None:
    steps = torch.arange(12.0).reshape(3, 4)
    parts = Trajectories({"x": steps}, torch.tensor([4, 2, 1]))
    part = parts.temporal_slice(1, 3)
    assert part["x"].tolist() == steps[:, 1:3].tolist()
    assert part.lengths.tolist() == [2, 1, 0] and part.lengths.dtype is torch.int64
    assert parts.temporal_slice(3, 9).lengths.tolist() == [1, 0, 0]
    for start, stop in ((2, 1), (-1, 2)):
        with pytest.raises(InputError, match="0 <= start <= stop"):
            parts.temporal_slice(start, stop)

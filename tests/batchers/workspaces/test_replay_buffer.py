"""The buffer: the latest entries, whole, and drawn from all of them."""

import pytest
import torch

from plangym_like.batchers.workspaces import ReplayBuffer, Workspace
from plangym_like.errors import InputError


def _entries(start: int, count: int) -> Workspace:
    """Return entries whose two steps say which they are, in every variable."""
    numbers = torch.arange(start, start + count)
    workspace = Workspace()
    workspace.set_full("x", torch.stack([numbers, numbers + 1000]))
    workspace.set_full("image", (numbers % 256).to(torch.uint8)[None, :, None].expand(2, -1, 3))
    return workspace


def _held(buffer: ReplayBuffer) -> set[int]:
    return set(buffer.get_shuffled(4000)["x"][0].tolist())


@pytest.mark.parametrize("portions", [[3, 4, 5, 6, 7], [10], [10, 10], [9, 1, 1], [25], [4, 25, 3]])
def test_the_latest_entries_are_held(portions: list[int]) -> None:
    torch.manual_seed(0)
    buffer, total = ReplayBuffer(max_size=10), 0
    for portion in portions:
        buffer.put(_entries(total, portion))
        total += portion
        assert buffer.size() == len(buffer) == min(total, 10)
        assert _held(buffer) == set(range(max(0, total - 10), total))


def test_entries_stay_whole_and_keep_their_dtype() -> None:
    buffer = ReplayBuffer(max_size=50)
    buffer.put(_entries(0, 80))
    drawn = buffer.get_shuffled(64)
    assert drawn["x"].shape == (2, 64) and drawn["image"].shape == (2, 64, 3)
    assert drawn["image"].dtype == torch.uint8
    assert (drawn["x"][1] - drawn["x"][0] == 1000).all()
    assert (drawn["image"][0, :, 0] == drawn["x"][0] % 256).all()


def test_draws_are_even_and_repeatable() -> None:
    buffer = ReplayBuffer(max_size=4)
    buffer.put(_entries(0, 4))
    torch.manual_seed(1)
    counts = buffer.get_shuffled(8000)["x"][0].bincount()
    assert (counts > 1800).all()
    first, second = (
        buffer.get_shuffled(9, torch.Generator().manual_seed(3))["x"] for _ in range(2)
    )
    assert first.equal(second)


def test_what_does_not_fit_is_refused_and_nothing_added() -> None:
    buffer = ReplayBuffer(max_size=10)
    with pytest.raises(InputError, match="empty"):
        buffer.get_shuffled(1)
    buffer.put(_entries(0, 3))
    missing, other, longer = _entries(3, 2), _entries(3, 2), _entries(3, 2)
    missing.remove_variable("image")
    other.set_full("x", other["x"].float())
    longer.set_full("x", torch.zeros(3, 2, dtype=torch.int64))
    for wrong in (missing, other, longer):
        with pytest.raises(InputError):
            buffer.put(wrong)
    assert _held(buffer) == {0, 1, 2}
    with pytest.raises(InputError, match="max_size"):
        ReplayBuffer(0)

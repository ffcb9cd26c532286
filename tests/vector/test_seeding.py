"""Seeds belong to groups and lanes, never to workers."""

import pytest

from plangym_like.errors import InputError
from plangym_like.vector.seeding import seed_groups


def test_no_two_lanes_share_a_seed() -> None:
    groups = seed_groups(0, [50] * 20)
    lanes = [seed for group in groups for seed in group.lanes]
    assert len(set(lanes)) == 1000
    assert all(0 <= seed < 2**31 for seed in lanes)
    assert len({group.words for group in groups}) == 20
    assert seed_groups(0, [50] * 20) == groups != seed_groups(1, [50] * 20)
    assert seed_groups(None, [2]) != seed_groups(None, [2])
    with pytest.raises(InputError):
        seed_groups("zero", [2])  # type: ignore[arg-type]

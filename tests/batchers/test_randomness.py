"""Noise belongs to groups, never to workers."""

import random

import numpy as np
import pytest
import torch

from plangym_like.batchers.randomness import RandomStreams, seed_groups
from plangym_like.errors import InputError


def _draw() -> list[float]:
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def test_streams_go_on_where_they_were_and_leave_no_trace() -> None:
    words = seed_groups(3, [1])[0].words
    alone = RandomStreams(words)
    with alone.in_place():
        expected = [*_draw(), *_draw()]
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    outside = [*_draw(), *_draw()]
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    streams = RandomStreams(words)
    with streams.in_place():
        first = _draw()
    between = _draw()
    with streams.in_place():
        second = _draw()
    assert [*first, *second] == expected
    assert [*between, *_draw()] == outside


def test_without_words_the_process_draws_as_ever() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2).tolist()
    torch.manual_seed(1)
    with RandomStreams(None).in_place():
        first = torch.rand(1).item()
    assert [first, torch.rand(1).item()] == expected


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

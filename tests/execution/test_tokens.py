"""Ranges of rows in a pipe: each is taken once, whole, whoever takes it and whoever dies."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from plangym_like.execution.shared_batch import Tokens, cut

ONE, OTHER = (7, 1), (7, 2)


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    made = Tokens()
    yield made
    made.close()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100, 16384])
@pytest.mark.parametrize("seconds", [0.0, 1e-7, 1e-4, 1.0])
@pytest.mark.parametrize("processes", [1, 2, 16])
def test_ranges_cover_all_rows_in_order(count: int, seconds: float, processes: int) -> None:
    ranges = list(cut(3, 3 + count, 2, seconds, processes))
    assert [row for start, stop in ranges for row in range(start, stop)] == list(
        range(3, 3 + count)
    )
    lengths = [stop - start for start, stop in ranges]
    for at in range(0, len(lengths), processes):  # each process gets an equal part in each round
        equal = lengths[at : at + processes]
        assert max(equal) - min(equal) <= 1
        assert max(lengths[at:]) <= max(equal) + 1


def test_ranges_of_rows_that_are_sorted_by_dt_take_equally_long() -> None:
    dt = np.array([1] * 900 + [100] * 100)
    seconds = [dt[start:stop].sum() * 1e-5 for start, stop in cut(0, 1000, dt, 1e-5, 2)]
    assert 0.01 < max(seconds) < 0.0131
    assert min(seconds) > 0
    assert len(list(cut(0, 1000, 1, 1e-3, 2, fine_seconds=0.05))) > 80, "ranges stay short"


def test_each_token_is_taken_once(tokens: Tokens) -> None:
    """Four processes take tokens, and one of them is killed in between."""
    ranges = [(number, number + 1) for number in range(900)]
    assert tokens.put(ONE, ranges) == []
    assert len(tokens) == 900
    read, write = os.pipe()
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            taken, mine = 0, Tokens(os.dup(tokens.read_fd), os.dup(tokens.write_fd))
            while (token := mine.take()) is not None and not (number == 0 and taken == 10):
                os.write(write, int(token[1][0]).to_bytes(8, "little"))
                taken += 1
            os._exit(0)
        children.append(pid)
    os.close(write)
    for pid in children:
        os.waitpid(pid, 0)
    found = []
    while part := os.read(read, 8):
        found.append(int.from_bytes(part, "little"))
    os.close(read)
    # The process that ended early may have held one token.
    assert len(found) == len(set(found)) >= 899
    assert len(tokens) == 0


def test_tokens_of_other_batches_stay(tokens: Tokens) -> None:
    tokens.put(ONE, [(0, 4), (4, 6)])
    assert tokens.take_of(OTHER) is None
    assert len(tokens) == 2
    assert {tokens.take_of(ONE), tokens.take_of(ONE)} == {(0, 4), (4, 6)}
    assert tokens.take() is None


def test_what_does_not_fit_is_returned(tokens: Tokens) -> None:
    ranges = [(number, number + 1) for number in range(10_000)]
    left = tokens.put(ONE, ranges)
    assert 0 < len(left) < 10_000
    # There is room for tokens that are put back, without waiting.
    for _ in range(64):
        token = tokens.take()
        assert token is not None
        tokens.put_back(*token)
    assert sorted(tokens.drain(ONE)) + left == ranges


def test_a_closed_pipe_is_empty() -> None:
    closed = Tokens()
    closed.put(ONE, [(0, 1)])
    closed.close()
    closed.close()
    assert (len(closed), closed.take(), closed.put(ONE, [(0, 1)])) == (0, None, [(0, 1)])

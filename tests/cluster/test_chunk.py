"""What is sent for a chunk and what comes back, without a cluster."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from comparing import content
from playground import CounterEnv, Diary, Letter

import plangym_like
from plangym_like.cluster.chunks import (
    Chunk,
    ChunkResult,
    ChunkSender,
    counted_from_batch,
    distinct_states,
)
from plangym_like.errors import PoisonInputError, RemoteTraceback, StepTimeoutError
from plangym_like.results import RayStats

MAKERS = {
    "counter": lambda: CounterEnv("counter"),
    "diary": lambda: plangym_like.make(Diary),
    "letter": lambda: plangym_like.make(Letter),
}


def test_shared_states_are_found():
    env = plangym_like.make("ALE/MsPacman-v5")
    env.reset(seed=0)
    rows = env.step_batch([0, 1, 0, 1, 1, 0, 1, 0], env.step_batch([5], return_state=True).states)
    rows = rows.states
    first, which = distinct_states(env.layout.format, rows)
    assert len(first) == len(np.unique(rows, axis=0)) < 8
    assert np.array_equal(rows[first][which], rows)
    assert distinct_states(env.layout.format, rows[:1]) is None


def test_states_that_only_their_sums_confuse_are_kept_apart():
    env = CounterEnv("counter")
    rows = env.layout.format.new(4)
    wide = np.zeros((4, 512), np.uint8)
    wide.view(np.uint64)[:, 0] = [3, 0, 3, 0]
    # With weights 1, 3, 5, ...: 3 in the first word weighs as much as 1 in the second.
    wide.view(np.uint64)[:, 1] = [0, 1, 0, 1]
    assert distinct_states(env.layout.format, wide) is None
    assert distinct_states(env.layout.format, rows) is None


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("horizon", [0, 3])
def test_a_chunk_makes_the_journey(kind, horizon):
    env = MAKERS[kind]()
    state = env.reset(seed=3).state
    env.action_space.seed(0)
    lead = (range(6), range(horizon)) if horizon else (range(6),)
    if horizon:
        actions = [[env.action_space.sample() for _ in lead[1]] for _ in lead[0]]
    else:
        actions = [env.action_space.sample() for _ in lead[0]]
    inputs = env.layout.check(actions, state, 1, np.arange(6), horizon=bool(horizon))
    whole = env.layout.allocate(inputs)
    env.row_stepper.run_rows(whole, 0, 6)
    rows = env.layout.allocate(inputs)
    sender = ChunkSender(env.layout, rows, RayStats(), masked=False)
    for start, stop in ((0, 2), (2, 6)):
        request, states = pickle.loads(pickle.dumps(sender.request(Chunk(start, stop))))
        part = env.layout.allocate(request.with_states(states))
        env.row_stepper.run_rows(part, 0, stop - start)
        result = ChunkResult()
        result.take(env.layout, request, env.layout.result(part))
        pickle.loads(pickle.dumps(result)).put(env.layout, rows, start)
    assert content(tuple(env.layout.result(rows))) == content(tuple(env.layout.result(whole)))


def test_errors_count_from_the_batch():
    poisoned = PoisonInputError("row 5 killed 3 fresh workers (exit status -9)", 5, -9)
    poisoned.__cause__ = RemoteTraceback("there")
    error = counted_from_batch(poisoned, 100, 256)
    assert (error.index, error.exitcode) == (105, -9)
    assert str(error).startswith("row 105 killed 3")
    assert isinstance(error.__cause__, RemoteTraceback)
    late = counted_from_batch(
        StepTimeoutError("row 2 took longer than step_timeout=1", [2]), 10, 20
    )
    assert late.indices == (12,)
    assert "row 12 took" in str(late)
    both = counted_from_batch(StepTimeoutError("rows 2, 9 took 3 times", [2, 9]), 10, 20)
    assert (both.indices, str(both)) == ((12, 19), "rows 12, 19 took 3 times")
    own = counted_from_batch(StepTimeoutError("row 2 took longer", [2]), 10, 20, of_row=True)
    assert (own.indices, str(own)) == ((2,), "row 2 took longer")
    plain = KeyError("x")
    plain.add_note("(in row 3 of a batch of 8)")
    assert counted_from_batch(plain, 40, 64).__notes__ == ["(in row 43 of a batch of 64)"]

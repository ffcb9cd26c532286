"""What is sent for a chunk and what comes back, without a cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import content
from playground import CounterEnv, Diary, Letter

import plangym_like
from plangym_like.batch.arrays import select_rows
from plangym_like.cluster.actors import Chunk

MAKERS: dict[str, Callable[[], Any]] = {
    "counter": lambda: CounterEnv("counter"),
    "diary": lambda: plangym_like.make(Diary),
    "letter": lambda: plangym_like.make(Letter),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("horizon", [0, 3])
def test_a_chunk_makes_the_journey(kind: str, horizon: int) -> None:
    env = MAKERS[kind]()
    state = env.reset(seed=3).state
    env.action_space.seed(0)
    actions: list[Any] = [env.action_space.sample() for _ in range(6)]
    if horizon:
        actions = [actions[first : first + horizon] for first in (0, 1, 2, 3, 0, 2)]
    dt = [1, 2, 1, 2, 1, 3]
    inputs = env.layout.check(actions, state, dt, np.arange(6), horizon=bool(horizon))
    whole = env.layout.allocate(inputs)
    env.row_stepper.run_rows(whole, 0, 6)
    rows = env.layout.allocate(inputs)
    nbytes = 0
    for ranges in ([(0, 2), (5, 6)], [(2, 5)]):
        chunk = Chunk(ranges)
        sent = pickle.loads(pickle.dumps(select_rows(inputs, chunk.rows)))
        part = env.layout.allocate(sent)
        env.row_stepper.run_rows(part, 0, len(chunk))
        result = pickle.loads(pickle.dumps(env.layout.result(part)))
        nbytes += env.layout.put_result(rows, chunk.rows, result)
    assert content(tuple(env.layout.result(rows))) == content(tuple(env.layout.result(whole)))
    assert nbytes > whole.next_states.nbytes

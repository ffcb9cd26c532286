"""What travels of a chunk, and where actors go: all that needs no cluster."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from comparing import content
from hypothesis import given
from hypothesis import strategies as st
from playground import CounterEnv, Diary, Letter

import plangym_like
from plangym_like.cluster.chunk import Harvest, distinct, moved, order_of
from plangym_like.cluster.places import share
from plangym_like.errors import PoisonInputError, RemoteTraceback, StepTimeoutError

MAKERS = {
    "counter": lambda: CounterEnv("counter"),
    "diary": lambda: plangym_like.make(Diary),
    "letter": lambda: plangym_like.make(Letter),
}


@given(
    cores=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    wanted=st.none() | st.integers(0, 150),
    cores_per_actor=st.none() | st.integers(1, 9),
    spread=st.booleans(),
)
def test_every_lane_finds_a_core(cores, wanted, cores_per_actor, spread):
    nodes = {f"node{index}": free for index, free in enumerate(cores)}
    places = share(nodes, wanted, cores_per_actor=cores_per_actor, spread=spread)
    assert sum(place.lanes for place in places) == min(sum(cores), wanted or 0) or wanted is None
    if wanted is None:
        assert sum(place.lanes for place in places) == sum(cores)
    used = dict.fromkeys(nodes, 0)
    for place in places:
        assert 1 <= place.lanes <= (cores_per_actor or 16)
        used[place.node] += place.lanes
    assert all(used[node] <= nodes[node] for node in nodes)
    if not spread and places:
        left = [nodes[node] - used[node] for node in nodes if used[node]]
        assert sum(map(bool, left)) <= 1, "a node was begun before another was full"


def test_lanes_are_spread_evenly():
    places = share({"a": 8, "b": 8, "c": 8}, 6)
    assert {place.node: place.lanes for place in places} == {"a": 2, "b": 2, "c": 2}


def test_shared_states_are_found():
    env = plangym_like.make("ALE/MsPacman-v5")
    env.reset(seed=0)
    rows = env.step_batch([0, 1, 0, 1, 1, 0, 1, 0], env.step_batch([5], return_state=True).states)
    rows = rows.states
    first, which = distinct(env.layout.format, rows)
    assert len(first) == len(np.unique(rows, axis=0)) < 8
    assert np.array_equal(rows[first][which], rows)
    assert distinct(env.layout.format, rows[:1]) is None


def test_states_that_only_their_sums_confuse_are_kept_apart():
    env = CounterEnv("counter")
    rows = env.layout.format.new(4)
    wide = np.zeros((4, 512), np.uint8)
    wide.view(np.uint64)[:, 0] = [3, 0, 3, 0]
    # With weights 1, 3, 5, ...: 3 in the first word weighs as much as 1 in the second.
    wide.view(np.uint64)[:, 1] = [0, 1, 0, 1]
    assert distinct(env.layout.format, wide) is None
    assert distinct(env.layout.format, rows) is None


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
    env.run_rows(whole, 0, 6)
    rows = env.layout.allocate(inputs)
    for start, stop in ((0, 2), (2, 6)):
        order = pickle.loads(
            pickle.dumps(order_of(inputs, None, start, stop, states=True, obs=True))
        )
        part = env.layout.allocate(order.inputs(inputs.states))
        env.run_rows(part, 0, stop - start)
        harvest = Harvest(0.1, {})
        harvest.take(env.layout, order, env.layout.result(part))
        pickle.loads(pickle.dumps(harvest)).put(env.layout, rows, start)
    assert content(tuple(env.layout.result(rows))) == content(tuple(env.layout.result(whole)))


def test_errors_count_from_the_batch():
    poisoned = PoisonInputError("row 5 killed 3 fresh workers (exit status -9)", 5, -9)
    poisoned.__cause__ = RemoteTraceback("there")
    error = moved(poisoned, 100, 256)
    assert (error.index, error.exitcode) == (105, -9)
    assert str(error).startswith("row 105 killed 3")
    assert isinstance(error.__cause__, RemoteTraceback)
    late = moved(StepTimeoutError("row 2 took longer than step_timeout=1", [2]), 10, 20)
    assert late.indices == (12,)
    assert "row 12 took" in str(late)
    both = moved(StepTimeoutError("rows 2, 9 took 3 times", [2, 9]), 10, 20)
    assert (both.indices, str(both)) == ((12, 19), "rows 12, 19 took 3 times")
    own = moved(StepTimeoutError("row 2 took longer", [2]), 10, 20, of_row=True)
    assert (own.indices, str(own)) == ((2,), "row 2 took longer")
    plain = KeyError("x")
    plain.add_note("(in row 3 of a batch of 8)")
    assert moved(plain, 40, 64).__notes__ == ["(in row 43 of a batch of 64)"]

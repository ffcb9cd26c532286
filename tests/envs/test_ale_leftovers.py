"""Forged rows whose checksums match, whatever they do to an emulator, leave the next row alone."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from conftest import sending

pytest.importorskip("ale_py")

import plangym_like
from plangym_like.errors import PlangymError, StateFormatError

ACTION = 3
EMULATOR_AT = 48


def played(env: Any, steps: int = 40) -> np.ndarray:
    """Return a state that play has reached."""
    rng = np.random.default_rng(0)
    state = env.reset(seed=0).state
    for _ in range(steps):
        state = env.step(int(rng.integers(env.action_space.n)), state=state).state
    return state


def forged(env: Any, state: np.ndarray, place: int, value: int) -> np.ndarray:
    """Return `state` with another byte at `place`, and the checksum that belongs to it."""
    row = state[None].copy()
    row[0, place] = value
    env.layout.format.seal(row)
    return row[0]


def status_of_processor(state: np.ndarray) -> int:
    found = re.search(rb"M6502(Low|High)", state.tobytes())
    assert found is not None
    return found.end() + 4 * 13


@pytest.mark.parametrize("states", [True, False], ids=["states", "no states"])
@pytest.mark.parametrize("game", ["MsPacman", "Breakout", "MontezumaRevenge", "Tetris", "Hangman"])
def test_a_frame_that_a_forged_row_leaves_unfinished_is_not_gone_on_with(game, states):
    """An emulator whose processor has halted runs nothing, and ends no frame."""
    with plangym_like.make(f"ALE/{game}-v5", frameskip=1, obs_type="grayscale", audit="off") as env:
        good = played(env)
        halted = forged(env, good, status_of_processor(good), 2)
        expected = env.step_batch([ACTION], good[None])
        alone = env.step_batch([ACTION], halted[None])
        for _ in range(2):
            env.step_batch([ACTION], halted[None], return_state=states)
            assert_same(tuple(env.step_batch([ACTION], good[None])), tuple(expected))
            both = env.step_batch([ACTION] * 4, np.stack([halted, good, good, halted]))
            assert_same(both.states[[0, 3]], alone.states[[0, 0]])
            assert_same(both.states[[1, 2]], expected.states[[0, 0]])
            env.step(ACTION, state=halted)
            assert_same(env.step(ACTION, state=good).obs, expected.obs[0])


def test_the_byte_that_used_to_change_the_next_row():
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram") as env:
        state = env.reset(seed=0).state
        for action in [2, 3, 4, 1, 2, 3] * 5:
            state = env.step(action, state=state).state
        expected = env.step_batch([ACTION], state[None])
        for bit in range(8):
            row = forged(env, state, 6874, state[6874] ^ (1 << bit))
            env.step_batch([ACTION], row[None])
            assert_same(tuple(env.step_batch([ACTION], state[None])), tuple(expected))


def test_states_are_read_after_any_number_of_resets():
    """Each unseeded reset draws numbers, and the generator before the processor is text."""
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram") as env:
        states = [env.reset(seed=0).state, *(env.reset().state for _ in range(12))]
        expected = [env.step(ACTION, state=state, return_state=True).state for state in states]
        batch = env.step_batch([ACTION] * len(states), np.stack(states))
        assert_same(batch.states, np.stack(expected))


@pytest.mark.parametrize("length", [0, 1, 500, 100_000, -1, 2**62])
def test_an_impossible_length_is_refused(length):
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram") as env:
        good = played(env)
        row = good[None].copy()
        row[:, 32:40].view(np.int64)[0] = length
        env.layout.format.seal(row)
        expected = env.step_batch([ACTION], good[None])
        for use in (env.set_state, env.view_state, lambda row: env.step_batch([ACTION], row[None])):
            with pytest.raises(StateFormatError, match="announces"):
                use(row[0])
        assert_same(tuple(env.step_batch([ACTION], good[None])), tuple(expected))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("game", ["MsPacman", "MontezumaRevenge", "Solaris"])
def test_no_flipped_byte_changes_the_next_row(game):
    rng = np.random.default_rng(1)
    env = plangym_like.make(
        f"ALE/{game}-v5", frameskip=1, obs_type="grayscale", n_workers=1, isolate=True
    )
    with sending(env):
        good = played(env)
        expected = env.step_batch([ACTION], good[None])
        (length,) = good[32:40].view(np.int64)
        # The console's memory is most of a state; what is dangerous stands at its end.
        end = EMULATOR_AT + int(length)
        places = [*rng.integers(EMULATOR_AT, end, 30), *range(end - 120, end, 5)]
        for place in places:
            row = forged(env, good, int(place), good[place] ^ (1 << int(rng.integers(8))))
            with contextlib.suppress(PlangymError):
                env.step_batch([ACTION], row[None])
            result = env.step_batch([ACTION], good[None])
            assert_same(tuple(result), tuple(expected), f"after byte {place}")

"""The emulator: what ALE does not restore, and the text of its generator."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from usual import first_of

pytest.importorskip("ale_py", reason="Atari is not installed: pip install 'plangym_like[atari]'")

from ale_py import ALEInterface, ALEState
from raw_ale import emulator

import plangym_like
from plangym_like.envs.atari.emulator import EmulatorStates

ACTION = 3
# States with the generator's text have more bytes, states without it fewer.
SHORT_NBYTES = 4000


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
@pytest.mark.parametrize(
    "game", first_of(["MsPacman", "Tetris", "Breakout", "MontezumaRevenge", "Hangman"])
)
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


# The generator's text


class Recording:
    """An emulator that counts restores with and without the generator's text."""

    def __init__(self, ale: ALEInterface) -> None:
        self._ale = ale
        self.full = self.short = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)

    def restoreState(self, state: ALEState) -> None:
        if len(state.serialize()) > SHORT_NBYTES:
            self.full += 1
        else:
            self.short += 1
        self._ale.restoreState(state)


def states_of(ale: Any) -> EmulatorStates:
    beginning = ale.cloneState().serialize()
    return EmulatorStates(ale, beginning)


def states_after_resets(ale: ALEInterface, resets: int = 4, frames: int = 30) -> list[bytes]:
    """Return states of several games; every reset draws numbers from the generator."""
    chance, states = random.Random(0), []
    actions = ale.getMinimalActionSet()
    for _ in range(resets):
        ale.reset_game()
        for _ in range(frames):
            ale.act(chance.choice(actions))
            states.append(ale.cloneState().serialize())
    return states


def generator_of(state: bytes) -> bytes:
    return state[state.index(b"System") : state.index(b"M6502")]


def compare(saver: EmulatorStates, ale: Any, raw: ALEInterface, states: list[bytes]) -> None:
    """Restore states in random order, and compare every state that follows with the raw one."""
    chance = random.Random(1)
    actions = raw.getMinimalActionSet()
    for _ in range(200):
        state, action = chance.choice(states), chance.choice(actions)
        before = chance.random()
        if before < 0.1:
            ale.act(action)
        elif before < 0.2:
            saver.forget_frame()
            ale.reset_game()
        saver.restore(state)
        raw.restoreState(ALEState(state))
        for _ in range(chance.choice([0, 1, 1, 1, 3])):
            assert ale.act(action) == raw.act(action)
        if chance.random() < 0.8:
            assert saver.save() == raw.cloneState().serialize()
        assert (ale.getRAM() == raw.getRAM()).all()


@pytest.mark.parametrize(
    "game", first_of(["ms_pacman", "montezuma_revenge", "pitfall2", "atlantis2"])
)
def test_states_of_several_resets_are_those_of_the_raw_emulator(game: str) -> None:
    raw = emulator(game)
    states = states_after_resets(raw)
    assert len({generator_of(state)[10:] for state in states}) == 4
    ale = Recording(emulator(game))
    saver = states_of(ale)
    compare(saver, ale, raw, states)
    # About a quarter of the restores find the generator in the same state.
    assert ale.short > 25
    assert ale.full > 100


def test_no_state_is_saved_for_a_batch_without_states(monkeypatch: pytest.MonkeyPatch) -> None:
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram", audit="off") as env:
        state, saves, codec = env.reset(seed=0).state, list[int](), env.simulator.codec
        env.step_batch([ACTION], state)  # sets the current state aside
        save = codec.save
        monkeypatch.setattr(codec, "save", lambda *args: saves.append(1) or save(*args))
        for wanted, count in ((False, 0), (True, 4)):
            saves.clear()
            env.step_batch([ACTION] * 4, state, return_state=wanted)
            assert len(saves) == count

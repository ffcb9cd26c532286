"""The text of the emulator's generator is left out of restores only where this changes nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("ale_py", reason="Atari is not installed: pip install 'plangym_like[atari]'")

from ale_py import ALEInterface, ALEState, roms
from raw_ale import emulator

import plangym_like
from plangym_like.envs.ale_leftovers import Leftovers
from plangym_like.errors import StateFormatError

# States with the generator's text have more bytes, states without it fewer.
SHORT_NBYTES = 4000


class Recording:
    """An emulator that counts restores with and without the generator's text.

    `on_short` is called instead of a restore without it.
    """

    def __init__(self, ale: ALEInterface, on_short: Any = None) -> None:
        self._ale, self._on_short = ale, on_short
        self.full = self.short = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)

    def restoreState(self, state: ALEState) -> None:
        if len(state.serialize()) > SHORT_NBYTES:
            self.full += 1
            self._ale.restoreState(state)
            return
        self.short += 1
        if self._on_short is None:
            self._ale.restoreState(state)
        else:
            self._on_short(self._ale)


def leftovers_of(ale: Any, game: str) -> Leftovers:
    beginning = ale.cloneState().serialize()
    return Leftovers(ale, beginning, lambda: ale.loadROM(roms.get_rom_path(game)))


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


def compare(leftovers: Leftovers, ale: Any, raw: ALEInterface, states: list[bytes]) -> None:
    """Restore states in random order, and compare every state that follows with the raw one."""
    chance = random.Random(1)
    actions = raw.getMinimalActionSet()
    for _ in range(400):
        state, action = chance.choice(states), chance.choice(actions)
        before = chance.random()
        if before < 0.1:
            ale.act(action)
        elif before < 0.2:
            leftovers.forget()
            ale.reset_game()
        leftovers.restore(state)
        raw.restoreState(ALEState(state))
        for _ in range(chance.choice([0, 1, 1, 1, 3])):
            assert ale.act(action) == raw.act(action)
        if chance.random() < 0.8:
            assert leftovers.save() == raw.cloneState().serialize()
        assert (ale.getRAM() == raw.getRAM()).all()


@pytest.mark.parametrize("game", ["ms_pacman", "montezuma_revenge", "pitfall2", "atlantis2"])
def test_states_of_several_resets_are_those_of_the_raw_emulator(game: str) -> None:
    raw = emulator(game)
    states = states_after_resets(raw)
    assert len({generator_of(state)[10:] for state in states}) == 4
    ale = Recording(emulator(game))
    leftovers = leftovers_of(ale, game)
    compare(leftovers, ale, raw, states)
    # About a quarter of the restores find the generator in the same state.
    assert ale.short > 50
    assert ale.full > 200


def test_the_text_is_left_out_for_states_of_one_reset() -> None:
    raw = emulator("ms_pacman")
    ale = Recording(emulator("ms_pacman"))
    leftovers = leftovers_of(ale, "ms_pacman")
    states = states_after_resets(raw, resets=1)
    leftovers.restore(states[0])
    for state in states:
        ale.full = ale.short = 0
        leftovers.restore(state)
        assert (ale.full, ale.short) == (0, 1)
        raw.restoreState(ALEState(state))
        assert ale.act(0) == raw.act(0)
        assert leftovers.save() == raw.cloneState().serialize()


def refuse(ale: ALEInterface) -> None:
    raise SystemError("no text")


def draw(ale: ALEInterface) -> None:
    ale.reset_game()


def ignore(ale: ALEInterface) -> None:
    pass


@pytest.mark.parametrize("on_short", [refuse, draw, ignore])
def test_a_build_that_needs_the_text_is_given_it(on_short: Any) -> None:
    raw = emulator("ms_pacman")
    states = states_after_resets(raw, resets=2)
    ale = Recording(emulator("ms_pacman"), on_short)
    leftovers = leftovers_of(ale, "ms_pacman")
    assert ale.short == 1
    compare(leftovers, ale, raw, states)
    assert ale.short == 1


def test_a_rejected_state_does_not_change_which_generator_is_held() -> None:
    raw = emulator("ms_pacman")
    states = states_after_resets(raw, resets=2)
    ale = emulator("ms_pacman")
    leftovers = leftovers_of(ale, "ms_pacman")
    for good, other in zip(states[:30:5], states[30::5], strict=True):
        leftovers.restore(good)
        leftovers.save()
        # The length of what ALE parses: none, too much, or less than the generator's text alone.
        length = (0).to_bytes(4, "little") if other is states[30] else b"\xff" * 4
        for bad in (good, other):
            with pytest.raises(StateFormatError, match="rejects"):
                leftovers.restore(bad[:24] + length + bad[28:])
            leftovers.restore(good)
            leftovers.save()
        leftovers.restore(good)
        raw.restoreState(ALEState(good))
        assert ale.act(0) == raw.act(0)
        assert leftovers.save() == raw.cloneState().serialize()


def test_states_of_one_frame_number_may_differ_in_the_generator() -> None:
    ale = emulator("ms_pacman")
    states = []
    for _ in range(2):
        ale.reset_game()  # does not count as a frame
        states.append(ale.cloneState().serialize())
    one, other = states
    leftovers = leftovers_of(ale, "ms_pacman")
    for state in (one, one, other, one, other, other):
        leftovers.restore(state)
        leftovers.restore(one)
        leftovers.restore(state)
        assert leftovers.save() == state


@pytest.mark.parametrize(
    ("name", "game", "frames"),
    [("Qbert", "qbert", 80), ("TicTacToe3D", "tic_tac_toe_3d", 80), ("AirRaid", "air_raid", 96)],
)
def test_frames_that_settle_a_game_do_not_hide_which_generator_is_held(
    name: str, game: str, frames: int
) -> None:
    """Those frames end with the frame number of one of these states."""
    raw = emulator(game)
    raw.reset_game()
    with plangym_like.make(f"ALE/{name}-v5", obs_type="ram", frameskip=1, audit="off") as env:
        env.reset(seed=0)
        base = env.simulator.base
        for _ in range(frames):
            base.restore(raw.cloneState().serialize())
            assert base.ale.act(0) == raw.act(0)
            assert base.leftovers.save() == raw.cloneState().serialize()


def test_an_interrupted_reset_does_not_hide_which_generator_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(Recording):
        def restoreState(self, state: ALEState) -> None:
            super().restoreState(state)
            raise KeyboardInterrupt

    with plangym_like.make("ALE/Pong-v5", obs_type="ram", audit="off") as env:
        env.reset(seed=0)
        state = env.reset().state  # the reset has drawn numbers
        expected = env.step(0, state).state
        env.reset(seed=0)
        leftovers = env.simulator.base.leftovers
        with monkeypatch.context() as patch:
            patch.setattr(leftovers, "_ale", Interrupted(leftovers._ale))
            with pytest.raises(KeyboardInterrupt):
                env.reset(seed=0)
        assert (env.step(0, state).state == expected).all()

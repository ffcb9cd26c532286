"""The emulator: what ALE does not restore, the text of its generator, the image of its screen."""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from conftest import sending
from numpy.typing import NDArray
from usual import first_of

pytest.importorskip("ale_py", reason="Atari is not installed: pip install 'plangym_like[atari]'")

from ale_py import ALEInterface, ALEState, roms
from raw_ale import emulator

import plangym_like
from plangym_like.envs.atari.emulator import EmulatorStates, Screen
from plangym_like.errors import PlangymError, StateFormatError

ACTION = 3
EMULATOR_AT = 48
# States with the generator's text have more bytes, states without it fewer.
SHORT_NBYTES = 4000


# Forged rows whose checksums match, whatever they do, leave the next row alone


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
    "game", first_of(["MsPacman", "Tetris", "Breakout", "MontezumaRevenge", "Hangman"], 2)
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
@pytest.mark.parametrize("game", first_of(["MsPacman", "MontezumaRevenge", "Solaris"]))
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


# The generator's text


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


def states_of(ale: Any, game: str) -> EmulatorStates:
    beginning = ale.cloneState().serialize()
    return EmulatorStates(ale, beginning, lambda: ale.loadROM(roms.get_rom_path(game)))


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
    for _ in range(400):
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
    "game", first_of(["ms_pacman", "montezuma_revenge", "pitfall2", "atlantis2"], 2)
)
def test_states_of_several_resets_are_those_of_the_raw_emulator(game: str) -> None:
    raw = emulator(game)
    states = states_after_resets(raw)
    assert len({generator_of(state)[10:] for state in states}) == 4
    ale = Recording(emulator(game))
    saver = states_of(ale, game)
    compare(saver, ale, raw, states)
    # About a quarter of the restores find the generator in the same state.
    assert ale.short > 50
    assert ale.full > 200


def test_the_text_is_left_out_for_states_of_one_reset() -> None:
    raw = emulator("ms_pacman")
    ale = Recording(emulator("ms_pacman"))
    saver = states_of(ale, "ms_pacman")
    states = states_after_resets(raw, resets=1)
    saver.restore(states[0])
    for state in states:
        ale.full = ale.short = 0
        saver.restore(state)
        assert (ale.full, ale.short) == (0, 1)
        raw.restoreState(ALEState(state))
        assert ale.act(0) == raw.act(0)
        assert saver.save() == raw.cloneState().serialize()


def refuse(ale: ALEInterface) -> None:
    raise SystemError("no text")


def draw(ale: ALEInterface) -> None:
    ale.reset_game()


def ignore(ale: ALEInterface) -> None:
    pass


@pytest.mark.parametrize("on_short", first_of([refuse, draw, ignore]))
def test_a_build_that_needs_the_text_is_given_it(on_short: Any) -> None:
    raw = emulator("ms_pacman")
    states = states_after_resets(raw, resets=2)
    ale = Recording(emulator("ms_pacman"), on_short)
    saver = states_of(ale, "ms_pacman")
    assert ale.short == 1
    compare(saver, ale, raw, states)
    assert ale.short == 1


def test_a_rejected_state_does_not_change_which_generator_is_held() -> None:
    raw = emulator("ms_pacman")
    states = states_after_resets(raw, resets=2)
    ale = emulator("ms_pacman")
    saver = states_of(ale, "ms_pacman")
    for good, other in zip(states[:30:15], states[30::15], strict=True):
        saver.restore(good)
        saver.save()
        # The length of what ALE parses: none, too much, or less than the generator's text alone.
        length = (0).to_bytes(4, "little") if other is states[30] else b"\xff" * 4
        for bad in (good, other):
            with pytest.raises(StateFormatError, match="rejects"):
                saver.restore(bad[:24] + length + bad[28:])
            saver.restore(good)
            saver.save()
        saver.restore(good)
        raw.restoreState(ALEState(good))
        assert ale.act(0) == raw.act(0)
        assert saver.save() == raw.cloneState().serialize()


def test_states_of_one_frame_number_may_differ_in_the_generator() -> None:
    ale = emulator("ms_pacman")
    states = []
    for _ in range(2):
        ale.reset_game()  # does not count as a frame
        states.append(ale.cloneState().serialize())
    one, other = states
    saver = states_of(ale, "ms_pacman")
    for state in (one, one, other, one, other, other):
        saver.restore(state)
        saver.restore(one)
        saver.restore(state)
        assert saver.save() == state


@pytest.mark.parametrize(
    ("name", "game", "frames"),
    first_of(
        [("Qbert", "qbert", 80), ("TicTacToe3D", "tic_tac_toe_3d", 80), ("AirRaid", "air_raid", 96)]
    ),
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
            assert base.states.save() == raw.cloneState().serialize()


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
        saver = env.simulator.base.states
        with monkeypatch.context() as patch:
            patch.setattr(saver, "_ale", Interrupted(saver._ale))
            with pytest.raises(KeyboardInterrupt):
                env.reset(seed=0)
        assert (env.step(0, state).state == expected).all()


# The image: converted where it has changed, it is what ALE draws


class Watched:
    """An emulator that counts how often it is asked to draw."""

    def __init__(self, ale: Any) -> None:
        self._ale = ale
        self.drawn = self.copied = 0

    def getScreenDims(self) -> tuple[int, int]:
        return self._ale.getScreenDims()

    def getScreen(self, out: NDArray[np.uint8]) -> None:
        self.copied += 1
        self._ale.getScreen(out)

    def getScreenRGB(self, out: NDArray[np.uint8]) -> None:
        self.drawn += 1
        self._ale.getScreenRGB(out)


class Painted:
    """A screen of two rows, painted by hand, in colours of one's own."""

    def __init__(self) -> None:
        self.palette = np.arange(768, dtype=np.uint8).reshape(256, 3)
        self.bytes = np.zeros((2, 160), np.uint8)
        self.drawn = 0

    def getScreenDims(self) -> tuple[int, int]:
        return self.bytes.shape

    def getScreen(self, out: NDArray[np.uint8]) -> None:
        out[:] = self.bytes

    def getScreenRGB(self, out: NDArray[np.uint8]) -> None:
        self.drawn += 1
        out[:] = self.palette[self.bytes]


# Quiet ones, one with all colours, one of whose screen much changes at times, one always.
@pytest.mark.parametrize(
    ("game", "most_drawn", "most_tried"),
    first_of(
        [
            *(("MsPacman", 10, 410), ("StarGunner", 60, 450), ("YarsRevenge", 400, 60)),
            *(("Breakout", 10, 410), ("Seaquest", 10, 410), ("Frogger", 300, 350)),
        ],
        3,
    ),
)
def test_images_are_those_that_ale_draws(game: str, most_drawn: int, most_tried: int) -> None:
    rng = np.random.default_rng(3)
    env: Any = gymnasium.make(f"ALE/{game}-v5", frameskip=1)
    env.reset(seed=0)
    ale = env.unwrapped.ale
    watched = Watched(ale)
    screen = Screen(watched)
    states = []
    for frame in range(400):
        if frame % 7 == 0:
            states.append(ale.cloneState())
        elif frame % 5 == 0:
            ale.restoreState(states[rng.integers(len(states))])
        ale.act(int(rng.integers(18)))
        np.testing.assert_array_equal(screen.draw(), ale.getScreenRGB(), f"frame {frame}")
    env.close()
    assert watched.drawn <= most_drawn
    assert watched.copied <= most_tried


def test_colours_that_look_unknown_are_drawn_all_the_same() -> None:
    painted = Painted()
    painted.palette[6], painted.palette[8] = (1, 2, 3), (5, 7, 11)
    screen = Screen(painted)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for _ in range(200):
        painted.bytes[rng.integers(2), rng.integers(160)] = rng.choice([0, 2, 6, 8])
        np.testing.assert_array_equal(screen.draw(), painted.palette[painted.bytes])
    painted.bytes[:] = 2
    screen.draw()
    painted.bytes[0, 4:6] = 6, 8
    drawn = painted.drawn
    for _ in range(100):
        np.testing.assert_array_equal(screen.draw(), painted.palette[painted.bytes])
    assert painted.drawn <= drawn + 17


def test_ctrl_c_leaves_no_pixels_of_a_screen_that_was_not_remembered() -> None:
    painted = Painted()
    screen = Screen(painted)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    draw = painted.getScreenRGB

    def interrupted(out: NDArray[np.uint8]) -> None:
        draw(out)
        raise KeyboardInterrupt

    for frame in range(300):
        before = painted.bytes.copy()
        painted.bytes[rng.integers(2), rng.integers(160)] = rng.integers(frame // 10 + 2)
        if frame % 3 == 0:
            painted.getScreenRGB = interrupted  # type: ignore[method-assign]
            with contextlib.suppress(KeyboardInterrupt):
                screen.draw()
            painted.getScreenRGB = draw  # type: ignore[method-assign]
            painted.bytes[:] = before
        np.testing.assert_array_equal(screen.draw(), painted.palette[painted.bytes])


def test_observations_are_the_callers_own() -> None:
    with plangym_like.make("ALE/MsPacman-v5", frameskip=1) as env:
        state = env.reset(seed=0).state
        first = env.step_batch([1, 2, 3, 4], state)
        kept = first.obs.copy()
        again = env.step_batch([4, 3, 2, 1], state)
        np.testing.assert_array_equal(first.obs, kept)
        first.obs[:] = 0
        np.testing.assert_array_equal(again.obs, kept[::-1])
        np.testing.assert_array_equal(env.step_batch([1, 2, 3, 4], state).obs, kept)

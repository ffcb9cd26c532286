"""Atari: episodes equal ale-py's own, and every state continues as if nothing had come between."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from comparing import assert_same, content, reached, row
from continuation import assert_equals_gymnasium, assert_goes_on
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from usual import first_of

import plangym_like
from plangym_like.envs.atari.emulator import PlannableAle
from plangym_like.envs.atari.quirks import PLACES
from plangym_like.errors import InputError

gymnasium.register_envs(ale_py)

GAMES = sorted(name for name in gymnasium.registry if name.startswith("ALE/"))
# What a restore leaves behind is settled in the first seven; what ALE does not save in the last
# four is made up for.
AWKWARD = [
    *("Qbert", "Tetris", "Trondead", "TicTacToe3D", "YarsRevenge", "Amidar", "VideoCheckers"),
    *("Pitfall2", "MiniatureGolf", "Hangman", "VideoCube"),
]
# While it thinks, it leaves parts of its images to what was drawn before.
SETTLED = {"ALE/TicTacToe3D-v5"}


def test_an_id_with_the_module_that_registers_it() -> None:
    named = plangym_like.make("ale_py:ALE/Pong-v5", obs_type="ram")
    plain = plangym_like.make("ALE/Pong-v5", obs_type="ram")
    state, obs, _ = named.reset(seed=2)
    assert_same(obs, plain.reset(seed=2)[1])
    assert_same(plain.step_batch([0, 2], state), named.step_batch([0, 2], state))


def assert_episodes_equal_gymnasiums(name: str, steps: int, **kwargs: Any) -> None:
    chance = {"repeat_action_probability": 0.0}
    with plangym_like.make(name, **kwargs) as env:
        other = gymnasium.make(name, **chance, **kwargs)
        own = {"n_step", "dt", *PLACES.get(other.unwrapped._game, ())}
        other.action_space.seed(3)
        for seed in (7, 8):
            _, obs, info = env.reset(seed=seed)
            expected, expected_info = other.reset(seed=seed)
            assert_same(obs, expected)
            assert {key: value for key, value in info.items() if key not in own} == expected_info
            for _ in range(steps):
                action = other.action_space.sample()
                step, expected_step = env.step(action), other.step(action)
                assert_same(step.obs, expected_step[0])
                assert step[1:4] == expected_step[1:4]
                info = {key: value for key, value in step.info.items() if key not in own}
                assert info == expected_step[4]
                if step.terminated or step.truncated:
                    other.reset()
        other.close()


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "kwargs"),
    first_of(
        [
            ("ALE/MsPacman-v5", {"obs_type": "ram", "frameskip": 1, "full_action_space": True}),
            ("ALE/SpaceInvaders-v5", {"obs_type": "grayscale", "mode": 3, "difficulty": 1}),
            ("ALE/Pong-v5", {"frameskip": (2, 5), "obs_type": "ram"}),
            ("ALE/Breakout-v5", {"continuous": True}),
            ("ALE/Solaris-v5", {"obs_type": "grayscale"}),
            ("ALE/Breakout-v5", {"sound_obs": True, "obs_type": "ram"}),
            ("ALE/Boxing-v5", {"max_num_frames_per_episode": 300, "obs_type": "ram"}),
            ("Breakout-v0", {}),
            ("ALE/Freeway-v5", {"mode": 2, "frameskip": 1, "obs_type": "ram"}),
            ("Breakout-v4", {"frameskip": (2, 5)}),
            ("BreakoutNoFrameskip-v4", {}),
        ],
        3,
    ),
)
def test_seeded_episodes_equal_gymnasiums(name, kwargs):
    assert_episodes_equal_gymnasiums(name, 20, **kwargs)


def assert_every_state_continues(name: str, steps: int) -> None:
    """Step through an episode; then step from each of its states in envs that did other things."""
    rng = np.random.default_rng(5)
    with (
        plangym_like.make(name, frameskip=1, autoreset=False) as env,
        plangym_like.make(name, frameskip=1) as used,
        plangym_like.make(name, frameskip=1) as fresh,
    ):
        env.reset(seed=1)
        used.reset(seed=2)
        for _ in range(15):
            used.step(used.sample_action())
        states, actions, outcomes = [], [], []
        action = 0
        for index in range(steps):
            if index % 5 == 0:
                action = int(rng.integers(env.action_space.n))
            states.append(env.get_state())
            actions.append(action)
            outcomes.append(env.step(action, return_state=True))
            if outcomes[-1].terminated:
                break
        order = rng.permutation(len(states))
        for other in (used, fresh):
            batch = other.step_batch(np.array(actions)[order], np.stack(states)[order])
            for row, index in enumerate(order):
                outcome = outcomes[index]
                np.testing.assert_array_equal(batch.obs[row], outcome.obs, f"step {index}")
                assert batch.rewards[row] == outcome.reward
                assert batch.terminateds[row] == outcome.terminated
                assert batch.infos[row] == outcome.info
                np.testing.assert_array_equal(batch.states[row], outcome.state)


# A usual game, one that needs settling, and two whose states ALE saves in part.
@pytest.mark.parametrize("game", first_of(["MsPacman", "YarsRevenge", "Pitfall2", "Hangman"], 3))
def test_every_state_continues(game):
    assert_every_state_continues(f"ALE/{game}-v5", 8)


@pytest.mark.full
@pytest.mark.parametrize("name", GAMES)
def test_every_state_of_every_game_continues(name):
    assert_every_state_continues(name, 300)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in GAMES if name not in SETTLED])
def test_seeded_episodes_of_every_game_equal_gymnasiums(name):
    assert_episodes_equal_gymnasiums(name, 200)


@pytest.mark.parametrize(("game", "loads"), [("MsPacman", 0), ("Solaris", 3)])
def test_a_seeded_reset_loads_only_games_that_a_reset_does_not_clear(monkeypatch, game, loads):
    loaded = []
    with plangym_like.make(f"ALE/{game}-v5", obs_type="ram") as env:
        load_game = PlannableAle.load_game
        monkeypatch.setattr(
            PlannableAle, "load_game", lambda self: (loaded.append(1), load_game(self))
        )
        for seed in range(3):
            env.reset(seed=seed)
            env.step_batch([0] * 9, dt=range(1, 10))
        assert len(loaded) == loads


def test_stickiness_and_drawn_frameskips_are_part_of_the_state():
    kwargs = {"repeat_action_probability": 0.5, "frameskip": (2, 5), "obs_type": "ram"}
    with plangym_like.make("ALE/Breakout-v5", **kwargs) as env:
        state = env.reset(seed=3).state
        actions = np.random.default_rng(0).integers(env.action_space.n, size=60)
        first = [env.step(action, return_state=True) for action in actions]
        env.set_state(state)
        second = [env.step(action, return_state=True) for action in actions]
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one.state, other.state)
            assert one.reward == other.reward
        seeds = np.arange(40)
        batch = env.step_batch(1, first[20].state, dt=3, seeds=seeds)
        again = env.step_batch(1, first[20].state, dt=3, seeds=seeds[::-1])
        np.testing.assert_array_equal(batch.states, again.states[::-1])
        assert len(set(batch.infos["n_step"].tolist())) > 1


def test_a_lost_life_is_counted_against_the_restored_state():
    with plangym_like.make("ALE/Breakout-v5", episodic_life=True, autoreset=False) as env:
        state = env.reset(seed=0).state
        lives, states = 5, [state]
        while lives == 5:
            step = env.step(1, state=states[-1])
            states.append(step.state)
            lives = step.info["lives"]
        assert step.terminated
        after = env.step_batch([0, 0], np.stack([states[-1], state]))
        assert after.terminateds.tolist() == [False, False]
        assert after.infos["lives"].tolist() == [4, 5]


def test_the_image_is_that_of_the_restored_state():
    kwargs = {"render_mode": "rgb_array", "obs_type": "rgb"}
    with plangym_like.make("ALE/MsPacman-v5", **kwargs) as env:
        env.reset(seed=0)
        seen = [env.step(env.sample_action(), return_state=True) for _ in range(30)]
        for step in seen[::-7]:
            env.set_state(step.state)
            np.testing.assert_array_equal(env.get_image(), step.obs)


@pytest.mark.parametrize("game", first_of(["TicTacToe3D", "YarsRevenge", "Qbert", "Breakout"]))
@pytest.mark.parametrize("frameskip", first_of([1, 3]))
def test_what_is_stepped_next_depends_on_no_other_row(game, frameskip):
    """Frame buffers are no part of the emulator's states; some games show what stood in them."""
    with plangym_like.make(
        f"ALE/{game}-v5", frameskip=frameskip, obs_type="grayscale", autoreset=False
    ) as env:
        rng = np.random.default_rng(0)
        states = reached(env, 20, seed=3, every=6, repeat=0.5)
        actions = rng.integers(env.action_space.n, size=20)
        expected = env.step_batch(actions, states)
        for _ in range(2):
            order = rng.permutation(20)
            result = env.step_batch(actions[order], states[order])
            for place, index in enumerate(order):
                assert_same(row(result, place), row(expected, index), f"row {index}")


@pytest.mark.parametrize(
    "kwargs",
    [
        {"obs_type": "rgb"},
        {"obs_type": "grayscale", "episodic_life": True},
        {"obs_type": "ram", "render_mode": "rgb_array", "return_image": True},
        {"obs_type": "ram", "frameskip": 1, "max_num_frames_per_episode": 86},
    ],
    ids=str,
)
def test_quick_and_thorough_batches_agree(kwargs):
    """Batches with seeds go the long way, row by row through the wrapper chain's own step."""
    with plangym_like.make("ALE/Breakout-v5", autoreset=False, **kwargs) as env:
        states = reached(env, 12, seed=2, every=12, repeat=0.5)
        actions = np.random.default_rng(0).integers(env.action_space.n, size=12)
        dt = np.arange(12) % 4 + 1
        quick = env.step_batch(actions, states, dt=dt)
        thorough = env.step_batch(actions, states, dt=dt, seeds=np.arange(12))
        assert_same(tuple(quick), tuple(thorough))
        for index in range(0, 12, 5):
            single = env.step(actions[index], states[index], dt=int(dt[index]))
            got = row(quick, index)
            assert_same((*got[:2], *(x.item() for x in got[2:5])), tuple(single)[:5])
            assert content(got[5]) == content(single.info)
        if "max_num_frames_per_episode" in kwargs:
            assert quick.truncateds.any() and not quick.truncateds.all()
        if "episodic_life" in kwargs:
            later = env.rollout_batch(actions[None, :].repeat(12, axis=0), states)
            assert later.terminateds[:, -1].any()


def test_sound_is_heard_but_not_exactly():
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram", sound_obs=True) as env:
        assert env.exactness == "approximate" and "tone generators" in env.exactness_note
        states = reached(env, 10)
        batch = env.step_batch(np.arange(10) % 9, states)
        assert batch.obs["sound"].shape == (10, 512)
        again = env.step_batch(np.arange(10) % 9, states)
        assert_same(again.obs["image"], batch.obs["image"])
        assert_same(again.states, batch.states)
    with plangym_like.make("ALE/MsPacman-v5") as env:
        assert env.exactness == "exact"


# Stickiness


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("repeat_action_probability", value) for value in (-0.1, 1.1, float("nan"))),
        *(("frameskip", value) for value in ((3, 3), (0, 2), (4, 2), (1, 2, 3), (1.0, 2.0), 2.5)),
    ],
)
def test_options_that_make_no_sense(name, value):
    with pytest.raises(InputError, match=name):
        plangym_like.make("ALE/Breakout-v5", **{name: value})


# Wrappers


def wrapped(name: str, **kwargs: Any) -> Any:
    return plangym_like.make(
        name,
        frameskip=1,
        wrappers=[
            (AtariPreprocessing, {"noop_max": 10, "terminal_on_life_loss": True}),
            (FrameStackObservation, {"stack_size": 4}),
        ],
        **kwargs,
    )


@pytest.mark.parametrize("name", first_of(["ALE/Breakout-v5", "ALE/Qbert-v5"]))
def test_a_preprocessed_and_stacked_episode_continues_and_is_gymnasiums(name):
    def reference():
        made = gymnasium.make(name, frameskip=1, repeat_action_probability=0.0)
        made = AtariPreprocessing(made, noop_max=10, terminal_on_life_loss=True)
        return FrameStackObservation(made, 4)

    with wrapped(name, autoreset=False) as env, wrapped(name) as other:
        assert env.observation_space.shape == (4, 84, 84)
        assert_equals_gymnasium(env.simulator, reference, seed=3, steps=50)
        for seed in (4, 5):
            assert_goes_on(env.simulator, seed=seed, steps=16, ends=seed == 4)
        states = reached(env, 16, seed=1)
        actions = np.random.default_rng(0).integers(env.action_space.n, size=16)
        expected = env.step_batch(actions, states)
        assert_same(tuple(other.step_batch(actions, states)), tuple(expected))


def test_frames_are_counted_through_wrappers_that_skip():
    with wrapped("ALE/Breakout-v5") as env:
        state = env.reset(seed=0).state
        batch = env.step_batch([0, 1, 2], state, dt=[1, 2, 3])
        assert batch.infos["n_step"].tolist() == [4, 8, 12]
        before = env.view_state(state)["episode_frame_number"]
        after = env.view_state(batch.states)["episode_frame_number"]
        assert (after - before).tolist() == [4, 8, 12]


# States


def test_fields_of_a_state():
    with plangym_like.make("ALE/Breakout-v5", obs_type="ram") as env:
        env.reset(seed=0)
        steps = [env.step(action, return_state=True) for action in (1, 2, 3)]
        fields = env.view_state(np.stack([step.state for step in steps]))
        assert_same(np.array(fields["ram"]), np.stack([step.obs for step in steps]))
        for name in ("lives", "frame_number", "episode_frame_number"):
            assert fields[name].tolist() == [step.info[name] for step in steps]
        assert fields["previous_action"].tolist() == [1, 3, 4]


# In the first two, ALE saves less than it needs.
POKED = ["Qbert", "Hangman", "MsPacman", "Breakout", "MontezumaRevenge", "Atlantis2", "Solaris"]
POKED += [game for game in ("Seaquest", *AWKWARD) if game not in POKED]


@pytest.mark.parametrize("game", first_of(POKED))
def test_a_game_goes_on_from_made_memory_as_in_gymnasium(game: str) -> None:
    rng = np.random.default_rng(8)
    options: dict[str, Any] = {"obs_type": "ram", "repeat_action_probability": 0.0}
    other: Any = gymnasium.make(f"ALE/{game}-v5", **options)
    with plangym_like.make(f"ALE/{game}-v5", **options) as env:
        state = env.reset(seed=7).state
        other.reset(seed=7)
        for round_ in range(4):
            for index in range(15):
                action = int(rng.integers(env.action_space.n))
                step, expected = env.step(action, state), other.step(action)
                state = step.state
                assert_same(step.obs, expected[0])
                assert step[2:5] == expected[1:4], (round_, index)
                if step.terminated:
                    break
            memory = expected[0].copy()
            # Many other places would end the game.
            memory[np.flatnonzero(memory)[rng.integers(0, np.count_nonzero(memory), 2)]] ^= 1
            for place in np.flatnonzero(memory != expected[0]).tolist():
                other.unwrapped.ale.setRAM(place, int(memory[place]))
            current = env.get_state()
            made = env.make_state(state, ram=memory)
            assert (made != state).any()
            assert_same(env.get_state(), current)
            assert_same(np.array(env.view_state(made)["ram"]), memory)
            state = made
    other.close()


def test_memory_has_128_bytes() -> None:
    with plangym_like.make("ALE/Pong-v5", obs_type="ram") as env:
        env.reset(seed=0)
        for given in ([0] * 127, [256] + [0] * 127, [-1] * 128, [0.5] * 128, None):
            with pytest.raises(InputError, match="ram must be 128 whole numbers from 0 to 255"):
                env.make_state(ram=given)
        with pytest.raises(InputError, match=r"make_state takes ram here, not room"):
            env.make_state(room=2)

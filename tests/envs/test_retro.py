"""stable-retro: episodes, futures, rewards and images from a restored state, taking turns."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

retro = pytest.importorskip(
    "stable_retro", reason="stable-retro is not installed: pip install 'plangym_like[retro]'"
)

from gymnasium.wrappers import FrameStackObservation  # noqa: E402

import plangym_like  # noqa: E402
from plangym_like.envs.retro import RetroSimulator  # noqa: E402
from plangym_like.errors import (  # noqa: E402
    InputError,
    StateCapacityError,
    StateMismatchError,
)
from plangym_like.testing import check_env  # noqa: E402

GAME = "Airstriker-Genesis-v0"
STEPS = 256


@pytest.fixture(scope="module")
def episode() -> dict[str, Any]:
    """Return an episode of stable-retro's own, played before anything of ours is there."""
    env = retro.make(GAME, render_mode="rgb_array")
    fire, left, right = (env.buttons.index(name) for name in ("B", "LEFT", "RIGHT"))
    rng = np.random.default_rng(0)
    actions = np.zeros((STEPS, env.num_buttons), np.int8)
    for index in range(0, STEPS, 20):
        sideways = (None, left, right)[rng.integers(3)]
        if sideways is not None:
            actions[index : index + 20, sideways] = 1
    actions[:, fire] = np.arange(STEPS) // 4 % 2
    obs, info = env.reset(seed=0)
    first = obs.copy(), info
    steps = [env.step(action) for action in actions]
    env.close()
    return {"first": first, "actions": actions, "steps": steps}


@pytest.fixture(scope="module")
def played(episode) -> list[Any]:
    """Return the same episode's transitions, with the states before each."""
    with plangym_like.make(GAME, autoreset=False) as env:
        _, obs, info = env.reset(seed=0)
        assert_same(obs, episode["first"][0])
        assert info == episode["first"][1]
        return [(env.get_state(), env.step(action)) for action in episode["actions"]]


def test_games_may_be_used_in_several_threads() -> None:
    envs = [plangym_like.make(GAME, obs_type="ram") for _ in range(2)]
    starts = [env.reset(seed=0).state for env in envs]
    plans = np.random.default_rng(0).integers(0, 2, (2, 6, 12)).astype(np.int8)

    def play(env: Any, state: Any, actions: Any) -> Any:
        for action in actions:
            state = env.step(action, state).state
        return state

    alone = list(map(play, envs, starts, plans))
    with ThreadPoolExecutor(2) as threads:
        assert_same(list(threads.map(play, envs, starts, plans)), alone)


def test_an_episode_is_stable_retros_own(episode, played):
    assert sum(step.reward for _, step in played) > 0
    for (_, step), (obs, reward, terminated, truncated, info) in zip(
        played, episode["steps"], strict=True
    ):
        assert_same(step.obs, obs)
        assert step[1:4] == (reward, terminated, truncated)
        assert step.info == {**info, "n_step": 1, "dt": 1}


def test_the_first_reward_after_a_restore_is_not_counted_from_another_branch(episode, played):
    paid = [index for index, (_, step) in enumerate(played) if step.reward][:2]
    assert len(paid) == 2
    with plangym_like.make(GAME, n_workers=2) as env:
        for order in ([0, paid[1], paid[0]], [paid[1], 0, paid[1], paid[0]]):
            states = np.stack([played[index][0] for index in order])
            batch = env.step_batch(episode["actions"][order], states)
            assert batch.rewards.tolist() == [played[index][1].reward for index in order]
            assert batch.infos["score"].tolist() == [
                played[index][1].info["score"] for index in order
            ]
            np.testing.assert_array_equal(batch.states[0], played[order[0] + 1][0])


@pytest.mark.full
def test_every_check_passes():
    report = check_env(GAME, states=2, steps=3, workers=(), frameskip=4)
    assert report.ok, str(report)
    assert report.exactness == "exact" and "image" in report.passed


def test_games_take_turns_in_one_process(episode, played):
    one, other = plangym_like.make(GAME), plangym_like.make("Airstriker-Genesis")
    one.set_state(played[100][0])
    other.reset(seed=0)
    for index in range(100, 110):
        step = one.step(episode["actions"][index])
        assert_same(tuple(step)[:4], tuple(played[index][1])[:4])
        mirrored = other.step(episode["actions"][index - 100])
        assert_same(tuple(mirrored)[:4], tuple(played[index - 100][1])[:4])
    clone = one.clone()
    one.close()
    clone.set_state(other.get_state())
    np.testing.assert_array_equal(clone.get_state(), played[10][0])
    other.close()
    clone.close()


def test_the_image_is_that_of_the_restored_state(played):
    with plangym_like.make(GAME) as env:
        env.reset(seed=0)
        for index in (200, 30):
            env.set_state(played[index + 1][0])
            np.testing.assert_array_equal(env.get_image(), played[index][1].obs)
        fields = env.view_state(np.stack([state for state, _ in played[1:4]]))
        assert fields["score"].tolist() == [step.info["score"] for _, step in played[:3]]
        np.testing.assert_array_equal(fields["screen"][2], played[2][1].obs)
        none = env.view_state(played[0][0][None][:0])
        assert none.keys() == fields.keys()
        assert none["screen"].shape == (0, *fields["screen"].shape[1:])
        np.testing.assert_array_equal(env.get_image(), played[30][1].obs)


@pytest.mark.full
def test_other_observations_and_wrappers():
    wrappers = [(FrameStackObservation, {"stack_size": 2})]
    report = check_env(GAME, states=3, steps=4, workers=(), wrappers=wrappers, obs_type="ram")
    assert report.ok, str(report)
    with plangym_like.make(GAME, obs_type="grayscale") as env:
        assert env.reset(seed=0).obs.shape == (224, 320)


def test_states_of_other_configurations_and_of_more_bytes_than_reserved(played):
    with (
        plangym_like.make(GAME, frameskip=2) as env,
        pytest.raises(StateMismatchError),
    ):
        env.set_state(played[0][0])
    sim = RetroSimulator(GAME, emulator_capacity=1000)
    with pytest.raises(StateCapacityError, match="emulator_capacity="):
        sim.read(np.zeros(sim.payload_nbytes, np.uint8))
    sim.close()


@pytest.mark.parametrize(
    ("name", "match"),
    [("SuperMarioBros-Nes-v0", "stable_retro.import"), ("NoSuchGame-Snes", "no game")],
)
def test_games_that_are_not_here(name, match):
    with pytest.raises(InputError, match=match):
        plangym_like.make(name)


ELSEWHERE = """
import sys
import numpy as np
import plangym_like

ballast = [bytes(100_003) for _ in range(20)]
kept = np.load(sys.argv[1])
rows, actions = kept["rows"], kept["actions"]
with plangym_like.make("Airstriker-Genesis-v0", autoreset=False) as env:
    assert env.exactness == "exact"
    other = plangym_like.make("Airstriker-Genesis-v0")  # takes the emulator away now and then
    env.reset(seed=0)
    for index, row in enumerate(rows[:-1]):
        np.testing.assert_array_equal(env.get_state(), row, f"played {index}")
        env.step(actions[index])
        if index % 20 == 0:
            other.reset(seed=1)
    order = np.random.default_rng(0).permutation(len(rows) - 1)
    for index in order:
        step = env.step(actions[index], state=rows[index])
        np.testing.assert_array_equal(step.state, rows[index + 1], f"restored {index}")
"""


@pytest.mark.timeout(300)
def test_equal_states_are_equal_bytes_in_every_process(episode, played, tmp_path):
    """Each process has its libraries elsewhere; the emulator saves pointers into them."""
    rows = np.stack([state for state, _ in played[:60]])
    np.savez(tmp_path / "kept.npz", rows=rows, actions=episode["actions"])
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "kept.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state": "Level9"}, "has no state 'Level9'; it has Level1"),
        (
            {"use_restricted_actions": "discrete"},
            r"must be a stable_retro\.Actions, got 'dis",
        ),
    ],
)
def test_options_that_stable_retro_does_not_know(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plangym_like.make(GAME, **options)

"""Games whose states ALE saves incompletely continue from any state."""

from __future__ import annotations

import random

import gymnasium
import numpy as np
import pytest
from usual import first_of

pytest.importorskip("ale_py", reason="Atari is not installed: pip install 'plangym_like[atari]'")

import ale_py
from raw_ale import emulator

import plangym_like

gymnasium.register_envs(ale_py)


def test_strokes_are_counted_on_from_any_state():
    name, kwargs = "ALE/MiniatureGolf-v5", {"frameskip": 4, "obs_type": "ram"}
    rng = np.random.default_rng(1)
    with (
        gymnasium.make(name, repeat_action_probability=0.0, **kwargs) as raw,
        plangym_like.make(name, **kwargs) as played,
        plangym_like.make(name, **kwargs) as restored,
    ):
        raw.reset(seed=3)
        state, elsewhere = played.reset(seed=3).state, restored.reset(seed=4).state
        earned = 0.0
        for index in range(660):
            if index % 4 == 0:
                action = int(rng.integers(18))
            reward = raw.step(action)[1]
            outcome = played.step(action, return_state=True)
            assert outcome.reward == reward
            if index % 5 == 0 or reward:
                both = restored.step_batch([0, action], np.stack([elsewhere, state]))
                assert both.rewards[1] == reward
                np.testing.assert_array_equal(both.states[1], outcome.state)
            state = outcome.state
            earned += reward
        assert earned < 0


@pytest.mark.parametrize(
    ("name", "fine"), first_of([("ALE/Hangman-v5", 0), ("ALE/VideoCube-v5", -1)])
)
def test_time_is_over_once_and_only_where_it_is(name, fine):
    kwargs = {"frameskip": 1, "obs_type": "ram"}
    with plangym_like.make(name, **kwargs) as played, plangym_like.make(name, **kwargs) as restored:
        early = played.reset(seed=3).state
        base = played.simulator.base
        base.ale.setRAM(base.quirk.address, 255)
        late, over = played.get_state(), False
        while not over:
            outcome = played.step(0, return_state=True)
            # Between these rows the emulator has seen time at its end, and at its beginning.
            rows = restored.step_batch([0, 0, 0], np.stack([late, early, late]))
            over = outcome.terminated
            assert rows.terminateds.tolist() == [over, False, over]
            assert rows.rewards[0] == outcome.reward
            np.testing.assert_array_equal(rows.states[0], outcome.state)
            late = outcome.state
        assert outcome.reward == fine


def test_lives_are_those_of_the_restored_state():
    rng = np.random.default_rng(0)
    with plangym_like.make("ALE/Atlantis2-v5", obs_type="ram", episodic_life=True) as env:
        after, lost = env.reset(seed=0).state, False
        while not lost:
            before, action = after, int(rng.integers(env.action_space.n))
            (after,), _, _, (lost,), *_ = env.step_batch([action], before)
        first, second = env.view_state(np.stack([before, after]))["lives"]
        assert second == first - 1
        again = env.step_batch([action] * 3, np.stack([before, after, before]))
        assert again.terminateds.tolist() == [True, False, True]


def test_objects_collide_at_the_positions_of_the_restored_state() -> None:
    ale = emulator("yars_revenge")
    chance, action = random.Random(1), 0
    options = {"obs_type": "ram", "frameskip": 1, "repeat_action_probability": 0.0}
    with plangym_like.make("ALE/YarsRevenge-v5", audit="off", **options) as env:
        env.reset(seed=0)
        base = env.simulator.base
        codes = base.codes.tolist()
        first = ale.cloneState().serialize()
        for frame in range(1400):
            if chance.random() < 0.15:
                action = chance.choice(codes)
            saved = ale.cloneState().serialize()
            ale.act(action)
            if frame < 1300:
                continue
            base.restore(first)
            base.ale.act(0)
            base.restore(saved)
            base.ale.act(action)
            assert base.ale.getRAM().tobytes() == ale.getRAM().tobytes(), f"frame {frame}"

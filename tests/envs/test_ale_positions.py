"""Collisions in the first frame after a restore, for which ALE saves too little."""

import random

import gymnasium
import pytest

pytest.importorskip("ale_py", reason="Atari is not installed: pip install 'plangym_like[atari]'")

import ale_py
from raw_ale import emulator

import plangym_like

gymnasium.register_envs(ale_py)


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

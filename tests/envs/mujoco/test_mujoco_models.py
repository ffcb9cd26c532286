"""Gymnasium's robots with models of one's own, which have more joints than Gymnasium's."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from usual import third_of

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

import gymnasium.envs.mujoco

import plangym_like

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is out of date"),
    # Gymnasium's checker, when the declared observation space is that of another model.
    pytest.mark.filterwarnings("ignore:.*observation returned by"),
]

ASSETS = Path(gymnasium.envs.mujoco.__file__).parent / "assets"
FILES = {
    "Ant": "ant.xml",
    "HalfCheetah": "half_cheetah.xml",
    "Hopper": "hopper.xml",
    "Humanoid": "humanoid.xml",
    "HumanoidStandup": "humanoidstandup.xml",
    "InvertedDoublePendulum": "inverted_double_pendulum.xml",
    "InvertedPendulum": "inverted_pendulum.xml",
    "Pusher": "pusher_v5.xml",
    "Reacher": "reacher.xml",
    "Swimmer": "swimmer.xml",
    "Walker2d": "walker2d_v5.xml",
}
LINK = (
    '<body pos="{} 0 .5"><joint limited="false" type="hinge" axis="0 1 0"/>'
    '<joint limited="false" type="slide" axis="1 0 0"/><geom size=".05" contype="0"/></body>'
)
# Robot -> where in its model the joints are added.
PLACES = {"first": "<worldbody>", "last": "</worldbody>"}
INSIDE = {
    "InvertedPendulum": 'name="cpole"',
    "InvertedDoublePendulum": '<site name="tip"',
    "Reacher": '<body name="fingertip"',
    "Pusher": '<body name="tips_arm"',
}
CASES = [(name, place) for name in FILES for place in PLACES]
CASES += [(name, "inside") for name in INSIDE]
LANES, STEPS = 3, 8


def with_more_joints(name: str, place: str, folder: Path) -> str:
    """Write the model of a robot with one more body; return the file's path."""
    text = (ASSETS / FILES[name]).read_text()
    if place == "inside":  # before the element with this text
        at = text.rindex("<", 0, text.index(INSIDE[name]) + 1)
        text = text[:at] + LINK.format(0) + text[at:]
    elif place == "first":
        text = text.replace("<worldbody>", "<worldbody>" + LINK.format(7), 1)
    else:
        text = text.replace("</worldbody>", LINK.format(7) + "</worldbody>", 1)
    path = folder / FILES[name]
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name, place", third_of(CASES))
def test_robots_with_more_joints_step_as_in_gymnasium(
    name: str, place: str, tmp_path: Path
) -> None:
    path = with_more_joints(name, place, tmp_path)
    alone: Any = gymnasium.make(f"{name}-v5", xml_file=path, disable_env_checker=True)
    alone.action_space.seed(1)
    actions = np.stack([[alone.action_space.sample() for _ in range(LANES)] for _ in range(STEPS)])
    episodes = []
    for lane in range(LANES):
        first = alone.reset(seed=lane)[0]
        # Infos of Gymnasium 1.1 hold arrays that the next step changes.
        episodes.append([copy.deepcopy(alone.step(action)) for action in actions[:, lane]])
    alone.close()
    shape = np.shape(first)
    with plangym_like.make(f"{name}-v5", xml_file=path) as env:
        assert env.obs_shape == shape
        states = np.stack([env.reset(seed=lane).state for lane in range(LANES)])
        for time, chosen in enumerate(actions):
            result = env.step_batch(chosen, states)
            states = result.states
            for lane in range(LANES):
                obs, reward, terminated, _, info = episodes[lane][time]
                assert_same(result.obs[lane], obs)
                assert result.rewards[lane] == float(reward)
                assert result.terminateds[lane] == terminated
                for key, value in info.items():
                    np.testing.assert_array_equal(result.infos[key][lane], value, key)
    with plangym_like.make_vec(f"{name}-v5", LANES, xml_file=path) as envs:
        envs.reset(seed=list(range(LANES)))
        for time, chosen in enumerate(actions):
            obs, rewards, terminateds, _, _ = envs.step(chosen)
            for lane in range(LANES):
                assert_same(obs[lane], episodes[lane][time][0])
                assert rewards[lane] == float(episodes[lane][time][1])
            if terminateds.any():
                break

"""Robots in worlds with bodies that fall asleep, for which MuJoCo's step computes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from usual import first_of

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

import gymnasium.envs.mujoco
import mujoco

import plangym_like
from plangym_like.errors import InputError, StateError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is out of date"),
    pytest.mark.skipif(
        not hasattr(mujoco.mjtEnableBit, "mjENBL_SLEEP"), reason="this MuJoCo has no sleep"
    ),
]

ASSETS = Path(gymnasium.envs.mujoco.__file__).parent / "assets"
OPTION = '<option sleep_tolerance="{}"><flag sleep="enable"/></option>'
# A block that the first strokes of the swimmer push; the water then stops it.
SLOW = (
    '<body pos="{x} 0 0"><joint type="slide" axis="0 1 0" damping="4000"/>'
    '<geom type="box" size=".1 .6 .1" contype="1" conaffinity="1" density="1000"/></body>'
)
BOX = (
    '<body pos="{x} 0 {z}"><freejoint/><geom type="box" size=".15 .15 .15" '
    'contype="1" conaffinity="1" condim="3" density="200" friction="1 .1 .1"/></body>'
)
# Robot -> file, tolerance, text to replace, bodies to add.
WORLDS: dict[str, tuple[str, float, dict[str, str], str]] = {
    "Swimmer-v5": (
        "swimmer.xml",
        0.02,
        {'contype="0"': 'contype="1"'},
        SLOW.format(x=1.75) + SLOW.format(x=-9),
    ),
    "HalfCheetah-v5": (
        "half_cheetah.xml",
        0.05,
        {},
        "".join(BOX.format(x=x, z=z) for x, z in ((0.9, 0.2), (-0.9, 0.2), (9, 1), (9, 2))),
    ),
    "Ant-v5": (
        "ant.xml",
        0.05,
        {},
        "".join(BOX.format(x=x, z=z) for x, z in ((1, 0.3), (9, 1), (9, 2))),
    ),
}
BRANCHES, STEPS = 4, 120


def world(name: str, folder: Path) -> str:
    """Write the model of a robot `name` among bodies that sleep; return the file's path."""
    file, tolerance, changes, bodies = WORLDS[name]
    text = (ASSETS / file).read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    text = text.replace("<worldbody>", OPTION.format(tolerance) + "<worldbody>", 1)
    text = text.replace("</worldbody>", bodies + "</worldbody>", 1)
    path = folder / file
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module", params=sorted(WORLDS))
def played(request: Any, tmp_path_factory: Any) -> Any:
    """Return a robot, its model, actions ``(STEPS, BRANCHES, ...)`` and what Gymnasium gives."""
    name = request.param
    path = world(name, tmp_path_factory.mktemp("worlds"))
    env: Any = gymnasium.make(name, xml_file=path)
    space = env.action_space
    space.seed(3)
    actions = np.stack([[space.sample() for _ in range(BRANCHES)] for _ in range(STEPS)])
    actions[::7] = 0  # moments of rest
    results: list[Any] = []
    slept = woke = 0
    for branch in range(BRANCHES):
        first, _ = env.reset(seed=5)
        data, before = env.unwrapped.data, None
        results.append([])
        for action in actions[:, branch]:
            obs, reward, terminated, truncated, info = env.step(action)
            results[-1].append((obs.copy(), float(reward), terminated, truncated, info))
            asleep = data.tree_asleep >= 0
            if before is not None:
                slept += int((asleep & ~before).sum())
                woke += int((before & ~asleep).sum())
            before = asleep
    env.close()
    assert slept >= BRANCHES and woke
    return name, path, actions, results


MODES: list[dict[str, Any]] = [
    {},
    {"audit": "off"},
    {"n_workers": 2},
    {"n_workers": 2, "isolate": True, "audit": "off"},
]


@pytest.mark.parametrize("mode", first_of(MODES, 2), ids=str)
def test_branches_restored_at_every_step_are_gymnasiums_episodes(played: Any, mode: Any) -> None:
    name, path, actions, results = played
    with plangym_like.make(name, xml_file=path, **mode) as env:
        assert env.exactness == "exact"
        states = np.repeat(env.reset(seed=5).state[None], BRANCHES, axis=0)
        for time, chosen in enumerate(actions):
            result = env.step_batch(chosen, states)
            states = result.states
            for branch in range(BRANCHES):
                obs, reward, terminated, _, info = results[branch][time]
                place = f"step {time} of branch {branch}"
                assert result.obs[branch].tobytes() == obs.tobytes(), place
                assert result.rewards[branch] == reward + 0.0, place
                assert result.terminateds[branch] == terminated, place
                for key, value in info.items():
                    assert np.asarray(result.infos[key][branch]) == value, (place, key)


def test_single_steps_and_rollouts_are_gymnasiums_too(played: Any) -> None:
    name, path, actions, results = played
    with plangym_like.make(name, xml_file=path) as env:
        states = [env.reset(seed=5).state] * BRANCHES
        for time, chosen in enumerate(actions[:60]):
            for branch in range(BRANCHES):
                step = env.step(chosen[branch], states[branch])
                states[branch] = step.state
                assert_same((step.obs, step.reward), results[branch][time][:2])
        plans = np.moveaxis(actions[60:], 0, 1)
        result = env.rollout_batch(plans, np.stack(states), return_observations=True)
        for branch in range(BRANCHES):
            for time in range(60, STEPS):
                obs, reward = results[branch][time][:2]
                at = branch, time - 60
                assert_same((result.observations[at], float(result.rewards[at])), (obs, reward))
                if results[branch][time][2]:
                    break


@pytest.mark.parametrize("options", [{}, {"n_workers": 2}], ids=str)
def test_vectorised_environments_are_gymnasiums(played: Any, options: Any) -> None:
    name, path, actions, results = played
    with plangym_like.make_vec(name, BRANCHES, xml_file=path, **options) as env:
        env.reset(seed=[5] * BRANCHES)
        for time, chosen in enumerate(actions):
            obs, rewards, terminateds, _, _ = env.step(chosen)
            for branch in range(BRANCHES):
                assert_same(obs[branch], results[branch][time][0])
                assert rewards[branch] == results[branch][time][1] + 0.0
            if terminateds.any():
                break


@pytest.fixture
def cheetah(tmp_path: Path) -> Any:
    """Return a cheetah, and a state in which two of its boxes sleep."""
    with plangym_like.make("HalfCheetah-v5", xml_file=world("HalfCheetah-v5", tmp_path)) as env:
        state = env.reset(seed=5).state
        while (env.view_state(state)["tree_asleep"] >= 0).sum() < 2:
            state = env.step(np.zeros(6, np.float32), state).state
        yield env, state


def test_sleep_counters_are_named_and_can_be_given(cheetah: Any) -> None:
    env, state = cheetah
    named = env.view_state(state)
    env.reset(seed=5)
    made = env.make_state(**named)
    again = env.view_state(made)
    assert named.keys() == again.keys()
    for key, value in named.items():
        assert_same(again[key], value)
    assert_same(env.make_state(state, **named), state)
    action = np.full(6, 0.3, np.float32)
    assert_same(env.step(action, made)[1:], env.step(action, state)[1:])


def test_sleeping_bodies_that_are_moved_wake_as_in_mujoco(cheetah: Any) -> None:
    env, state = cheetah
    named = env.view_state(state)
    asleep = named["tree_asleep"]
    speeds, boxes = named["qvel"].copy(), np.flatnonzero(asleep >= 0)
    speeds[9 + 6 * (boxes[0] - 1)] = 1.0
    moved = env.view_state(env.make_state(state, qvel=speeds))["tree_asleep"]
    assert moved[boxes[0]] < 0
    assert_same(env.view_state(env.make_state(state, time=3.0))["tree_asleep"], asleep)


@pytest.mark.parametrize("counters", [[0], [9] * 5, [2, 2, 2, -1, -1], [-12] * 5, [0.5] * 5])
def test_impossible_sleep_counters_are_refused(cheetah: Any, counters: list[float]) -> None:
    env, state = cheetah
    with pytest.raises(InputError, match="tree_asleep must be 5 whole numbers"):
        env.make_state(state, tree_asleep=counters)


def test_damaged_rows_are_refused_before_mujoco_sees_their_indices(cheetah: Any) -> None:
    env, state = cheetah
    for place in (40, len(state) // 2, len(state) - 200):
        damaged = state.copy()
        damaged[place] ^= 255
        with pytest.raises(StateError):
            env.step_batch(np.zeros((2, 6), np.float32), damaged)


def test_a_mujoco_without_the_function_for_sleep_makes_such_worlds_approximate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plangym_like.envs.mujoco.physics._sleep_updater", lambda: None)
    with plangym_like.make("HalfCheetah-v5", xml_file=world("HalfCheetah-v5", tmp_path)) as env:
        assert env.exactness == "approximate" and "ntree_awake" in env.exactness_note
    with plangym_like.make("HalfCheetah-v5") as env:
        assert env.exactness == "exact"

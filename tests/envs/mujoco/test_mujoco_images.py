"""Images of robots, on a machine without a display."""

import ctypes.util
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from usual import first_of

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

import plangym_like
from plangym_like.envs import rendering
from plangym_like.errors import MissingExtraError

HAS_LIBRARY = bool(
    os.environ.get("MUJOCO_GL")
    or os.environ.get("DISPLAY")
    or ctypes.util.find_library("EGL")
    or ctypes.util.find_library("OSMesa")
)
SMALL = {"width": 64, "height": 48}
drawing = pytest.mark.skipif(
    not HAS_LIBRARY, reason="no OpenGL library: apt-get install libegl1 libegl-mesa0 libgl1"
)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make_one(name: str, **kwargs: Any) -> Any:
        made.append(plangym_like.make(name, render_mode="rgb_array", autoreset=False, **kwargs))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def walk(env: Any, steps: int, seed: int) -> None:
    env.action_space.seed(seed)
    for _ in range(steps):
        env.step(env.action_space.sample())


@drawing
@pytest.mark.parametrize(
    "name", first_of(["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5"])
)
def test_an_image_shows_the_state_as_in_gymnasium(name: str, make: Callable[..., Any]) -> None:
    env, other = make(name, **SMALL), make(name, **SMALL)
    env.reset(seed=0)
    walk(env, 8, seed=0)
    state, image = env.get_state(), env.get_image()
    assert image.shape == (48, 64, 3) and image.dtype == np.uint8
    assert image.std() > 5
    hand: Any = gymnasium.make(name, render_mode="rgb_array", **SMALL)
    hand.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(8):
        hand.step(env.action_space.sample())
    assert (hand.render() == image).all()
    hand.close()
    walk(env, 8, seed=1)
    assert (env.get_image() != image).any()
    env.set_state(state)
    other.set_state(state)
    assert (other.get_image() == image).all()
    assert (env.get_image() == image).all()


@drawing
def test_batches_of_images_come_from_their_own_rows(make: Callable[..., Any]) -> None:
    env = make("HalfCheetah-v5", **SMALL, return_image=True)
    state = env.reset(seed=0).state
    actions = np.stack([env.action_space.sample() for _ in range(3)])
    result = env.step_batch(actions, state, dt=4)
    assert result.infos["rgb"].shape == (3, 48, 64, 3)
    for index in range(3):
        env.set_state(result.states[index])
        assert (env.get_image() == result.infos["rgb"][index]).all()


@drawing
def test_a_process_that_drew_ends_in_silence() -> None:
    script = (
        "import plangym_like\n"
        "env = plangym_like.make('InvertedPendulum-v5', render_mode='rgb_array')\n"
        "env.reset(seed=0)\n"
        "assert env.get_image().any()\n"
        "env.close()\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=600
    )
    assert outcome.returncode == 0 and outcome.stderr == ""


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(MissingExtraError, match="apt-get install libegl1"):
        rendering.draw_without_a_display()
    assert "MUJOCO_GL" not in os.environ


def test_what_the_user_chose_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    rendering.draw_without_a_display()
    assert os.environ["MUJOCO_GL"] == "glfw"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setenv("DISPLAY", ":0")
    rendering.draw_without_a_display()
    assert "MUJOCO_GL" not in os.environ


@drawing
@pytest.mark.parametrize("closed", first_of([True, False]))
def test_an_environment_that_goes_leaves_the_images_of_others_alone(
    make: Callable[..., Any], closed: bool
) -> None:
    images = {"obs_type": "rgb", "width": 32, "height": 32}
    goes = plangym_like.make("Reacher-v5", **images)
    goes.reset(seed=0)
    stays = make("Reacher-v5", **images)
    state, obs, _ = stays.reset(seed=0)
    assert obs.shape == (32, 32, 3) and obs in stays.observation_space
    actions = np.zeros((2, 2))
    before = stays.step_batch(actions, state).obs
    assert before.any()
    if closed:
        goes.close()
    stays.step_batch(actions, state)
    del goes
    gc.collect()
    assert np.array_equal(stays.step_batch(actions, state).obs, before)


@drawing
def test_images_of_an_own_model(make: Callable[..., Any]) -> None:
    ball = "<mujoco><worldbody><light pos='0 0 3'/><geom size='.3'/></worldbody></mujoco>"
    model = plangym_like.MujocoModel(ball, reward=lambda data: data.time)
    env = make(model, width=64, height=48)
    env.reset(seed=0)
    image = env.get_image()
    assert image.shape == (48, 64, 3)
    assert image.std() > 5

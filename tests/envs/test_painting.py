"""Images of environments that were made without ``render_mode="rgb_array"``."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from usual import first_of

import plangym_like
from plangym_like.errors import InputError

# The first image of each of these is that of an environment with the mode, to the byte.
NAMES = ["CartPole-v1", "LunarLander-v3", "Pendulum-v1", "FrozenLake-v1"]


@pytest.fixture
def no_window(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield


def _walk(env: Any, seed: int) -> Any:
    env.reset(seed=seed)
    for action in np.random.default_rng(seed).integers(0, 2, 12):
        space = env.action_space
        env.step(int(action) if hasattr(space, "n") else np.full(space.shape, action, np.float32))
    return env.get_state()


@pytest.mark.parametrize("name", first_of(NAMES[::-1], 2))
def test_an_image_is_that_of_an_environment_that_renders(name: str, no_window: None) -> None:
    with plangym_like.make(name, autoreset=False) as env:
        state = _walk(env, 1)
        image = env.get_image()
        assert np.array_equal(env.get_state(), state)
        with plangym_like.make(name, autoreset=False, render_mode="rgb_array") as drawn:
            _walk(drawn, 1)
            assert np.array_equal(image, drawn.get_image())


@pytest.mark.parametrize("name", first_of(["Hopper-v5", *NAMES], 3))
def test_images_depend_on_the_state_and_change_no_result(name: str, no_window: None) -> None:
    with (
        plangym_like.make(name, autoreset=False) as env,
        plangym_like.make(name, autoreset=False) as undrawn,
    ):
        state = _walk(env, 2)
        image = env.get_image()
        other = _walk(env, 3)
        assert not np.array_equal(env.get_image(), image) or name == "FrozenLake-v1"
        env.set_state(state)
        assert np.array_equal(env.get_image(), image)
        actions = [env.sample_action() for _ in range(3)]
        _walk(undrawn, 2)
        mine, theirs = (each.step_batch(actions, state) for each in (env, undrawn))
        assert np.array_equal(mine.states, theirs.states)
        assert np.array_equal(mine.rewards, theirs.rewards)
        assert np.array_equal(env.get_image(), image)
        env.step(actions[0], state=other)
        undrawn.step(actions[0], state=other)
        assert np.array_equal(env.get_state(), undrawn.get_state())
        assert env.gym_env.render_mode is None


class Counter(gymnasium.Env[int, int]):
    """Counts to nine, and renders the count as a grey level."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012, gymnasium's own form
    observation_space = gymnasium.spaces.Discrete(10)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count = min(self.count + int(action), 9)
        return self.count, 1.0, self.count == 9, False, {}

    def render(self) -> Any:
        if self.render_mode == "rgb_array":
            return np.full((4, 5, 3), self.count, np.uint8)
        return None


@pytest.mark.parametrize("snapshot", ["pickle", "replay"])
@pytest.mark.parametrize("make", [Counter, lambda: Counter()], ids=["class", "lambda"])
def test_environments_of_your_own(make: Any, snapshot: str) -> None:
    with plangym_like.make(make, snapshot=snapshot) as env:
        env.reset(seed=0)
        for count in (1, 2, 3):
            env.step(1)
            assert (env.get_image() == count).all()
        assert env.img_shape == (4, 5, 3)
        assert env.gym_env.unwrapped.render_mode is None


def test_environments_that_render_nothing() -> None:
    class Blind(Counter):
        def render(self) -> Any:
            raise NotImplementedError

    with (
        plangym_like.make(Blind) as env,
        pytest.raises(InputError, match=r"Blind\.render\(\) gives no image"),
    ):
        env.get_image()

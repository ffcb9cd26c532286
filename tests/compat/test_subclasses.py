"""Classes of users that inherit from the layer's."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv

import plangym_like.compat.plangym as plangym
from plangym_like.compat.plangym.control import ClassicControl
from plangym_like.compat.plangym.vectorization import ParallelEnv
from plangym_like.errors import InputError


class Walk(plangym.PlanEnv):
    """A walk on the integers, written against plangym's base class."""

    @property
    def obs_shape(self) -> tuple[int, ...]:
        return (1,)

    @property
    def action_shape(self) -> tuple[int, ...]:
        return ()

    def setup(self) -> None:
        self.place = 0

    def apply_reset(self, **kwargs: Any) -> tuple[Any, Any]:
        self.place = 0
        return self._seen(), {}

    def apply_action(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.place += action
        return self._seen(), action, self.place >= 5, False, {}

    def _seen(self) -> Any:
        return np.array([self.place])

    def get_state(self) -> Any:
        return np.array([self.place])

    def set_state(self, state: Any) -> None:
        self.place = int(state[0])

    def get_image(self) -> Any:
        return np.full((2, 2), self.place, np.uint8)

    def sample_action(self) -> int:
        return 1


def test_a_plan_env_of_ones_own() -> None:
    env = Walk("walk", frameskip=2)
    state, obs, info = env.reset()
    assert (state, obs, info) == (0, 0, {}) and env.img_shape == (2, 2)
    after, obs, reward, terminal, truncated, info = env.step(1, state, dt=2)
    assert (after, obs, reward, terminal) == (4, 4, 4, False)
    assert info == {"n_step": 4, "dt": 2}
    # The last step ends the episode after one frame, and a new one begins.
    after, _, reward, terminal, _, info = env.step(1, after, dt=9)
    assert (after, reward, terminal, info["n_step"]) == (5, 1, True, 1)
    assert env.get_state() == 0
    states, _, rewards, *_ = env.step_batch([1, 2], [state, after], dt=[1, 2])
    assert rewards == [2, 2] and states == [2, 7]
    assert env.step_batch([1, 1])[0] == [2, 4]
    assert env.clone(frameskip=3).frameskip == 3
    assert Walk("walk", return_image=True).clone().return_image
    assert env.step_with_dt(1, dt=1)[1] == 1
    with pytest.raises(InputError, match="dt must be at least 1, got 0"):
        env.step_with_dt(1, dt=0)
    for each in (env, ClassicControl("CartPole-v1")):
        assert each.step_batch([], return_state=True) == ([],) * 6
        assert each.step_batch([], []) == ([],) * 6
        assert each.step_batch([], [], return_state=False) == ([],) * 5


class Seen(ClassicControl):
    """Sees one number and counts rewards in tens."""

    def process_obs(self, obs: Any, **kwargs: Any) -> Any:
        return obs[:1]

    def process_reward(self, reward: Any, **kwargs: Any) -> float:
        return 10 * float(reward)


class Every(ClassicControl):
    """Does something at each frame."""

    frames = 0

    def apply_action(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.frames += 1
        return super().apply_action(action)


def test_a_step_calls_what_a_subclass_writes() -> None:
    env, plain = Seen("CartPole-v1"), ClassicControl("CartPole-v1")
    env.seed(0)
    plain.seed(0)
    state, obs, _ = env.reset()
    assert obs.shape == (1,)
    given = [plain.reset()[0]] * 3
    mine, theirs = (each.step_batch([0, 1, 1], given, dt=2) for each in (env, plain))
    assert mine[2] == [20.0] * 3
    assert np.array_equal(mine[1], [obs[:1] for obs in theirs[1]])
    assert np.array_equal(mine[0], theirs[0]) and mine[-1] == theirs[-1]
    assert len(env.step_batch([0, 1], np.stack(given[:2]), return_state=None)) == 6
    every = Every("CartPole-v1", frameskip=2)
    every.reset()
    assert every.step(0, dt=3)[1] == 6.0 and every.frames == 6


class Heavy(plangym.PlangymEnv):
    """Makes its own Gymnasium environment."""

    def init_gym_env(self) -> Any:
        return gymnasium.wrappers.TransformReward(PendulumEnv(g=20.0), float)


class Replaced(plangym.PlangymEnv):
    """Replaces its Gymnasium environment after it was made."""

    def setup(self) -> None:
        super().setup()
        self._gym_env = PendulumEnv(g=30.0)


@pytest.mark.parametrize(("kind", "gravity"), [(Heavy, 20.0), (Replaced, 30.0)])
def test_environments_of_ones_own(kind: Any, gravity: float) -> None:
    env = kind("mine" if kind is Heavy else "Pendulum-v1")
    state, *_ = env.reset()
    assert env.gym_env.unwrapped.g == gravity and env.obs_shape == (3,)
    found = env.step_batch([[0.5], [1.0]], [state] * 2)
    assert np.array_equal(found[1][1], env.step([1.0], state)[1])


@pytest.mark.parametrize("env_class", [Walk, Seen, Heavy])
def test_workers_step_them(env_class: Any) -> None:
    names = {Walk: "walk", Seen: "CartPole-v1", Heavy: "heavy"}
    single = env_class(names[env_class])
    env = ParallelEnv(env_class, name=names[env_class], n_workers=2)
    try:
        state, *_ = env.reset()
        actions = [single.sample_action() for _ in range(3)] + [single.sample_action()]
        mine = env.step_batch(actions, [state] * 4, dt=2)
        theirs = single.step_batch(actions, [state] * 4, dt=2)
        assert mine[2] == theirs[2] and mine[-1] == theirs[-1]
        assert np.array_equal(mine[0], theirs[0]) and np.array_equal(mine[1], theirs[1])
    finally:
        env.close()

"""Audits step rows in a copy of an environment that may have state outside its rows."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest

import plangym_like
from plangym_like.errors import ChangedSettingError, ImpureEnvironmentError

pytestmark = pytest.mark.usefixtures("unhurried_audits")


class HeavierLater(gymnasium.Wrapper):
    """From step 30 of an episode on, gravity is stronger; rows hold the step, not the gravity."""

    def reset(self, **kwargs: Any) -> Any:
        self.time, self.unwrapped.g = 0, 10.0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.time == 30:
            self.unwrapped.g = 13.0
        return self.env.step(action)


class Remembering(gymnasium.Env[Any, Any]):
    """From step 100 on, rewards the action that was first taken at the same time of any episode."""

    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Discrete(1_000)

    @functools.lru_cache(None)  # noqa: B019
    def at(self, time: int) -> float:
        return self.seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.seen = 0, 0.0
        return 0, {}

    def step(self, action: int) -> Any:
        self.time += 1
        self.seen = float(action)
        return self.time, self.at(self.time) if self.time > 100 else 0.0, False, False, {}


def test_a_cache_of_the_class_is_noticed_in_one_process() -> None:
    with plangym_like.make(Remembering, snapshot="pickle", audit_every=1) as env:
        env.reset(seed=0)
        for _ in range(120):  # `make` takes fewer steps in an episode
            env.step(0)
        state = env.get_state()
        with pytest.raises(ImpureEnvironmentError, match="rewards? differed"):
            env.step_batch([0, 1, 2], state)


def test_an_attribute_that_a_wrapper_changes_late_is_noticed_in_one_process() -> None:
    with plangym_like.make("Pendulum-v1", wrappers=[HeavierLater]) as env:
        env.reset(seed=0)
        with pytest.raises(ChangedSettingError, match=r"PendulumEnv\.g changed from 10"):
            for _ in range(40):
                env.step([1.0], return_state=True)


@pytest.mark.parametrize("wrapped", [False, True])
def test_only_an_environment_with_wrappers_of_other_packages_is_copied(wrapped: bool) -> None:
    class Plain(gymnasium.Wrapper):
        pass

    with plangym_like.make("Pendulum-v1", wrappers=[Plain] * wrapped) as env:
        env.step_batch(np.ones((4, 1)), env.reset(seed=0).state)
        stepper = env.row_stepper
        copy = stepper.for_audits()
        assert (copy is not stepper) == wrapped
    assert copy.refusal is not None  # it is closed with the environment

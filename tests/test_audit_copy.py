"""Audits step rows in a copy of an environment whose wrappers may change its attributes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import plangym_like
from plangym_like.errors import ImpureEnvironmentError

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


def test_an_attribute_that_a_wrapper_changes_late_is_noticed_in_one_process() -> None:
    with plangym_like.make("Pendulum-v1", wrappers=[HeavierLater]) as env:
        states = [env.reset(seed=0).state]
        for _ in range(40):
            states.append(env.step([1.0], return_state=True)[0])
        # The gravity of the last step is still there, also for the first state.
        with pytest.raises(ImpureEnvironmentError):
            env.step_batch(np.ones((len(states), 1)), np.stack(states))


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

"""The checker finds what is broken, names it, and lets what is right pass."""

import json
import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from broken_envs import BROKEN, Broken, ForgetfulWrapper, Walk
from gymnasium.wrappers import TimeLimit

import plangym_like
from plangym_like import check_env
from plangym_like.errors import InputError
from plangym_like.testing.report import DESCRIPTIONS

pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_broken_is_found_and_named(kind: str) -> None:
    broken: Broken = BROKEN[kind]
    env = broken.env_class(broken.make, delay_setup=True)
    report = check_env(env, workers=(1,) if broken.check == "workers" else ())
    assert [found.check for found in report.failed] == [broken.check]
    assert not report.ok and broken.check not in report.passed
    found = report.failed[0]
    assert re.search(broken.names, f"{found.field}: {found.detail}")
    assert found.advice in str(report) and DESCRIPTIONS[broken.check][0] in str(report)
    json.dumps(report.as_dict())


def test_nothing_is_wrong_with_the_walk() -> None:
    report = check_env(Walk)
    assert report.ok, str(report)
    assert report.passed == [check for check in DESCRIPTIONS if check != "image"]
    assert report.states == 16 and report.steps > 100
    assert min(report.save_us, report.restore_us, report.step_us) > 0


@pytest.mark.parametrize(
    "name, kwargs",
    [
        ("CartPole-v1", {"render_mode": "rgb_array"}),
        ("CartPole-v1", {"snapshot": "replay"}),
        ("FrozenLake-v1", {"remove_time_limit": False}),
        ("Pendulum-v1", {"snapshot": "pickle", "wrappers": [(TimeLimit, 30)]}),
    ],
)
def test_what_is_right_passes(name: str, kwargs: dict[str, Any]) -> None:
    report = check_env(name, states=6, steps=8, workers=(2,), **kwargs)
    assert report.ok, str(report)
    assert ("image" in report.passed) == ("render_mode" in kwargs)
    assert report.snapshot == kwargs.get("snapshot", "native")


def test_a_planted_wrapper_is_found_on_a_family_of_its_own() -> None:
    report = check_env("Pendulum-v1", wrappers=[ForgetfulWrapper], workers=())
    assert [found.check for found in report.failed] == ["restore"]
    assert "ForgetfulWrapper.steps" in report.failed[0].detail


def test_whatever_make_takes_and_makes_is_checked() -> None:
    env = plangym_like.make("CartPole-v1", n_workers=2)
    assert check_env(env, states=2, steps=4, workers=()).ok
    env.close()
    report = check_env(gymnasium.make("CartPole-v1"), states=2, steps=4, workers=())
    assert report.ok and report.name == "CartPole-v1"
    with pytest.raises(InputError, match="give the callable"):
        check_env(Walk())
    with pytest.raises(gymnasium.error.NameNotFound):
        check_env("Nowhere-v0")
    with pytest.raises(InputError, match="at least 1"):
        check_env(Walk, states=0)


class Misfit(Walk):
    """Breaks a promise of Gymnasium's API from its third step on, or in its reset."""

    def __init__(self, part: str, value: Any, since: int = 3) -> None:
        super().__init__()
        self.part, self.value, self.since, self.steps = part, value, since, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        self.steps = 0
        return self.value if self.since == 0 else obs, info

    def step(self, action: Any) -> Any:
        result = dict(zip(PARTS, super().step(action), strict=True))
        self.steps += 1
        if self.steps >= self.since > 0:
            result[self.part] = self.value
        return tuple(result.values())


PARTS = ("observation", "reward", "terminated", "truncated", "info")
MISFITS = {
    "shape": (Misfit, ("observation", np.zeros(7, np.float32)), r"shape \(7,\)"),
    "type": (Misfit, ("observation", None), "None"),
    "reset": (Misfit, ("observation", np.zeros(7, np.float32), 0), r"shape \(7,\)"),
    "reward": (Misfit, ("reward", "much"), "not one number"),
    "huge": (Misfit, ("reward", 10**400), "too large for float64"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_results_that_break_gymnasiums_promises_fail_a_check(kind: str) -> None:
    env_class, (part, value, *since), told = MISFITS[kind]
    report = check_env(partial(env_class, part, value, *since), workers=())
    (found,) = report.failed
    assert (found.check, found.field) == ("results", part), report
    assert found.step == (since[0] if since else 3)
    assert re.search(told, found.detail)


def test_a_flag_that_is_no_flag_fails_a_check() -> None:
    (found,) = check_env(partial(Misfit, "truncated", "no"), workers=()).failed
    assert found.check == "made" and "as truncated, which must be True or False" in found.detail

"""Hostile environments and wrappers on every executor: right, refused or noticed, never silent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest
from conftest import sending
from gymnasium import wrappers
from hostile_envs import ENVS, HANDED_OUT, Walk
from hostile_wrappers import WRAPPERS
from judging import ROWS, judge

import plangym_like

pytestmark = pytest.mark.usefixtures("unhurried_audits")

# Executor -> arguments of `make`, and rows to step where the whole zoo is not asked for.
EXECUTORS: dict[str, tuple[dict[str, Any], int]] = {
    "serial": ({}, ROWS),
    "1 worker": ({"n_workers": 1}, 0),
    "2 workers": ({"n_workers": 2}, 400),
    "3 workers": ({"n_workers": 3}, 0),
    "isolated": ({"n_workers": 2, "isolate": True}, 200),
    "ray": ({"ray": True, "n_workers": 1, "resources": {"num_cpus": 0}}, 0),
}
FAMILIES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "FrozenLake-v1": {},
    "Pendulum-v1": {"snapshot": "pickle"},
    "MountainCar-v0": {"snapshot": "replay"},
    "ALE/MsPacman-v5": {"repeat_action_probability": 0.0, "obs_type": "ram"},
    "InvertedPendulum-v5": {},
}


_USUAL = {("2 workers", "CartPole-v1"), ("isolated", "FrozenLake-v1")}
_FULL = pytest.mark.full


def _executors() -> list[Any]:
    """Return all executors, each with few rows in the usual run or with all of them in the full."""
    params = []
    for name, (kwargs, rows) in EXECUTORS.items():
        if rows:
            params.append(pytest.param(name, kwargs, rows, id=name))
        if rows < ROWS:
            params.append(pytest.param(name, kwargs, ROWS, id=f"{name}-full", marks=_FULL))
    return params


@pytest.fixture(autouse=True)
def _cluster(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params.get("executor") == "ray":
        request.getfixturevalue("cluster")


def _make(name: Any, **kwargs: Any) -> Any:
    return sending(plangym_like.make(name, **kwargs))


@pytest.mark.parametrize(("executor", "kwargs", "rows"), _executors())
@pytest.mark.parametrize("kind", ENVS, ids=lambda kind: kind.__name__)
def test_no_environment_is_silently_wrong(
    kind: Callable[[], Walk], executor: str, kwargs: dict[str, Any], rows: int
) -> None:
    verdict = judge(kind, partial(_make, kind, **kwargs), rows)
    assert verdict.outcome != "silent", verdict.reason


@pytest.mark.parametrize(("executor", "kwargs", "rows"), _executors())
@pytest.mark.parametrize("kind", HANDED_OUT, ids=lambda kind: kind.__name__)
def test_replayed_environments_that_hand_out_what_they_use_are_right(
    kind: Callable[[], Walk], executor: str, kwargs: dict[str, Any], rows: int
) -> None:
    verdict = judge(kind, partial(_make, kind, snapshot="replay", **kwargs), rows)
    assert verdict.outcome == "right", verdict.reason


def _without_time_limit(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    while isinstance(env, wrappers.TimeLimit):
        env = env.env
    return env


def _executors_and_families() -> list[Any]:
    """Return all pairs; in the usual run, workers step one family each."""
    params = []
    for name in FAMILIES:
        for executor, (kwargs, rows) in EXECUTORS.items():
            usual = executor == "serial" or (executor, name) in _USUAL
            if usual:
                fewer = min(rows or 200, 400)
                params.append(pytest.param(name, executor, kwargs, fewer, id=f"{executor}-{name}"))
            params.append(
                pytest.param(
                    name, executor, kwargs, ROWS, id=f"{executor}-{name}-full", marks=_FULL
                )
            )
    return params


@pytest.mark.parametrize(("name", "executor", "kwargs", "rows"), _executors_and_families())
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.__name__)
def test_no_wrapper_is_silently_wrong(
    wrapper: Callable[[Any], Any], name: str, executor: str, kwargs: dict[str, Any], rows: int
) -> None:
    options = FAMILIES[name]
    own = {key: value for key, value in options.items() if key != "snapshot"}

    def build() -> gymnasium.Env[Any, Any]:
        made = gymnasium.make(name, disable_env_checker=True, **own)
        return wrapper(_without_time_limit(made))

    verdict = judge(build, partial(_make, name, wrappers=[wrapper], **options, **kwargs), rows)
    assert verdict.outcome != "silent", verdict.reason


# Those with which nothing is wrong.
RIGHT = ("Walk", "OwnRandom", "OwnLegacyRandom", "Orders", "Namespace", "SavesItself", "Lock")


@pytest.mark.parametrize("kind", [kind for kind in ENVS if kind.__name__ in RIGHT])
def test_environments_with_nothing_wrong_are_right(kind: Callable[[], Walk]) -> None:
    verdict = judge(kind, partial(_make, kind))
    assert verdict.outcome == "right", verdict.reason

"""Hostile environments and wrappers on every executor: right, refused or noticed, never silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from backends import BACKENDS, sending
from gymnasium import wrappers
from hostile_envs import ENVS, HANDED_OUT, Walk
from hostile_wrappers import WRAPPERS
from judging import ROWS, judge

import plangym_like

pytestmark = pytest.mark.usefixtures("unhurried_audits")

# Executor -> arguments of `make`.
EXECUTORS: dict[str, dict[str, Any]] = {
    "serial": {},
    "1 worker": {"n_workers": 1},
    "2 workers": {"n_workers": 2},
    "3 workers": {"n_workers": 3},
    "isolated": {"n_workers": 2, "isolate": True},
    "ray": BACKENDS["ray"],
}
# In the usual run, a few rows are stepped and more of them audited than usual: in this process, and
# of every third kind by workers, of these two kinds in turn. `pytest -m full` steps all rows with
# every executor, and audits the usual sample.
FEW_ROWS = 100
AUDIT_EVERY = 6
IN_TURN = ("2 workers", "isolated")
# Environments with which nothing is wrong.
RIGHT = ("Walk", "OwnRandom", "Orders", "SavesItself", "Lock")
# A fault that shows only where strings have other hashes: isolated workers have the same hashes,
# because they are forked from one server.
SAME_IN_WORKERS = ("LateStringSet",)
FAMILIES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "FrozenLake-v1": {},
    "Pendulum-v1": {"snapshot": "pickle"},
    "MountainCar-v0": {"snapshot": "replay"},
    "ALE/MsPacman-v5": {"repeat_action_probability": 0.0, "obs_type": "ram", "frameskip": 1},
    "InvertedPendulum-v5": {},
}


def _on_executors(*kinds: Any) -> list[Any]:
    """Return what is tried: each of `kinds`, with the name of an executor and a number of rows."""
    params = []
    for number, kind in enumerate(kinds):
        name = kind if isinstance(kind, str) else kind.__name__
        usual = ["serial"] if number % 3 else ["serial", IN_TURN[number % 2]]
        for executor in usual:
            params.append(pytest.param(kind, executor, FEW_ROWS, id=f"{name}-{executor}"))
        for executor in EXECUTORS:
            which = f"{name}-{executor}-full"
            params.append(pytest.param(kind, executor, ROWS, id=which, marks=pytest.mark.full))
    return params


@pytest.fixture(autouse=True)
def _cluster(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params.get("executor") == "ray":
        request.getfixturevalue("cluster")


def _maker(name: Any, rows: int, **kwargs: Any) -> Callable[[], Any]:
    """Return what makes the environment; where few rows are stepped, audits are frequent."""
    options = {"audit_every": AUDIT_EVERY, **kwargs} if rows < ROWS else kwargs
    return lambda: sending(plangym_like.make(name, **options))


@pytest.mark.parametrize(("kind", "executor", "rows"), _on_executors(*ENVS))
def test_no_environment_is_silently_wrong(
    kind: Callable[[], Walk], executor: str, rows: int
) -> None:
    if executor == "isolated" and kind.__name__ in SAME_IN_WORKERS:
        pytest.skip("all isolated workers may give the same results (docs/audit.md)")
    verdict = judge(kind, _maker(kind, rows, **EXECUTORS[executor]), rows)
    if kind.__name__ in RIGHT:
        assert verdict.outcome == "right", verdict.reason
    assert verdict.outcome != "silent", verdict.reason


@pytest.mark.parametrize(("kind", "executor", "rows"), _on_executors(*HANDED_OUT))
def test_replayed_environments_that_hand_out_what_they_use_are_right(
    kind: Callable[[], Walk], executor: str, rows: int
) -> None:
    verdict = judge(kind, _maker(kind, rows, snapshot="replay", **EXECUTORS[executor]), rows)
    assert verdict.outcome == "right", verdict.reason


def _without_time_limit(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    while isinstance(env, wrappers.TimeLimit):
        env = env.env
    return env


def _wrappers() -> Iterator[Any]:
    """Yield each wrapper with all families; in the usual run, with one of them in turn."""
    names = list(FAMILIES)
    for at, wrapper in enumerate(WRAPPERS):
        for param in _on_executors(*names):
            marks = param.marks if param.values[0] == names[at % 6] else [pytest.mark.full]
            which = f"{wrapper.__name__}-{param.id}"
            yield pytest.param(wrapper, *param.values, id=which, marks=marks)


@pytest.mark.parametrize(("wrapper", "name", "executor", "rows"), list(_wrappers()))
def test_no_wrapper_is_silently_wrong(
    wrapper: Callable[[Any], Any], name: str, executor: str, rows: int
) -> None:
    options = FAMILIES[name]
    own = {key: value for key, value in options.items() if key != "snapshot"}

    def build() -> gymnasium.Env[Any, Any]:
        made = gymnasium.make(name, disable_env_checker=True, **own)
        return wrapper(_without_time_limit(made))

    options = {**options, **EXECUTORS[executor], "wrappers": [wrapper]}
    verdict = judge(build, _maker(name, rows, **options), rows)
    assert verdict.outcome != "silent", verdict.reason

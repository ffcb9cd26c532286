"""Values of classes and modules on which steps depend: they are named in errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import caching_envs
import gymnasium
import numpy as np
import pytest
from caching_envs import (
    CACHE,
    EARLY,
    LATE,
    ClassCounter,
    LateModuleCache,
    Memo,
    ModuleCache,
    Statistics,
    Walk,
)
from conftest import sending
from usual import first_of

import plangym_like
from plangym_like.errors import ImpureEnvironmentError, SnapshotError
from plangym_like.snapshots.outside_values import OutsideValues
from plangym_like.testing import check_env

pytestmark = pytest.mark.usefixtures("unhurried_audits")
WHERE: dict[str, dict[str, Any]] = {
    "serial": {},
    "2 workers": {"n_workers": 2},
    "isolated": {"n_workers": 2, "isolate": True},
}
DEPENDS = r".*, and the next step depends on it; keep it in an attribute of the environment"


@pytest.fixture(autouse=True)
def _as_imported() -> Iterator[None]:
    caching_envs.forget()
    yield
    caching_envs.forget()


def use(env: Any, rows: int = 2000) -> None:
    """Step at least `rows` rows of many episodes: alone, and again in batches."""
    for seed in range(-(-rows // 110)):
        states, actions = [env.reset(seed=seed).state], [time % 3 for time in range(55)]
        for action in actions:
            states.append(env.step(action, states[-1]).state)
        env.step_batch(actions, np.stack(states[:-1]))


@pytest.mark.parametrize("where", ["serial", "isolated"])
@pytest.mark.parametrize("kind", EARLY)
def test_the_trial_names_what_the_next_step_depends_on(
    kind: Callable[[], Walk], where: str
) -> None:
    with pytest.raises(SnapshotError, match=EARLY[kind] + DEPENDS):
        plangym_like.make(kind, **WHERE[where])


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", LATE)
def test_audits_name_what_the_next_step_depends_on(kind: Callable[[], Walk], where: str) -> None:
    with sending(plangym_like.make(kind, **WHERE[where])) as env:
        assert env.exactness == "exact"
        with pytest.raises(ImpureEnvironmentError, match=LATE[kind] + DEPENDS):
            use(env)


@pytest.mark.parametrize("where", first_of(WHERE))
@pytest.mark.parametrize("kind", [Memo, Statistics])
def test_memos_and_statistics_are_harmless(kind: Callable[[], Walk], where: str) -> None:
    with sending(plangym_like.make(kind, **WHERE[where])) as env:
        assert env.exactness == "exact" and env.snapshot == "pickle"
        use(env)
        assert env.stats.rows_audited > 10


def test_audits_leave_statistics_and_caches_as_they_are() -> None:
    with plangym_like.make(Statistics, audit_every=1) as env:
        state = env.reset(seed=0).state
        env.step_batch([0] * 10, state)
        before = Statistics.steps
        env.step_batch([0] * 10, state)
        assert env.stats.rows_audited == 20
        assert Statistics.steps == before + 10


@pytest.mark.parametrize("kind", [*EARLY, *LATE])
def test_check_env_names_what_the_next_step_depends_on(kind: Callable[[], Walk]) -> None:
    report = check_env(kind, workers=())
    assert not report.ok
    assert "and the next step depends on it" in str(report)
    name = {**EARLY, **LATE}[kind].partition(" \\(")[0]
    assert name.removeprefix("the lru_cache ") in str(report)


def test_check_env_does_not_blame_hashes_for_a_cache_that_was_full_before() -> None:
    CACHE.update({time: time / 7 for time in range(70)})
    report = check_env(LateModuleCache, workers=(2,))
    assert [failed.check for failed in report.failed] == ["workers"]
    assert report.failed[0].advice.startswith("CACHE (a global of caching_envs) is filled by steps")
    assert "hashes" not in report.failed[0].advice


def test_check_env_accepts_memos_and_statistics() -> None:
    for kind in (Memo, Statistics):
        assert check_env(kind, workers=(2,)).ok


def test_a_refused_environment_leaves_no_trace() -> None:
    with pytest.raises(SnapshotError):
        plangym_like.make(ModuleCache)
    assert CACHE == {}


def test_values_are_put_back() -> None:
    env = LateModuleCache()
    outside = OutsideValues(env)
    CACHE[3] = 1.5
    ClassCounter.count = 8
    with outside.as_before():
        assert caching_envs.CACHE == {}
        caching_envs.CACHE[4] = 2.5
    assert caching_envs.CACHE is CACHE and CACHE == {3: 1.5}
    assert outside.suspicion().startswith(
        "Likely cause: CACHE (a global of caching_envs) changed from {} to {3: 1.5}; keep it in"
    )
    assert "ClassCounter" not in outside.suspicion()  # no code of this environment mentions it


def test_values_of_libraries_are_not_watched() -> None:
    assert not OutsideValues(gymnasium.make("CartPole-v1")).have_changed()
    with plangym_like.make("CartPole-v1") as env:
        assert env.simulator.outside is None


def test_a_result_that_does_not_repeat_names_nothing() -> None:
    outside = OutsideValues(LateModuleCache())
    CACHE[3] = 1.5
    numbers = iter(range(100))
    assert outside.cause(lambda: next(numbers)) == ""
    assert outside.cause(lambda: None) == ""
    assert outside.cause(lambda: len(caching_envs.CACHE)).startswith("CACHE (a global")


def test_two_threads_put_back_what_the_program_has() -> None:
    one = OutsideValues(Memo())
    caching_envs.MEMO[3] = 1.0
    other = OutsideValues(Memo())
    caching_envs.MEMO[3] = 7.0
    mine = caching_envs.MEMO
    replaced, inside, left = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        replaced.wait()
        with other.as_before():
            inside.set()
            left.wait()

    thread = threading.Thread(target=second)
    thread.start()
    with one.as_before():
        replaced.set()
        assert not inside.wait(0.3)  # the other thread waits until the values are back
        assert caching_envs.MEMO == {}
    left.set()
    thread.join()
    assert caching_envs.MEMO is mine and mine == {3: 7.0}

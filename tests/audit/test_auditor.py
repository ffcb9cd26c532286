"""The budget of audits, whatever a step costs, and what they find only in workers."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_envs import Walk
from usual import first_of

import plangym_like
from plangym_like.audit import auditor
from plangym_like.audit.auditor import AuditedRows
from plangym_like.errors import ImpureEnvironmentError

# What audits do not watch: they step rows with the class attributes of before.
KEPT = threading.local()
KEPT.now, KEPT.seconds, KEPT.steps, KEPT.pauses = 0.0, 0.0, 0, []


class Timed(Walk):
    """Counts the steps of all copies; each takes ``KEPT.seconds`` on the clock of `KEPT`."""

    length = 10_000

    def step(self, action: Any) -> Any:
        KEPT.steps += 1
        KEPT.now += KEPT.seconds + sum(KEPT.pauses)
        KEPT.pauses.clear()
        return super().step(action)


@pytest.fixture(params=first_of([1e-3, 1e-6, 10.0], 2))
def seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a step takes; audits read the clock of `KEPT`."""
    monkeypatch.setattr(auditor, "clock", lambda: KEPT.now)
    monkeypatch.setattr(KEPT, "seconds", request.param)
    return float(request.param)


def single_steps(env: Any, count: int) -> int:
    """Take single steps from given states; return how many steps that took, with audits."""
    state, begun = env.reset(seed=0).state, KEPT.steps
    for number in range(count):
        state = env.step(number % 3, state).state
    return KEPT.steps - begun


def batches(env: Any, count: int) -> int:
    """Step batches of 64 rows; return how many steps that took, with audits."""
    state, begun = env.reset(seed=0).state, KEPT.steps
    for _ in range(count):
        env.step_batch(np.arange(64) % 3, state)
    return KEPT.steps - begun


def test_the_first_steps_are_audited_for_a_twentieth_of_their_number(seconds: float) -> None:
    with plangym_like.make(Timed, snapshot="pickle") as env:
        assert single_steps(env, 1000) <= 1050
        # A step of the first audit is expected to take 0.2 ms.
        assert (env.stats.rows_audited > 0) == (seconds > 1e-6)
    with plangym_like.make(Timed, snapshot="pickle") as env:
        assert batches(env, 20) <= 1280 * 1.05
        assert (env.stats.rows_audited > 0) == (seconds > 1e-6)


def test_in_the_long_run_audits_take_one_step_in_500(seconds: float) -> None:
    with plangym_like.make(Timed, snapshot="pickle") as env:
        batches(env, 5)
        env._auditor._steps = 1e9  # it has been stepped for long
        batches(env, 1)
        assert batches(env, 60) <= 60 * 64 * 1.002 + 64


def test_each_audit_is_longer_than_the_one_before(unhurried_audits: None) -> None:
    audited = [0]
    with plangym_like.make(Timed, snapshot="pickle") as env:
        state, begun = env.reset(seed=0).state, KEPT.steps
        for _ in range(200):
            env.step_batch(np.arange(64) % 3, state)
            if env.stats.rows_audited > audited[-1]:
                audited.append(env.stats.rows_audited)
    lengths = np.diff(audited).tolist()
    assert lengths[:16] == [*range(2, 17), 16]
    # One of the rows is followed twice. A copy of the environment took steps when it was made.
    assert 0 <= KEPT.steps - begun - 200 * 64 - 3 * sum(lengths) <= 20


def test_an_audit_that_costs_much_delays_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "clock", lambda: KEPT.now)
    monkeypatch.setattr(KEPT, "seconds", 1e-3)
    follow = AuditedRows._follow

    def slowly(self: Any, *args: Any) -> Any:
        KEPT.now += 0.1
        return follow(self, *args)

    monkeypatch.setattr(AuditedRows, "_follow", slowly)
    with plangym_like.make(Timed, snapshot="pickle") as env:
        begun = KEPT.now
        steps = batches(env, 60)
        # The first audits are not known to cost so much.
        assert KEPT.now - begun <= 60 * 64 * 1e-3 * 1.05 + 0.25
        assert steps > 60 * 64


def test_a_pause_in_an_audit_does_not_end_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "clock", lambda: KEPT.now)
    monkeypatch.setattr(KEPT, "seconds", 1e-3)
    follow = AuditedRows._follow

    def paused(self: Any, *args: Any) -> Any:
        KEPT.now += 1e6
        monkeypatch.setattr(AuditedRows, "_follow", follow)
        return follow(self, *args)

    with plangym_like.make(Timed, snapshot="pickle", audit_every=20) as env:
        batches(env, 20)
        before = env.stats.rows_audited
        monkeypatch.setattr(AuditedRows, "_follow", paused)
        batches(env, 100)
        assert env.stats.rows_audited > before + 8


class Hangs(Walk):
    """Hangs in one action, late in an episode; says so in the file `path`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def step(self, action: Any) -> Any:
        if int(action) == 2 and self.time >= 45:
            with open(self.path, "a") as file:
                file.write("hangs\n")
            time.sleep(1000)
        return super().step(action)


def test_an_action_that_hangs_only_in_an_audit(tmp_path: Path) -> None:
    path = tmp_path / "hangs"
    options: Any = {"n_workers": 2, "step_timeout": 1, "audit_every": 1}
    with plangym_like.make(Hangs, path=str(path), **options) as env:
        state = env.reset(seed=0).state
        for _ in range(44):
            state = env.step(1, state).state
        env._auditor.length = 9  # long enough for each action to be taken later than in the batch
        before = env.stats.rows_audited
        result = env.step_batch([0, 1, 2, 0, 1, 0, 1, 0], state)
        assert len(result.rewards) == 8
        # The first try of the step, and the second; on a busy machine, others may be late too.
        assert path.read_text() == "hangs\n" * 2 and env.stats.timeouts >= 2
        assert env.stats.rows_audited == before + 8


MODULE = """
import gymnasium, numpy as np
SCALE = 1

class Scaled(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = 0.0
        return np.zeros(1), {}

    def step(self, action):
        self.total += SCALE
        return np.array([self.total]), 0.5, False, False, {}
"""


def test_workers_lack_what_the_program_has_changed_in_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scaled_world.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import scaled_world  # type: ignore[import-not-found]

    scaled_world.SCALE = 3
    with plangym_like.make(scaled_world.Scaled, n_workers=2, audit_every=1) as env:
        state = env.reset(seed=0).state
        env.executor.pool.wait_ready()
        with pytest.raises(ImpureEnvironmentError, match="a module"):
            while True:
                env.step_batch([0] * 1000, state)
    del sys.modules["scaled_world"]

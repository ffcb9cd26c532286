"""Steps that other processes are asked for through shared memory, without messages."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium.envs.classic_control import CartPoleEnv
from hosted import wait_until_gone
from interrupting import Moment
from playing import Player, closing_all
from usual import first_of

from plangym_like.processes.shared_memory import WRITES_IN_ORDER
from plangym_like.vector import process_lanes
from plangym_like.vector.hosted_lanes import _WATCHING
from plangym_like.vector.lanes import Step, StepArrays
from plangym_like.vector.lanes_pool import LanesPool
from plangym_like.vector.make_lanes import lanes_from
from plangym_like.vector.process_lanes import ProcessLanes

SEEDS = [3, 4, 5]

needs_order = pytest.mark.skipif(not WRITES_IN_ORDER, reason="steps are asked for in messages")


class Strict(CartPoleEnv):
    """Raises an error if it is told to, and returns a very long info in the fifth step."""

    steps, fails = 0, False

    def fail(self) -> None:
        self.fails = True

    def step(self, action: Any) -> Any:
        fails, self.fails = self.fails, False
        if fails:
            raise ArithmeticError("the third step")
        self.steps += 1
        obs, reward, *_, info = super().step(action)
        if self.steps == 5:
            info["told"] = "long" * 10_000
        return obs, reward, False, False, info


def _watched(lanes: ProcessLanes) -> None:
    (worker,) = lanes.pool.workers
    until = time.monotonic() + 60
    while not (worker.channel is not None and worker.channel._words[_WATCHING]):
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ProcessLanes]]:
    monkeypatch.setattr(process_lanes, "_LINGER_SECONDS", 120.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with closing_all(ProcessLanes) as make_lanes:
        yield lambda source: make_lanes(source, len(SEEDS), 2, vectorise=False)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the methods of jobs that are sent as messages from now on."""
    methods: list[str] = []
    send = LanesPool._send

    def noting(pool: Any, worker: Any, job: Any) -> None:
        methods.append(job.method)
        send(pool, worker, job)

    monkeypatch.setattr(LanesPool, "_send", noting)
    return methods


@needs_order
def test_steps_need_no_messages(make: Any, sent: list[str]) -> None:
    lanes = make("CartPole-v1")
    player = Player(lanes, "step_same")
    played = player.play(SEEDS, 40, before=lambda number: _watched(lanes))
    twin = lanes_from("CartPole-v1", 3, vectorise=False)
    expected = Player(twin, "step_same").play(SEEDS, 40)
    assert_same(played, expected)
    assert any(flags.any() for _, _, *both, _, _ in played[1:] for flags in both)
    assert "step" not in sent


@needs_order
def test_a_step_of_some_lanes_is_done_when_its_process_says_so(make: Any, sent: list[str]) -> None:
    lanes = make("CartPole-v1")
    out = StepArrays(lanes.start(SEEDS), np.zeros(3), *np.zeros((2, 3), bool))
    _watched(lanes)
    os.kill(*lanes.pids, signal.SIGSTOP)
    step = Step(np.ones(3, int), out, [1, 2])
    lanes.submit(step)
    try:
        assert not lanes.is_done(step)
    finally:
        os.kill(*lanes.pids, signal.SIGCONT)
    lanes.collect(step)
    assert sent[-1] == "step"


@needs_order
def test_errors_and_long_replies_are_sent_on_request(make: Any, sent: list[str]) -> None:
    lanes, twin = make(Strict), lanes_from(Strict, 3, vectorise=False)
    players = Player(lanes, "step_same"), Player(twin, "step_same")
    for player in players:
        player.start(SEEDS)
    lengths = []
    for number in range(6):
        if number == 2:
            for player in players:
                player.lanes.call("fail", lanes=[2])
                _watched(lanes)
                with pytest.raises(ArithmeticError, match="the third step"):
                    player.step()
        _watched(lanes)
        played, expected = (player.step() for player in players)
        assert_same(played, expected)
        lengths += [len(info.get("told", "")) for info in lanes.infos]
    assert max(lengths) == 40_000
    assert "step" not in sent


@needs_order
def test_a_process_that_died_is_replaced(
    make: Any, sent: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    lanes = make("CartPole-v1")
    player = Player(lanes)
    player.play(SEEDS, 3, before=lambda number: _watched(lanes))
    (pid,) = lanes.pids
    with caplog.at_level(logging.WARNING):
        os.kill(pid, signal.SIGKILL)
        assert wait_until_gone(pid, 60)
        player.step()
        assert player.truncated.tolist() == [False, True, True]
        for _ in range(3):
            _watched(lanes)
            player.step()
    assert lanes.stats.deaths == 1
    assert np.isfinite(player.rewards).all()


@needs_order
@pytest.mark.parametrize("number", first_of([1, 20, 40, 10, 30, 50, 60], 3))
def test_ctrl_c_at_any_moment(make: Any, number: int) -> None:
    lanes = make("CartPole-v1")
    player = Player(lanes)
    player.play(SEEDS, 2)
    _watched(lanes)
    moment = Moment(number)
    with moment.strikes():
        player.step()
    expected = Player(lanes_from("CartPole-v1", 3, vectorise=False)).play(SEEDS, 12)
    played = Player(lanes).play(SEEDS, 12, before=lambda number: _watched(lanes))
    assert_same(played, expected)

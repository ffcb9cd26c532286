"""Workers are killed at every moment, and no result ever shows it."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import content
from harm import Mortal, VerboseEnv, kill
from playground import sending

from plangym_like.constructors import ParallelEnv
from plangym_like.processes import start_methods

MOMENTS = ("before it receives", "in a step", "in a reply", "in its start")


def digest(result: Any) -> bytes:
    return hashlib.blake2b(content(tuple(result)), digest_size=12).digest()


@pytest.mark.parametrize(
    ("batches", "count", "isolate"),
    [
        (10, 250, True),
        pytest.param(12, 250, False, marks=pytest.mark.full),
        pytest.param(200, 500, True, marks=pytest.mark.full),
    ],
)
def test_toy_transitions_under_kills_at_every_moment(
    batches: int, count: int, isolate: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(batches)
    mortal = Mortal(tmp_path)
    with (
        VerboseEnv("toy", num_actions=1 << 40) as serial,
        ParallelEnv(mortal, "toy", n_workers=3, isolate=isolate) as env,
    ):
        states: Any = serial.reset(seed=1).state
        sending(env)
        workers = list(env.batch_env)
        for batch in range(batches):
            actions = np.arange(batch * count, (batch + 1) * count)
            moment = MOMENTS[batch % len(MOMENTS)]
            if moment == "in a step":
                mortal.in_step.lay()
            elif moment == "in a reply":
                mortal.in_reply.lay()
            else:
                if moment == "in its start":
                    mortal.at_start.lay()
                kill(workers[int(rng.integers(len(workers)))])
            dt, seeds = rng.integers(1, 4, count), rng.integers(0, 1 << 40, count)
            expected = serial.step_batch(actions, states, dt, seeds=seeds)
            result = env.step_batch(actions, states, dt, seeds=seeds)
            assert digest(result) == digest(expected)
            states = expected.states
        until = time.monotonic() + 30

        def fuses() -> int:
            return int(mortal.at_start.left() + mortal.in_reply.left() + mortal.in_step.left())

        # The last worker may die while it starts, or its death may not have been noticed yet.
        while not all(each.ready and each.process.is_alive() for each in env.batch_env.workers) or (
            isolate and fuses()
        ):
            env.step_batch(actions, states)
            assert time.monotonic() < until
        assert fuses() <= (0 if isolate else batches // 4 + 1)
        assert env.stats.deaths >= batches - fuses()
        assert env.stats.rows >= batches * count


def test_the_death_of_the_fork_server_is_the_death_of_all_workers_and_shows_in_no_result() -> None:
    with (
        VerboseEnv("toy", num_actions=1 << 40) as serial,
        ParallelEnv(VerboseEnv, "toy", n_workers=3, isolate=True, num_actions=1 << 40) as env,
    ):
        states: Any = serial.reset(seed=1).state
        sending(env)
        for batch in range(3):
            actions = np.arange(batch * 200, (batch + 1) * 200)
            expected = serial.step_batch(actions, states)
            future = env.step_batch(actions, states, blocking=False)
            os.kill(start_methods._current.pid, signal.SIGKILL)
            assert digest(future.result(100)) == digest(expected)
            states = expected.states
            env.step_batch(actions[:0], states[:0])
            while not all(worker.ready for worker in env.batch_env.workers):
                env.step_batch(actions[:1], states[:1])
        assert env.stats.deaths == 9

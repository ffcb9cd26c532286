"""Lanes in several processes equal lanes in one; nothing is left behind."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, content
from hosted import descriptors, wait_until_gone, workers
from interrupting import AlarmError, Moment
from playing import Player
from small_envs import Fuse, Nested
from usual import first_of

from plangym_like import make_vec
from plangym_like.errors import ClosedError, InputError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.vector import process_lanes
from plangym_like.vector.lanes import Lanes, StepArrays
from plangym_like.vector.lanes_pool import LanesWorker
from plangym_like.vector.make_lanes import lanes_from
from plangym_like.vector.process_lanes import ProcessLanes
from plangym_like.vector.vector_env import PlanVectorEnv

SEEDS = [3, 4, 99, 3, 12]

MakeLanes = Callable[..., ProcessLanes]


def _here(sources: Any, count: int = len(SEEDS)) -> Lanes:
    return lanes_from(sources, count)


def _pids(lanes: ProcessLanes) -> list[int]:
    return [worker.process.pid for worker in lanes.pool.workers]


@pytest.fixture
def robots(make_lanes: MakeLanes) -> tuple[Player, Player]:
    """Return lanes of robots in several processes and in this one, which have just started."""
    pytest.importorskip("mujoco")
    count = 12  # so that each part has a vectorised form
    players = (
        Player(make_lanes("HalfCheetah-v5", count)),
        Player(lanes_from("HalfCheetah-v5", count)),
    )
    for player in players:
        player.start(range(count))
    return players


def test_infos_as_columns(robots: tuple[Player, Player]) -> None:
    lanes, twin = robots[0].lanes, robots[1].lanes
    count = lanes.num_lanes
    for number in range(4):
        flags = [(each.rewards, each.terminated, each.truncated) for each in robots]
        actions = np.full((count, 6), 0.1 * number, np.float32)
        for player, arrays in zip(robots, flags, strict=True):
            player.lanes.step(actions, StepArrays(player.obs, *arrays))
        columns = lanes.info_columns()
        assert columns is not None
        assert_same(columns, twin.info_columns())
        if number % 2:
            assert lanes.infos == twin.infos
            assert lanes.info_columns() is None
    lanes.reset(robots[0].obs, [3])
    twin.reset(robots[1].obs, [3])
    assert lanes.infos == twin.infos


def test_a_factory_for_each_lane(make_lanes: MakeLanes) -> None:
    limits = [5, 6, 7, 8, 9]
    factories = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=n) for n in limits]
    expected = Player(_here(factories)).play(SEEDS, 30)
    lanes = make_lanes(factories, len(factories), n_workers=3)
    assert_same(Player(lanes).play(SEEDS, 30), expected)
    assert lanes.call("spec") == _here(factories).call("spec")
    assert len(lanes.spaces) == 5


def test_observations_go_to_any_memory(make_lanes: MakeLanes) -> None:
    lanes, twin = make_lanes("CartPole-v1", 4), _here("CartPole-v1", 4)
    shared, expected = lanes.start(SEEDS[:4]), twin.start(SEEDS[:4])
    assert shared.tobytes() == expected.tobytes()
    before = shared.copy()
    results = np.zeros(4, np.float32), np.zeros(4, bool), np.zeros(4, bool)
    actions = np.array([0, 1, 1, 0])
    other = lanes.new_observations()
    for number in range(6):
        obs = other if number % 2 else shared
        untouched = other.copy()
        lanes.step(actions, StepArrays(obs, *results))
        twin.step(actions, StepArrays(expected, *results))
        assert obs.tobytes() == expected.tobytes() != before.tobytes()
        assert number % 2 or other.tobytes() == untouched.tobytes()
    other[...] = -1
    lanes.step(actions, StepArrays(other, *results), [2])
    twin.step(actions, StepArrays(expected, *results), [2])
    assert other[2].tobytes() == expected[2].tobytes()
    assert (other[[0, 1, 3]] == -1).all()
    assert results[0].dtype == np.float32


def test_calls_and_attributes(make_lanes: MakeLanes) -> None:
    lanes: Any = make_lanes("CartPole-v1", 4)
    twin: Any = _here("CartPole-v1", 4)
    records = []
    for each in (lanes, twin):
        player = Player(each)
        player.start(SEEDS[:4])
        assert player.lanes.call("gravity", lanes=[3, 0]) == [9.8, 9.8]
        each.set_attr("gravity", [1.0, 2.0, 3.0, 4.0])
        assert player.lanes.call("gravity") == [1.0, 2.0, 3.0, 4.0]
        assert player.lanes.call("has_wrapper_attr", "length") == [True] * 4
        records.append([content(player.step()[:4]) for _ in range(5)])
    assert records[0] == records[1]
    rendering = make_lanes(partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array"), 2)
    rendering.start([1, 1])
    first, second = rendering.call("render")
    assert first.ndim == 3 and first.tobytes() == second.tobytes()


class Touchy(Nested):
    """Raises when it is told to."""

    def step(self, action: Any) -> Any:
        if action["pick"] == 2:
            raise ArithmeticError("it was touched")
        return super().step(action)


def _touching(lanes: Any, count: int = 5) -> Any:
    return {
        "move": np.zeros((count, 2), np.float32),
        "pick": np.isin(np.arange(count), lanes) * 2,
    }


@pytest.mark.parametrize("touched", first_of([[0, 3], [4], [1], [2, 3, 4]], 2))
def test_an_exception_names_its_lane_and_the_others_go_on(
    make_lanes: MakeLanes, touched: list[int]
) -> None:
    lanes, twin = make_lanes(Touchy, 5, 3), _here(Touchy)
    obs, expected = lanes.start(SEEDS), twin.start(SEEDS)
    results = np.zeros(5), np.zeros(5, bool), np.zeros(5, bool)
    with pytest.raises(ArithmeticError, match="it was touched") as caught:
        lanes.step(_touching(touched), StepArrays(obs, *results))
    notes = "\n".join(caught.value.__notes__)
    assert f"raised while lane {touched[0]} was stepped" in notes
    assert ("other lanes raised" in notes) == (len(touched) > 1)
    assert (type(caught.value.__cause__).__name__ == "RemoteTraceback") == (touched[0] > 0)
    # The lanes before the first one of their part that raised have been stepped.
    parts = [[0], [1, 2], [3, 4]]
    stepped = [
        lane for part in parts for lane in part if not {*touched} & {*range(part[0], lane + 1)}
    ]
    twin.step(_touching([]), StepArrays(expected, *results), stepped)
    for each, memory in ((lanes, obs), (twin, expected)):
        each.step(_touching([]), StepArrays(memory, *results))
    assert obs["place"].tobytes() == expected["place"].tobytes()


def test_what_cannot_be() -> None:
    refused: Any = (0, -1, math.nan, "long")
    for value in refused:
        with pytest.raises(InputError, match="timeout must be"):
            make_vec("CartPole-v1", 2, timeout=value)  # which needs no processes
    owner = os.getpid()

    def fails_elsewhere() -> Any:
        if os.getpid() != owner:
            raise ZeroDivisionError("not here")
        return Nested()

    with pytest.raises(ZeroDivisionError, match="not here"):
        ProcessLanes(fails_elsewhere, 4)


@pytest.mark.parametrize("error", [KeyboardInterrupt, AlarmError])
@pytest.mark.parametrize("number", first_of([1, 30, 60, 90, 9, 20, 40, 50, 70, 80, 100, 110], 4))
def test_ctrl_c_at_any_moment_leaves_no_stale_reply(
    make_lanes: MakeLanes, number: int, error: type[BaseException]
) -> None:
    lanes = make_lanes("CartPole-v1", 4, vectorise=False)
    player = Player(lanes)
    player.play(SEEDS[:4], 2)
    moment = Moment(number)
    with moment.strikes(error):
        player.step()
    expected = Player(lanes_from("CartPole-v1", 4, vectorise=False)).play(SEEDS[:4], 12)
    assert_same(Player(lanes).play(SEEDS[:4], 12), expected)
    # A step has few moments, and Python 3.13 shows only some of them to a tracer.
    assert moment.where is not None or number > 1


def test_an_exception_of_a_signal_handler_is_not_the_result_of_a_task(
    make_lanes: MakeLanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_lanes, "_LINGER_SECONDS", 0.0)
    envs = PlanVectorEnv(make_lanes(Fuse, 4))
    envs.reset(seed=0)
    take_task, alarms = LanesWorker.take_task, [AlarmError]

    def interrupted(self: LanesWorker) -> Any:
        if alarms:
            raise alarms.pop()
        return take_task(self)

    monkeypatch.setattr(LanesWorker, "take_task", interrupted)
    with pytest.raises(AlarmError):
        envs.step([1] * 4)
    assert envs.reset(seed=1)[0].tolist() == [0.0] * 4
    for load in (2.0, 4.0):
        assert envs.step([2] * 4)[0].tolist() == [load] * 4


class Waits(Nested):
    """Waits in its step until a pipe is closed, if it is told to, and says so."""

    def __init__(self, told: int, go_on: int) -> None:
        super().__init__()
        self._told, self._go_on = told, go_on

    def step(self, action: Any) -> Any:
        if action["pick"] == 2:
            os.write(self._told, b".")
            os.read(self._go_on, 1)
        return super().step(action)


def test_ctrl_c_while_a_process_is_waited_for(make_lanes: MakeLanes) -> None:
    told, tell = os.pipe()
    waiting, go_on = os.pipe()
    owner = os.getpid()

    def waits_elsewhere() -> Any:
        # The descriptors are the owner's, by the path that any process may open.
        ends = [f"/proc/{owner}/fd/{fd}" for fd in (tell, waiting)]
        return Waits(os.open(ends[0], os.O_WRONLY), os.open(ends[1], os.O_RDONLY))

    lanes = make_lanes(waits_elsewhere, 2)
    obs = lanes.start([1, 2])
    results = np.zeros(2), np.zeros(2, bool), np.zeros(2, bool)

    def interrupt() -> None:
        os.read(told, 1)
        (worker,) = lanes.pool.workers
        while worker.task is None or worker.interrupted:  # the request is still being sent
            time.sleep(0.001)
        os.kill(owner, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        lanes.step(_touching([1], 2), StepArrays(obs, *results))
    thread.join()
    os.close(go_on)
    expected = _here(Nested, 2).start([8, 9])
    lanes.reset(obs, seeds=[8, 9])
    assert_same(obs, expected)
    assert lanes.stats.deaths == 0
    lanes.close()
    for fd in (told, tell, waiting):
        os.close(fd)


def test_close(make_lanes: MakeLanes) -> None:
    with ExternalProcess(dict) as process:  # the fork server may stay
        process.wait_ready(100)
    gc.collect()
    before = descriptors(), len(workers())
    lanes = make_lanes("CartPole-v1", 4, 3)
    player = Player(lanes)
    player.play(SEEDS[:4], 3)
    pids = _pids(lanes)
    assert len(pids) == 2
    lanes.close()
    lanes.close()
    assert all(wait_until_gone(pid, 0) for pid in pids)
    for use in (player.step, lanes.start, lanes.get_states, lambda: lanes.call("spec")):
        with pytest.raises(ClosedError):
            use()
    made = ProcessLanes("CartPole-v1", 4, 2)
    made.start()
    pids = _pids(made)
    del made, player
    gc.collect()
    assert all(wait_until_gone(pid, 100) for pid in pids)
    assert (descriptors(), len(workers())) == before

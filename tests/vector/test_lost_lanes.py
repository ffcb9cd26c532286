"""Processes of lanes that die or hang: their lanes end their episodes, or are restored."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, content
from hosted import HostedObject, wait_until_gone
from interrupting import Moment
from playing import Player
from small_envs import Nested
from usual import first_of

import plangym_like
from plangym_like.errors import WorkerDiedError, WorkerStartError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.vector.lanes import LaneStats, seed_after_loss
from plangym_like.vector.lanes_pool import LanesPool, LanesWorker
from plangym_like.vector.make_lanes import lanes_from
from plangym_like.vector.process_lanes import ProcessLanes

SEEDS = [3, 4, 99, 3, 12]
DIED = {"worker_died": True}

MakeLanes = Callable[..., ProcessLanes]


class Mortal(Nested):
    """Does harm in another process than the test's, once for each file in a folder."""

    armed = True

    def __init__(self, folder: Path, owner: int) -> None:
        super().__init__()
        self.folder, self.owner = folder, owner

    def harm(self, when: str) -> None:
        fuse = self.folder / when
        if not self.armed or os.getpid() == self.owner:
            return
        try:
            text = fuse.read_text()
            if text != "always":
                fuse.unlink()  # only one process can
        except FileNotFoundError:
            return
        if text == "sleep":
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.harm("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.harm("step")
        return super().step(action)

    def look(self) -> int:
        self.harm("look")
        return 7


def _mortal(folder: Path) -> Any:
    return partial(Mortal, folder, os.getpid())


def _mortal_with_states(folder: Path) -> Any:
    return partial(_make_with_states, _mortal(folder))


def _make_with_states(factory: Any) -> Any:
    Mortal.armed = False  # it is tried out when it is made
    try:
        return plangym_like.make(factory, remove_time_limit=False)
    finally:
        Mortal.armed = True


def _kill(lanes: ProcessLanes, part: int = 0) -> None:
    """Kill the process of a part, and wait until it has ended."""
    pid = lanes.pool.workers[part].process.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid, 100)


def _deaths_logged(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno == logging.WARNING for record in caplog.records)


def test_a_process_that_dies_before_the_first_episode_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_spaces = ProcessLanes._read_spaces

    def kill_and_read(lanes: ProcessLanes) -> None:
        _kill(lanes)
        read_spaces(lanes)

    monkeypatch.setattr(ProcessLanes, "_read_spaces", kill_and_read)
    with contextlib.closing(plangym_like.make_vec("CartPole-v1", 2, n_workers=2)) as envs:
        assert np.array_equal(
            envs.reset(seed=0)[0], plangym_like.make_vec("CartPole-v1", 2).reset(seed=0)[0]
        )


@pytest.mark.parametrize(
    ("how", "mode"),
    [("between", "step_next"), ("between", "step_same"), ("in", "step"), ("in", "step_same")],
)
def test_lanes_that_die_end_their_episodes(
    make_lanes: MakeLanes, mode: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lanes = make_lanes(_mortal(tmp_path), 5, 3)
    player, twin = Player(lanes, mode), Player(lanes_from(Nested, 5), mode)
    player.start(SEEDS)
    twin.start(SEEDS)
    for _ in range(4):
        before = player.step()
        twin.step()
    assert not player.terminated.any()
    if how == "between":
        _kill(lanes, 0)
    else:
        (tmp_path / "step").write_text("once")
    obs, rewards, terminated, truncated, finals, infos = player.step()
    expected = twin.step()
    died = np.flatnonzero(truncated).tolist()
    assert died in ([[1, 2]] if how == "between" else [[1, 2], [3, 4]])
    alive = [lane for lane in range(5) if lane not in died]
    assert not terminated.any() and not rewards[died].any()
    assert_same(rewards[alive], expected[1][alive])
    for lane in died:
        last = before[0]["place"][lane]
        assert infos[lane]["worker_died"] is True
        if mode == "step_same":
            assert finals[lane][1] == DIED
            assert finals[lane][0]["place"].tobytes() == last.tobytes()
            assert not obs["cargo"][0][lane]
        else:
            assert infos[lane] == DIED
            assert obs["place"][lane].tobytes() == last.tobytes()
    for lane in alive:
        assert obs["place"][lane].tobytes() == expected[0]["place"][lane].tobytes()
        assert infos[lane] == expected[5][lane]
    # The new episodes are those of environments with derived seeds.
    fresh = Nested()
    lane = died[0]
    fresh.reset(seed=seed_after_loss(SEEDS[lane], 1))
    if mode == "step_same":
        place = obs["place"][lane]
        fresh.reset()
        assert place.tobytes() == fresh.place.tobytes()
    else:
        player.step()
        if mode == "step_next":
            assert not player.truncated.any() and not player.rewards[died].any()
            fresh.reset()
            assert player.obs["place"][lane].tobytes() == fresh.place.tobytes()
    for _ in range(20):
        player.step()
    stats = lanes.stats
    assert (stats.deaths, stats.restarts, stats.lanes_ended) == (1, 1, 2)
    assert _deaths_logged(caplog) == 1


@pytest.mark.parametrize("mode", first_of(["step_same", "step_next", "step"]))
def test_equal_deaths_give_equal_results(make_lanes: MakeLanes, mode: str) -> None:
    played = []
    for _ in range(2):
        lanes = make_lanes("CartPole-v1", 4, 2)

        def kill(number: int, lanes: ProcessLanes = lanes) -> None:
            if number in (7, 11):
                _kill(lanes)

        played.append(content(Player(lanes, mode).play(SEEDS[:4], 20, kill)))
        assert lanes.stats.lanes_ended == 4
    assert played[0] == played[1]


def test_kills_at_any_moment(make_lanes: MakeLanes) -> None:
    lanes = make_lanes("Pendulum-v1", 6, 3)
    due, over = threading.Semaphore(0), threading.Event()

    def kill() -> None:
        for number in range(6):
            due.acquire()
            if over.is_set():
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(lanes.pool.workers[number % 2].process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    seeds = [*SEEDS, 5]
    try:
        player = Player(lanes)
        played = player.play(seeds, 120, lambda number: number % 20 == 5 and due.release())
    finally:
        over.set()
        due.release()
        thread.join()
    told = [info for *_, infos in played[1:] for info in infos if info == DIED]
    assert len(told) == lanes.stats.lanes_ended > 0


# A new process's sockets may be left to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(
    "number", first_of([100, 400, 1000, 200, 300, 500, 600, 700, 800, 1300, 1600], 3)
)
def test_ctrl_c_at_any_moment_of_a_replacement(make_lanes: MakeLanes, number: int) -> None:
    lanes = make_lanes("CartPole-v1", 4)
    player = Player(lanes)
    player.play(SEEDS[:4], 5)
    _kill(lanes)
    moment = Moment(number)
    with moment.strikes():
        player.step()
    expected = content(Player(lanes_from("CartPole-v1", 4)).play(SEEDS[:4], 12))
    assert content(Player(lanes).play(SEEDS[:4], 12)) == expected
    # The interrupt may come between the reports of the two lanes.
    assert lanes.stats.lanes_ended in ((0, 1, 2) if moment.where else (2,))


def test_a_step_that_always_kills_ends_the_episodes(make_lanes: MakeLanes, tmp_path: Path) -> None:
    lanes = make_lanes(_mortal_with_states(tmp_path), 4, 2)
    player = Player(lanes)
    player.play(SEEDS[:4], 5)
    (tmp_path / "step").write_text("always")
    player.step()
    assert player.truncated.tolist() == [False, False, True, True]
    assert lanes.stats.lanes_ended == 2
    deaths = lanes.stats.deaths
    assert deaths == 1
    (tmp_path / "step").unlink()
    player.step()
    assert not player.truncated.any()
    player.step()
    assert lanes.stats.deaths == deaths


def test_a_lane_that_was_not_stepped_reports_later(make_lanes: MakeLanes, tmp_path: Path) -> None:
    lanes = make_lanes(_mortal(tmp_path), 4, 2)
    for mode in ("step", "step_next", "step_same"):
        player = Player(lanes, mode)
        player.play(SEEDS[:4], 2)
        before = player.obs["place"].copy()
        ended = lanes.stats.lanes_ended
        _kill(lanes)
        # Lane 2 begins a new episode anyway; lane 3 has lost its own.
        lanes.reset(player.obs, [2], seeds=[5])
        twin = Nested()
        twin.reset(seed=5)
        assert player.obs["place"][2].tobytes() == twin.place.tobytes()
        assert player.obs["place"][3].tobytes() == before[3].tobytes()
        *_, truncated, finals, infos = player.step()
        assert lanes.stats.lanes_ended == ended + 1
        assert truncated.tolist() == [False, False, False, True]
        if mode == "step_same":
            assert finals[3][1] == DIED
            assert finals[3][0]["place"].tobytes() == before[3].tobytes()
            assert player.obs["cargo"][0][3] == 0
        else:
            assert infos[3] == DIED
            assert player.obs["place"][3].tobytes() == before[3].tobytes()


def test_what_cannot_be_repeated_raises(make_lanes: MakeLanes, tmp_path: Path) -> None:
    lanes = make_lanes(_mortal_with_states(tmp_path), 4, 2)
    player = Player(lanes)
    player.play(SEEDS[:4], 2)
    (tmp_path / "look").write_text("once")
    with pytest.raises(WorkerDiedError, match=r"lanes \[2, 3\]"):
        lanes.call("look")
    for ask in (lanes.get_states, lambda: lanes.call("look")):
        with pytest.raises(WorkerDiedError, match=r"lanes \[2, 3\]"):
            ask()
    assert lanes.call("look", lanes=[0, 1]) == [7] * 2
    states = lanes.get_states([0, 1])
    lanes.set_states(states[0], [2])
    assert lanes.get_states([2]).tobytes() == states[:1].tobytes()
    player.step()
    assert player.truncated.tolist() == [False, False, False, True]
    with pytest.raises(WorkerDiedError, match=r"lanes \[3\]"):
        lanes.get_states()  # the end is reported, but its state is lost
    _kill(lanes)
    with pytest.raises(WorkerDiedError, match=r"lanes \[2\]"):
        lanes.get_states([2])
    player.step()
    # Lane 3 was to be reset, so it had no episode to lose.
    assert player.truncated.tolist() == [False, False, True, False]
    assert lanes.stats.lanes_ended == 2


def test_a_process_that_hangs_is_replaced(
    make_lanes: MakeLanes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lanes = make_lanes(_mortal(tmp_path), 4, 2, timeout=5.0)
    player = Player(lanes)
    player.play(SEEDS[:4], 2)
    (tmp_path / "step").write_text("sleep")
    player.step()
    assert player.truncated.tolist() == [False, False, True, True]
    assert (lanes.stats.timeouts, lanes.stats.deaths) == (1, 1)
    assert "has not replied within timeout=5 seconds" in caplog.text
    assert _deaths_logged(caplog) == 1
    player.step()
    assert not player.truncated.any()


def test_processes_that_cannot_start_are_an_error(make_lanes: MakeLanes, tmp_path: Path) -> None:
    owner = os.getpid()

    def dies_elsewhere() -> Any:
        if os.getpid() != owner and (tmp_path / "start").exists():
            os._exit(3)
        return Nested()

    lanes = make_lanes(dies_elsewhere, 4, 2)
    player = Player(lanes)
    player.play(SEEDS[:4], 2)
    (tmp_path / "start").touch()
    with pytest.raises(WorkerStartError, match="died .* times in a row"):
        ProcessLanes(dies_elsewhere, 2)
    _kill(lanes)
    with pytest.raises(WorkerStartError, match="died .* times in a row"):
        player.step()
    (tmp_path / "start").unlink()
    player.step()
    assert player.truncated.tolist() == [False, False, True, True]


@pytest.fixture
def pool() -> Iterator[LanesPool]:
    worker = LanesWorker(ExternalProcess(HostedObject), 0, 0, 1)
    pool = LanesPool([worker], timeout=60.0, start_timeout=60.0, stats=LaneStats())
    pool.wait_ready()
    yield pool
    pool.close(0.0)


def _look_until(pool: LanesPool, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        pool.look(0.1)


def _raise_the_same(hosted: HostedObject) -> None:
    raise WorkerDiedError("a worker of my own", 1, -9)


def test_a_death_in_a_task_is_not_replaced_before_the_task_is_collected(pool: LanesPool) -> None:
    (worker,) = pool.workers
    pid = worker.process.pid
    worker.start_task(lambda hosted: os._exit(3))
    _look_until(pool, lambda: worker.died)
    pool.look()
    assert worker.task is not None and isinstance(worker.task.exception(), WorkerDiedError)
    assert worker.process.pid == pid
    pool.replace_dead(worker)
    assert worker.task is None
    pool.wait_ready()
    worker.start_task(_raise_the_same)
    _look_until(pool, worker.task.done)
    assert not worker.died and pool._stats.deaths == 1


def test_a_task_whose_sending_was_interrupted(
    pool: LanesPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = pool.workers
    pid = worker.process.pid

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(worker.process, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.start_task(HostedObject.pid)
    assert not worker.free
    _look_until(pool, lambda: worker.free)
    assert worker.process.pid != pid

"""Batches on a real Ray cluster of several nodes: results stay the same if any part dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from backends import add_node
from cluster_traps import (
    Harms,
    Pause,
    die_elsewhere,
    differ_elsewhere,
    fail_elsewhere,
    kill_actor,
)
from comparing import assert_same, content, reached, row
from hosted import run_script
from playground import CounterEnv, Trap, kill_itself, refuse
from suite import needs
from usual import first_of

import plangym_like
from plangym_like import RayEnv
from plangym_like.errors import (
    ClosedError,
    InputError,
    PoisonInputError,
    RemoteTraceback,
    StateMismatchError,
    StepTimeoutError,
    WorkerStartError,
)

ray = pytest.importorskip("ray", reason="Ray is not installed")


# A worker on this machine and one on another; nothing is stepped in this process or claimed.
BOTH: dict[str, Any] = {"n_workers": 2, "isolate": True, "resources": {"num_cpus": 0}}
# One worker, on another machine.
ELSEWHERE: dict[str, Any] = {
    "n_workers": 1,
    "isolate": True,
    "resources": {"num_cpus": 0, "elsewhere": 0.001},
}


@pytest.fixture(autouse=True)
def _actors_have_their_share_of_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little it takes: what is tested is the way there, not whether it pays."""
    monkeypatch.setattr("plangym_like.cluster.ray_executor.LEAST_SECONDS", 0.0)


def make(name: Any, **options: Any) -> Any:
    env = plangym_like.make(name, ray=True, **{**BOTH, **options})
    env.wait_ready(60)
    return env


def counters(trap: Any = None, **options: Any) -> RayEnv:
    env = RayEnv(CounterEnv, "counter", trap=trap, **{**BOTH, **options})
    env.wait_ready(60)
    return env


@pytest.fixture(scope="module")
def calm(cluster: Any) -> Iterator[RayEnv]:
    """An environment on two nodes to which nothing happens."""
    with counters() as env:
        yield env


@pytest.fixture(scope="module")
def remote(cluster: Any) -> Iterator[RayEnv]:
    """The same, all of whose rows are stepped on another node."""
    with counters(**ELSEWHERE) as env:
        yield env


@pytest.fixture(scope="module")
def plain() -> CounterEnv:
    return CounterEnv("counter")


@pytest.fixture(scope="module")
def breakout(cluster: Any) -> Iterator[RayEnv]:
    """A game with large observations, on two nodes."""
    with make("ALE/Breakout-v5") as env:
        yield env


def test_results_are_the_serial_ones(breakout: RayEnv) -> None:
    serial = plangym_like.make("ALE/Breakout-v5")
    states = reached(serial, 40, every=2)
    rng = np.random.default_rng(1)
    actions = rng.integers(0, serial.action_space.n, 40)
    dt, seeds = rng.integers(1, 4, 40), rng.integers(0, 99, 40)
    plans = rng.integers(0, serial.action_space.n, (40, 3))
    calls: list[Any] = [
        lambda env: env.step_batch(actions, states),
        lambda env: env.step_batch(actions, states[3], dt, seeds=seeds),
        lambda env: env.step_batch(actions, states, dt, return_state=False),
        lambda env: env.step_batch(1, states[::-1]),
        lambda env: env.step_batch(actions),
        lambda env: env.step_batch([], states[:0]),
        lambda env: env.rollout_batch(plans, states),
        lambda env: env.rollout_batch(plans, states[7], 2, return_observations=True),
        lambda env: env.step_batch(actions[:1], states[:1]),
    ]
    for one in (breakout, serial):
        one.reset(seed=5)
    for number, call in enumerate(calls):
        assert_same(call(breakout), call(serial), f"call {number}")
    assert breakout.stats.rows_sent >= 40 * 7
    assert (breakout.stats.actors, breakout.stats.nodes) == (1, 2)
    assert len(calls) < breakout.stats.chunks
    assert breakout.stats.bytes_received > 100 * serial.observation_space.sample().nbytes
    assert breakout.stats.seconds_on_workers > 0


def test_a_state_for_all_rows_is_sent_once(remote: RayEnv, plain: CounterEnv) -> None:
    state = plain.reset(seed=2).state
    before = remote.stats.bytes_sent
    assert_same(remote.step_batch(range(500), state), plain.step_batch(range(500), state))
    actions_nbytes = 500 * 8
    assert remote.stats.bytes_sent - before == actions_nbytes + state.nbytes


def test_rows_of_this_machine_are_not_sent(calm: RayEnv, plain: CounterEnv) -> None:
    before = calm.stats.bytes_sent
    calm.step_batch(range(4000), [plain.reset(seed=2).state] * 4000)
    sent = calm.stats.bytes_sent - before
    assert 0 < sent < 4000 * (plain.state_nbytes + 8)


def test_one_machine_needs_no_actor(cluster: Any, plain: CounterEnv) -> None:
    state = plain.reset(seed=2).state
    with counters(n_workers=1) as env:
        assert_same(env.step_batch(range(300), state), plain.step_batch(range(300), state))
        assert (env.stats.actors, env.stats.chunks, env.batch_env.n_workers) == (0, 0, 1)


@pytest.mark.full
def test_batches_may_be_submitted_before_there_is_any_process(
    cluster: Any, plain: CounterEnv
) -> None:
    nowhere = {"num_cpus": 0, "nowhere": 1}
    state = plain.reset(seed=2).state
    with RayEnv(CounterEnv, "counter", **{**ELSEWHERE, "resources": nowhere}) as env:
        assert env.batch_env.n_workers == 0
        future = env.step_batch(range(64), state, blocking=False)
        assert not future.done()
    with pytest.raises(ClosedError):
        future.result(10)


def test_exceptions_arrive_as_what_they_were(cluster: Any, plain: CounterEnv) -> None:
    state = plain.reset(seed=0).state
    with counters(Trap(refuse, [77, 150, 190])) as env:
        with pytest.raises(ArithmeticError, match="action 77 is refused") as caught:
            env.step_batch(range(200), state)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in row 77 of a batch of 200" in caught.value.__notes__[0]
        assert_same(env.step_batch(range(70), state), plain.step_batch(range(70), state))
        assert env.stats.actors_lost == env.stats.deaths == 0


def test_masked_rows(cluster: Any, plain: CounterEnv) -> None:
    state = plain.reset(seed=0).state
    bad = {0: ArithmeticError, 33: StepTimeoutError, 61: PoisonInputError, 90: ArithmeticError}
    with counters(Harms(), step_timeout=0.5, **ELSEWHERE) as env:
        result = env.step_batch(range(100), state, on_error="mask")
        assert np.flatnonzero(result.infos.failed).tolist() == [*bad]
        for index, error in result.infos.errors.items():
            assert isinstance(error, bad[index])
        assert result.infos.errors[33].indices == (33,)
        assert result.infos.errors[61].index == 61
        assert result.infos.errors[90].__notes__ == ["(in row 90 of a batch of 100)"]
        expected = plain.step_batch(range(100), state)
        for index in np.flatnonzero(~result.infos.failed):
            assert_same(row(result, index), row(expected, index))


@pytest.mark.full
def test_a_worker_killed_in_an_actor(
    cluster: Any, plain: CounterEnv, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = plain.reset(seed=0).state
    with counters(Trap(kill_itself, [5, 70, 71], tmp_path), **ELSEWHERE) as env:
        assert_same(env.step_batch(range(90), state), plain.step_batch(range(90), state))
        assert env.stats.deaths == 3
        assert env.stats.actors_lost == 0
    assert "died and were replaced" in caplog.text


def test_killed_actors_are_replaced(
    cluster: Any, plain: CounterEnv, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = plain.reset(seed=0).state
    with counters(Trap(kill_actor, [10, 90], tmp_path), **ELSEWHERE) as env:
        assert_same(env.step_batch(range(100), state), plain.step_batch(range(100), state))
        assert env.stats.actors_lost == 2
        assert env.stats.nodes_lost == 0
        assert env.stats.rows_retried > 0
        env.wait_ready(60)
        assert env.stats.actors == 1
    assert "its rows run elsewhere" in caplog.text


@pytest.mark.parametrize("here", first_of([False, True]), ids=["elsewhere", "here_too"])
def test_nodes_go_and_come_within_20000_transitions(cluster: Any, here: bool) -> None:
    """One of three nodes is lost in the middle of a batch, and later another one joins."""
    batches, count = 40, 500
    game = "CartPole-v1"
    serial = plangym_like.make(game)
    states = np.repeat(serial.reset(seed=0).state[None], count, axis=0)
    rng = np.random.default_rng(0)
    where = {} if here else {"resources": ELSEWHERE["resources"]}
    more = {} if here else {"resources": {"elsewhere": 1}}
    leaving = add_node(cluster, **more)
    with make(game, n_workers=None, **where) as env:
        assert (env.stats.nodes, env.stats.actors, env.batch_env.n_workers) == (3, 2, 2 + here)
        for number in range(batches):
            actions, dt = rng.integers(0, 2, count), rng.integers(1, 4, count)
            if number == batches // 3:
                future = env.step_batch(actions, states, dt, blocking=False)
                cluster.remove_node(leaving, allow_graceful=False)
                result = future()
            elif number == batches // 2:
                joining = add_node(cluster, **more)
                env.wait_ready(60)
                result = env.step_batch(actions, states, dt)
            else:
                result = env.step_batch(actions, states, dt)
            expected = serial.step_batch(actions, states, dt)
            assert content(tuple(result)) == content(tuple(expected)), f"batch {number}"
            states = result.states
        stats = env.stats
        assert stats.rows == batches * count
        sent = batches * count + stats.rows_retried
        # Rows that an actor takes over from a worker here were handed to both.
        assert stats.rows_sent >= sent if here else stats.rows_sent == sent
        assert (stats.nodes_lost, stats.nodes_joined, stats.actors_lost) == (1, 1, 1)
        assert joining.node_id in {actor.site.node for actor in env.batch_env.actors.handles}
    cluster.remove_node(joining)


@pytest.mark.full
def test_places_are_where_their_resources_are(cluster: Any) -> None:
    node = add_node(cluster, resources={"simulator": 2})
    try:
        with counters(n_workers=None, resources={"num_cpus": 0, "simulator": 1}) as env:
            assert [each.site.node for each in env.batch_env.actors.handles] == [node.node_id]
            assert not env.batch_env.workers
            assert env.step_batch(range(9), env.reset(seed=0).state).rewards.shape == (9,)
    finally:
        cluster.remove_node(node)


def test_placement_groups(cluster: Any, plain: CounterEnv) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="SPREAD")
    try:
        with counters(n_workers=None, placement=group, resources=None) as env:
            # The workers of the bundle on this machine need no actor.
            assert (env.stats.actors, env.batch_env.n_workers) == (1, 2)
            state = plain.reset(seed=0).state
            assert_same(env.step_batch(range(50), state), plain.step_batch(range(50), state))
    finally:
        remove_placement_group(group)


@pytest.mark.full
@pytest.mark.parametrize(
    ("harm", "error", "match"),
    [
        (fail_elsewhere, ArithmeticError, "not on this machine"),
        (die_elsewhere, WorkerStartError, "died 5 times in a row before"),
        (differ_elsewhere, StateMismatchError, "another machine"),
    ],
)
def test_an_environment_that_an_actor_cannot_make(
    cluster: Any, harm: Any, error: type[Exception], match: str
) -> None:
    env = RayEnv(partial(harm, os.getpid()), "counter", **ELSEWHERE)
    with env, pytest.raises(error, match=match):
        env.wait_ready(100)


@pytest.mark.full
def test_a_cluster_without_room_is_reported(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plangym_like.cluster.actors._PATIENCE_SECONDS", 0.0)
    env = RayEnv(CounterEnv, "counter", **{**ELSEWHERE, "resources": {"nowhere": 1}})
    with env, pytest.raises(WorkerStartError, match="no actor could be started.*nowhere"):
        env.wait_ready(100)


@pytest.mark.parametrize(
    "wrong",
    [{"n_workers": 0}, {"placement": "near"}, {"resources": 3}],
    ids=str,
)
def test_options_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        RayEnv(CounterEnv, "counter", **wrong)


def test_interrupts_leave_a_usable_environment(cluster: Any, plain: CounterEnv) -> None:
    state = plain.reset(seed=0).state
    with counters(Pause(0.01)) as env:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            env.step_batch([7] * 50_000, state)  # minutes
        assert time.monotonic() - begun < 100
        timer.join()
        assert_same(env.step_batch(range(20), state), plain.step_batch(range(20), state))


def test_close_is_bounded_and_final(cluster: Any, plain: CounterEnv) -> None:
    state = plain.reset(seed=0).state
    env = counters(Pause(0.2))
    kept = env.step_batch(range(2), state)
    pids = [actor.pid for actor in env.batch_env.actors.handles]
    workers = [child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)]
    workers += [worker.process.pid for worker in env.batch_env.workers]
    future = env.step_batch([7] * 5000, state, blocking=False)  # minutes
    begun = time.monotonic()
    env.close()
    env.close()
    assert time.monotonic() - begun < 100
    with pytest.raises(ClosedError):
        future()
    with pytest.raises(ClosedError):
        env.step_batch(range(2), state)
    assert_same(kept, plain.step_batch(range(2), state))
    until = time.monotonic() + 100
    while any(map(psutil.pid_exists, pids + workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids + workers))
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2


def test_clones_and_names(calm: RayEnv) -> None:
    with calm.clone(n_workers=1) as other:
        assert_same(other.get_state(), calm.get_state())
        assert repr(other) == "RayEnv('counter', n_workers=1)"
    with pytest.raises(AttributeError, match="no_such_thing"):
        calm.no_such_thing  # noqa: B018


STARTING = """
import psutil
import numpy as np
import plangym_like

class Mine(plangym_like.ClassicControlEnv):
    pass

options = {"n_workers": 2, "isolate": True, "audit": "off", "object_store_memory": 10**8}
env = plangym_like.RayEnv(Mine, "CartPole-v1", **options)
state, _, _ = env.reset(seed=0)
actions = np.arange(300) % 2
same = plangym_like.make("CartPole-v1").step_batch(actions, state)
assert np.array_equal(env.step_batch(actions, state).states, same.states)
assert (env.stats.rows, env.stats.actors) == (300, 0)
assert env.stats.rows_sent >= 300
env.close()
import time
until = time.monotonic() + 100
while time.monotonic() < until:
    children = psutil.Process().children(recursive=True)
    left = [" ".join(child.cmdline()) for child in children]
    if all("fork_server_main" in line for line in left):
        break
    time.sleep(0.1)
else:
    raise AssertionError(left)
"""


# Ray 2.48 warns of its own open files, and leaves a zombie behind.
@pytest.mark.full
@needs("ray", "2.60")
def test_an_unguarded_script_starts_its_own_ray_in_silence(tmp_path: Path) -> None:
    for name in ("RAY_ADDRESS",):
        assert name not in os.environ
    done = run_script(STARTING, path=tmp_path / "script.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

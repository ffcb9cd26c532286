"""`send` and `recv`: environments need not wait for each other; their episodes stay the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector.utils import concatenate, create_empty_array
from hosted import wait_until_gone
from interrupting import AlarmError, Moment
from small_envs import Fuse, Nested, Teller
from test_make_vec import same
from usual import first_of

from plangym_like.errors import ActionError, ClosedError, InputError
from plangym_like.vector.process_lanes import ProcessLanes

WORKERS = pytest.mark.parametrize("n_workers", first_of([2, None, 1, 3], 2))
MODES = pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
SEED = 7
pytestmark = pytest.mark.usefixtures("always_in_processes")


class Gated(gymnasium.Env):
    """Waits in a step until a file does not exist; other episodes draw other numbers."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, gate: Path | None = None) -> None:
        self.gate = gate

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.array(self.np_random.uniform()), {"begun": True}

    def step(self, action: Any) -> Any:
        while self.gate is not None and self.gate.exists():
            time.sleep(0.01)
        value = self.np_random.uniform()
        return np.array(value), float(action), value > 0.9, False, {"drawn": value}


class Interrupted(Fuse):
    """Raises what Ctrl-C does instead, once it is armed."""

    armed = False

    def step(self, action: Any) -> Any:
        if action == 3 and self.armed:
            raise KeyboardInterrupt
        return super().step(action)


def _action(envs: Any, env: int, number: int) -> Any:
    """Return the action of step `number` of an environment, whoever asks."""
    space = envs.single_action_space
    space.seed(1000 * env + number)
    return space.sample()


def _actions(envs: Any, pairs: list[tuple[int, int]]) -> Any:
    actions = [_action(envs, *pair) for pair in pairs]
    space = envs.single_action_space
    return concatenate(space, actions, create_empty_array(space, len(actions)))


def _rows(envs: Any, results: Any) -> list[Any]:
    """Return the results of a batch, one entry for each environment."""
    obs, rewards, terminated, truncated, infos = results
    ids = infos.pop("env_id", np.arange(envs.num_envs))
    rows = []
    for place in range(len(ids)):
        flags = bool(terminated[place]), bool(truncated[place])
        own = _info(infos, place)
        rows.append((_row(envs, obs, place), float(rewards[place]), flags, own))
    return rows


def _info(infos: dict[str, Any], place: int) -> dict[str, Any]:
    """Return the info of one environment; that of an episode that has ended is inside it."""
    return {
        name: _info(values, place) if isinstance(values, dict) else values[place]
        for name, values in infos.items()
        if not name.startswith("_") and infos[f"_{name}"][place]
    }


def _row(envs: Any, obs: Any, place: int) -> Any:
    if isinstance(obs, dict):
        return {key: _row(envs, value, place) for key, value in obs.items()}
    if isinstance(obs, tuple) and not isinstance(obs[0], str):
        return tuple(_row(envs, value, place) for value in obs)
    return obs[place]


def _play(envs: Any, least: int, *, after: Callable[[int], Any] = lambda _: None) -> list[Any]:
    """Step until each environment has `least` results; return those of each."""
    envs.async_reset(seed=SEED)
    history: list[list[Any]] = [[] for _ in range(envs.num_envs)]
    batches = 0
    while min(map(len, history)) < least:
        results = envs.recv()
        ids = results[4]["env_id"].tolist()
        assert len(set(ids)) == len(ids) == envs.batch_size
        for env, row in zip(ids, _rows(envs, results), strict=True):
            history[env].append(row)
        envs.send(_actions(envs, [(env, len(history[env])) for env in ids]), ids)
        batches += 1
        after(batches)
    return history


def _expected(envs: Any, history: list[Any]) -> list[Any]:
    """Return what `step` of synchronous environments gives for as many steps."""
    obs, infos = envs.reset(seed=SEED)
    none = np.zeros(envs.num_envs)
    rows = [[row] for row in _rows(envs, (obs, none, none, none, infos))]
    for number in range(1, max(map(len, history))):
        actions = _actions(envs, [(env, number) for env in range(envs.num_envs)])
        for own, row in zip(rows, _rows(envs, envs.step(actions)), strict=True):
            own.append(row)
    return [own[: len(theirs)] for own, theirs in zip(rows, history, strict=True)]


@MODES
@WORKERS
@pytest.mark.parametrize(("source", "batch_size"), first_of([("CartPole-v1", 2), ("Hopper-v5", 5)]))
def test_episodes_are_those_of_step(
    make: Callable[..., Any], source: str, batch_size: int, mode: str, n_workers: int | None
) -> None:
    if source == "Hopper-v5":
        pytest.importorskip("mujoco")
    envs = make(source, 5, n_workers, batch_size=batch_size, autoreset_mode=mode)
    assert isinstance(envs._lanes, ProcessLanes) == ((n_workers or 1) > 1)
    history = _play(envs, 40)
    assert same(history, _expected(make(source, 5, autoreset_mode=mode), history))
    assert any(any(row[2]) for own in history for row in own)


@pytest.mark.parametrize("n_workers", first_of([2, None]))
@pytest.mark.parametrize(
    ("source", "mode"), [(Nested, "NextStep"), (Teller, "SameStep"), (Gated, "SameStep")]
)
def test_spaces_and_infos_of_all_kinds(
    make: Callable[..., Any], source: Any, mode: str, n_workers: int | None
) -> None:
    envs = make(source, 4, n_workers, batch_size=2, autoreset_mode=mode)
    history = _play(envs, 15)
    assert same(history, _expected(make(source, 4, autoreset_mode=mode), history))


class Listener(gymnasium.Env):
    """Observes the sum of its action, a stack of numbers."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (), np.float64)
    action_space = gymnasium.spaces.Sequence(gymnasium.spaces.Box(0, 9, (1,)), stack=True)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(()), {}

    def step(self, action: Any) -> Any:
        return np.array(np.sum(action), np.float64), 0.0, False, False, {}


def test_actions_that_are_objects_may_be_changed_once_they_are_sent(
    make: Callable[..., Any],
) -> None:
    envs = make(Listener, 2, batch_size=2)
    envs.async_reset()
    envs.recv()
    action = np.ones((3, 1), np.float32)
    envs.send((action, action))
    action[:] = 9
    assert envs.recv()[0].tolist() == [3, 3]


def test_the_first_that_are_ready_are_received(make: Callable[..., Any], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    envs = make([Gated, Gated, partial(Gated, gate)], None, 3, batch_size=2)
    twins = make([Gated] * 3)
    envs.async_reset(seed=SEED)
    first = [envs.recv()[4]["env_id"].tolist()]
    assert first == [[0, 1]]
    envs.send([0, 0], [0, 1])
    assert sorted(envs.recv()[4]["env_id"].tolist())[-1] == 2
    envs.reset(seed=SEED)
    twins.reset(seed=SEED)
    gate.touch()
    envs.send([0, 1, 2])
    expected = [twins.step([0, 1, 2])]
    for _ in range(5):
        obs, rewards, *_, infos = envs.recv()
        ids = infos["env_id"].tolist()
        assert sorted(ids) == [0, 1]
        assert same(obs, expected[-1][0][ids]) and same(rewards, expected[-1][1][ids])
        envs.send(np.array([0, 1])[ids], ids)
        expected.append(twins.step([0, 1, 0]))
    gate.unlink()
    received: set[int] = set()
    while 2 not in received:
        obs, rewards, *_, infos = envs.recv()
        ids = infos["env_id"].tolist()
        received.update(ids)
        if 2 in ids:
            assert obs[ids.index(2)] == expected[0][0][2] and rewards[ids.index(2)] == 2.0
        envs.send([0, 0], ids)


@pytest.mark.parametrize(("how", "mode"), [("between", "NextStep"), ("in", "SameStep")])
def test_a_process_that_dies(make: Callable[..., Any], mode: str, how: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    source = "CartPole-v1" if how == "between" else partial(_gated_with_states, gate)
    envs = make(source, 4, 2, batch_size=2, autoreset_mode=mode)
    pids = list(envs.pids)

    def kill(batches: int) -> None:
        if batches == 4:
            if how == "in":
                envs.get_states()  # everything is done
                gate.touch()
                _receive_all(envs)
                envs.send([1] * 4)
            os.kill(*pids, signal.SIGKILL)
            assert wait_until_gone(pids[0], 100)
            gate.unlink(missing_ok=True)

    if how == "between":
        history = _play(envs, 15, after=kill)
    else:
        envs.async_reset(seed=SEED)
        kill(4)
        results = [envs.recv() for _ in range(2)]
        ids = np.concatenate([each[4]["env_id"] for each in results])
        truncated = np.concatenate([each[3] for each in results])
        assert sorted(ids[truncated].tolist()) == [2, 3]
        for each in results:
            if each[3].any():
                assert each[4]["worker_died"][each[3]].all()
                assert ("final_info" in each[4]) == (mode == "SameStep")
        history = []
    stats = envs.stats
    assert (stats.deaths, stats.lanes_ended) == (1, 2)
    for own in history[2:]:
        died = [row for row in own if row[2][1]]
        assert len(died) == 1 and died[0][1] == 0.0
        assert died[0][3]["worker_died"]


def _receive_all(envs: Any) -> None:
    while envs._queue.pending.any():
        envs.recv()


def _gated_with_states(gate: Path) -> Any:
    import plangym_like

    return plangym_like.make(partial(Gated, gate), remove_time_limit=False)


def test_a_process_that_hangs(make: Callable[..., Any], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    envs = make([Gated, Gated, partial(Gated, gate), Gated], None, 2, batch_size=2, timeout=5.0)
    envs.async_reset(seed=SEED)
    _receive_all(envs)
    gate.touch()
    envs.send([1, 1, 1, 1])
    received: dict[int, Any] = {}
    for _ in range(2):
        results = envs.recv()
        for place, env in enumerate(results[4]["env_id"].tolist()):
            received[env] = bool(results[3][place]), float(results[1][place])
    assert received == {0: (False, 1.0), 1: (False, 1.0), 2: (True, 0.0), 3: (True, 0.0)}
    gate.unlink()
    assert (envs.stats.timeouts, envs.stats.deaths) == (1, 1)
    envs.send([1, 1], [2, 3])
    assert not envs.recv()[3].any()


@WORKERS
def test_an_exception_concerns_those_that_were_stepped_with_it(
    make: Callable[..., Any], n_workers: int | None
) -> None:
    envs = make(Fuse, 4, n_workers, batch_size=4)
    envs.async_reset(seed=SEED)
    envs.recv()
    envs.send([0, 0, 0, 3])
    with pytest.raises(ArithmeticError) as caught:
        envs.recv()
    assert any("lane 3" in note for note in caught.value.__notes__)
    envs.async_reset()
    envs.recv()
    envs.send([1] * 4)
    assert envs.recv()[0].tolist() == [1] * 4
    # Other calls leave it to `recv`.
    envs.send([0, 0, 0, 3])
    assert len(envs.get_attr("load")) == 4
    with pytest.raises(ArithmeticError):
        envs.recv()
    # Those who reset do not wait for a result, and are not told of an error.
    envs.reset()
    envs.send([0, 0, 0, 3])
    assert envs.reset()[0].tolist() == [0] * 4


def test_the_results_of_an_interrupted_step_are_not_taken_for_those_of_later_actions(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make(Interrupted, 4, 2, batch_size=4)
    monkeypatch.setattr(Interrupted, "armed", True)
    envs.reset(seed=SEED)
    with pytest.raises(KeyboardInterrupt):
        envs.step([3, 1, 1, 1])
    loads = []
    for _ in range(4):
        envs.send([2] * 4)
        obs, *_, infos = envs.recv()
        loads.append(obs[np.argsort(infos["env_id"])])
    # The other process has done the interrupted step, with the old actions or the new ones.
    assert loads[0][:2].tolist() == [2, 2] and (loads[0][2:] > 2).all()
    assert (np.diff(loads, axis=0) == 2).all()


@pytest.mark.parametrize("error", first_of([AlarmError, KeyboardInterrupt]))
@pytest.mark.parametrize("n_workers", [None, 2])
def test_a_signal_handler_at_any_moment_leaves_no_environment_pending(
    make: Callable[..., Any], n_workers: int | None, error: type[BaseException]
) -> None:
    envs = make("CartPole-v1", 4, n_workers, batch_size=2, vectorise=False)
    twins = make("CartPole-v1", 4)
    for number in range(1, 400, 31):
        envs.async_reset(seed=SEED)
        _receive_all(envs)
        moment = Moment(number)
        with moment.strikes(error):
            envs.send([1] * 4)
            envs.recv()
            envs.recv()
        if envs._queue is not None:
            _receive_all(envs)
        assert same(envs.reset(seed=SEED)[0], twins.reset(seed=SEED)[0])
        for _ in range(2):
            assert same(envs.step([1] * 4)[:4], twins.step([1] * 4)[:4])
        if moment.where is None:
            break
    assert number > 50


@WORKERS
def test_other_calls_wait_for_what_was_sent(
    make: Callable[..., Any], n_workers: int | None
) -> None:
    envs = make("CartPole-v1", 4, n_workers, batch_size=3)
    twins = make("CartPole-v1", 4)
    envs.async_reset(seed=SEED)
    twins.reset(seed=SEED)
    with pytest.raises(InputError, match=r"environments \[0, 1, 2, 3\] have not been received"):
        envs.step([0] * 4)
    envs.recv()
    with pytest.raises(InputError, match="only 1 have"):
        envs.recv()
    with pytest.raises(InputError, match=r"environments \[3\] have not been received"):
        envs.send([0, 1], [0, 3])
    envs.send([0, 1, 1], [0, 1, 2])
    expected = twins.step([0, 1, 1, 0])
    assert same(envs.get_states([0, 1, 2]), twins.get_states([0, 1, 2]))
    envs.set_attr("gravity", [5.0] * 4)
    assert envs.get_attr("gravity") == (5.0,) * 4
    obs, *_, infos = envs.recv()
    assert infos["env_id"][0] == 3 and same(obs[1:], expected[0][infos["env_id"][1:]])
    assert envs.reset(seed=SEED)[0].tobytes() == twins.reset(seed=SEED)[0].tobytes()
    twins.set_attr("gravity", [5.0] * 4)
    # Nothing is pending now: both ways of stepping are possible.
    assert same(envs.step([0] * 4)[:4], twins.step([0] * 4)[:4])
    envs.send([1] * 4)
    expected = twins.step([1] * 4)
    obs, *_, infos = envs.recv()
    assert same(obs, expected[0][infos["env_id"]])


def test_states_are_not_set_before_results_are_received(make: Callable[..., Any]) -> None:
    envs = make("CartPole-v1", 4, batch_size=2)
    envs.async_reset(seed=SEED)
    ids = envs.recv()[-1]["env_id"]
    states = envs.get_states()
    for indices, words in ((None, r"\[2, 3\]"), ([0, 3], r"\[3\]"), (np.arange(4) == 2, r"\[2\]")):
        with pytest.raises(InputError, match=f"environments {words} have not been received"):
            envs.set_states(states[0], indices)
    envs.set_states(states[[2, 3]], ids)
    assert np.array_equal(envs.get_states(ids), states[[2, 3]])
    assert envs.recv()[-1]["env_id"].tolist() == [2, 3]


def test_mistakes(make: Callable[..., Any]) -> None:
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="batch_size"):
            make("CartPole-v1", 4, batch_size=wrong)
    with pytest.raises(InputError, match="at most the number of environments, 4, got 5"):
        make("CartPole-v1", 4, batch_size=5)
    with pytest.raises(InputError, match="Disabled"):
        make("CartPole-v1", 4, batch_size=2, autoreset_mode="Disabled")
    envs = make("CartPole-v1", 4, batch_size=2)
    for call in (envs.recv, partial(envs.send, [0] * 4)):
        with pytest.raises(ResetNeeded):
            call()
    with pytest.raises(InputError, match="reset_mask"):
        envs.async_reset(options={"reset_mask": np.ones(4, bool)})
    envs.async_reset(seed=0)
    _receive_all(envs)
    with pytest.raises(InputError, match="2 environments, got 1"):
        envs.send([0], [0, 1])
    with pytest.raises(InputError, match="must be distinct"):
        envs.send([0, 0], [0, 4])
    envs.send([0, 7], [0, 1])
    with pytest.raises(ActionError):
        envs.recv()
    envs.close()
    for call in (envs.recv, envs.async_reset):
        with pytest.raises(ClosedError):
            call()
    assert not hasattr(make("CartPole-v1", 4), "send")

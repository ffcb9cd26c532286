"""Searches that are stopped, saved and resumed give what they give without a stop."""

from __future__ import annotations

import pickle
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from every_planner import EVERY_PLANNER
from suite import TAXI

import plangym_like
from plangym_like import planners
from plangym_like.errors import InputError, StateFormatError, StateMismatchError
from plangym_like.planners import GoExplore, Plan, Planner, Progress, Search, checkpoint
from plangym_like.planners.nodes import Nodes


class Crash(Exception):
    """Stands for the end of a process."""


def _after(count: int, error: BaseException) -> Any:
    """Return a callback for progress= that raises an error in the call with this number."""
    calls = 0

    def watch(progress: Progress) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            raise error

    return watch


def _assert_same_plans(one: Plan, other: Plan) -> None:
    for name in ("state", "actions", "dt", "rewards", "ended", "seeds"):
        assert_same(getattr(one, name), getattr(other, name))
    assert one.spent.transitions == other.spent.transitions
    assert one.spent.frames == other.spent.frames
    for name in ("transitions", "frames", "score"):
        assert_same(one.curve[name], other.curve[name])
    assert one.info.keys() == other.info.keys()
    for name in one.info.keys() - {"cells"}:
        assert_same(np.asarray(one.info[name]), np.asarray(other.info[name]))
    assert list(one.info.get("cells", [])) == list(other.info.get("cells", []))


@pytest.mark.parametrize("name", EVERY_PLANNER)
def test_a_resumed_search_is_that_without_a_stop(name: str, tmp_path: Path) -> None:
    env_id, maker, _ = EVERY_PLANNER[name]
    path = tmp_path / "search"
    with plangym_like.make(env_id) as env, plangym_like.make(env_id) as other:
        state = env.reset(seed=0)  # a game's info says who moves
        expected = maker(env).plan(state, budget=700, seed=3)
        for count in (1, 4):
            stopped = maker(env)
            part = stopped.plan(state, budget=700, seed=3, progress=_after(count, StopIteration()))
            assert part.spent.transitions < 700
            stopped.save(path)
            _assert_same_plans(Planner.load(path, other).resume(), expected)
        _assert_same_plans(stopped.resume(), expected)
        with pytest.raises(Crash):
            options: Any = {"checkpoint": path, "every": 1e-9, "progress": _after(3, Crash())}
            maker(env).plan(state, budget=700, seed=3, **options)
        _assert_same_plans(Planner.load(path, other).resume(), expected)


def test_a_finished_search_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    with plangym_like.make(TAXI) as env:
        env.reset(seed=0)
        planner = planners.UCT(env)
        first = planner.plan(budget=500, seed=0)
        planner.save(tmp_path / "search")
        for one in (planner, planners.UCT.load(tmp_path / "search", env)):
            more = one.resume(budget=1_500)
            assert 1_000 < more.spent.transitions <= 1_500
            assert more.info["nodes"] > first.info["nodes"]
            assert more.score >= first.score and more.replay(env) == more.score
            assert more.spent.seconds > first.spent.seconds


def _heuristic(obs: Any, infos: Any, states: Any) -> Any:
    return np.zeros(len(states))


def test_functions_are_given_again(tmp_path: Path) -> None:
    path = tmp_path / "search"
    with plangym_like.make(TAXI) as env:
        env.reset(seed=0)
        planner = planners.BestFirst(env, heuristic=_heuristic, key="obs", batch=3)
        expected = planner.plan(budget=600)
        planner.save(path)
        with pytest.raises(
            InputError, match=r"made with heuristic=<function _heuristic.*give heur"
        ):
            Planner.load(path, env)
        loaded = planners.BestFirst.load(path, env, heuristic=_heuristic)
        assert loaded.batch == 3
        _assert_same_plans(loaded.resume(), expected)
        with pytest.raises(InputError, match="holds a search of BestFirst, which is not a UCT"):
            planners.UCT.load(path, env)
    with plangym_like.make("CartPole-v1") as env, pytest.raises(StateMismatchError):
        Planner.load(path, env)


def test_cells_of_the_package_are_saved(tmp_path: Path) -> None:
    dynamic = planners.DynamicScreenCells(every=30, trials=3, sample=30)
    with plangym_like.make("ALE/MsPacman-v5", obs_type="grayscale") as env:
        state = env.reset(seed=0).state
        expected = GoExplore(env, dynamic, batch=8, steps=20).plan(state, budget=100, seed=0)
        planner = GoExplore(env, dynamic, batch=8, steps=20)
        planner.plan(state, budget=100, seed=0, progress=_after(8, StopIteration()))
        planner.save(tmp_path / "search")
        _assert_same_plans(Planner.load(tmp_path / "search", env).resume(), expected)


def test_searches_that_cannot_be_saved(tmp_path: Path) -> None:
    class Forgetful(Planner):
        def _search(self, state: Any, search: Search) -> Plan:
            step = search.step_batch([1], state)
            return search.plan(state, [1], step.rewards, ended=False)

    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        planner = Forgetful(env)
        with pytest.raises(InputError, match="no search to save"):
            planner.save(tmp_path / "search")
        with pytest.raises(InputError, match="no search to resume"):
            planner.resume()
        planner.plan(budget=1)
        for call in (planner.resume, lambda: planner.save(tmp_path / "search")):
            with pytest.raises(InputError, match="cannot be saved or resumed, because it keeps"):
                call()
        with pytest.raises(InputError, match="every must be a number of seconds above 0"):
            planners.UCT(env).plan(budget=900, checkpoint=tmp_path / "search", every=0)
    assert not list(tmp_path.iterdir())


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "search"
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        env.save_states(path, state[None])
        with pytest.raises(
            StateFormatError, match="is not a search: give a file that Planner.save"
        ):
            Planner.load(path, env)
        planner = planners.RandomShooting(env)
        planner.plan(state, budget=900)
        planner.save(path)
        content = path.read_bytes()
        path.write_bytes(content[:-50] + b"x" + content[-49:])
        with pytest.raises(StateFormatError, match="damaged"):
            Planner.load(path, env)


def test_data_of_every_kind(tmp_path: Path) -> None:
    table = Nodes(("reward", float), ("child", np.intp, (2,)), links=("child",))
    table.add([0, 0], reward=[1.0, 2.0])
    rng = np.random.Generator(np.random.Philox(7))
    rng.spawn(3)
    shared = np.arange(6).reshape(2, 3)
    value = {
        "plain": [None, True, 3, -np.inf, "text", b"bytes", (1, 2), {3}, frozenset({4})],
        (1, b"x"): deque([shared, shared], maxlen=4),
        "numbers": [np.float32(0.5), np.int64(-3), np.bool_(True)],
        "things": [table, planners.position_cells],
        "rng": rng,
    }
    with plangym_like.make("CartPole-v1") as env:
        layout = env.layout.format
    checkpoint.save(tmp_path / "file", layout, value)
    loaded = checkpoint.load(tmp_path / "file", layout)
    assert loaded["plain"] == value["plain"] and loaded["things"][1] is planners.position_cells
    one, two = loaded[(1, b"x")]
    assert one is two and loaded[(1, b"x")].maxlen == 4
    assert_same(one, shared)
    assert_same(loaded["numbers"], value["numbers"])
    nodes = loaded["things"][0]
    nodes.add([2], reward=3.0)
    assert nodes["reward"].tolist() == [0.0, 1.0, 2.0, 3.0] and nodes.path(3).tolist() == [2, 3]
    assert_same(loaded["rng"].random(3), rng.random(3))
    assert_same(loaded["rng"].spawn(1)[0].random(3), rng.spawn(1)[0].random(3))


@pytest.mark.parametrize("thing", [np.arange, Path("x"), _heuristic, np.random.RandomState(0)])
def test_a_file_refers_to_nothing_that_is_not_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thing: Any
) -> None:
    with plangym_like.make("CartPole-v1") as env:
        layout = env.layout.format
    assert not checkpoint.can_hold([thing])
    with pytest.raises(InputError, match="a file of a search cannot hold"):
        checkpoint.save(tmp_path / "file", layout, [thing])
    monkeypatch.setattr(checkpoint, "_Pickler", pickle.Pickler)  # as if written by somebody else
    checkpoint.save(tmp_path / "file", layout, [thing])
    with pytest.raises(StateFormatError, match="damaged, or of another version"):
        checkpoint.load(tmp_path / "file", layout)

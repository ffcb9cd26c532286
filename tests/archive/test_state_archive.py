"""`StateArchive`: rows come back bit for bit, with their tree; files that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupting import Moment
from usual import first_of

import plangym_like
from plangym_like import StateArchive
from plangym_like.archive.row_index import RowIndex, hash_rows
from plangym_like.errors import (
    InputError,
    StateError,
    StateFormatError,
    StateMismatchError,
)


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        yield env


def grow(archive: StateArchive, nodes: int, seed: int = 0) -> np.ndarray:
    """Add a random tree, in batches of random sizes, and return its rows."""
    rng, env = np.random.default_rng(seed), archive.env
    rows = [env.reset(seed=seed).state]
    archive.add(rows[0])
    env.action_space.seed(seed)
    while len(rows) < nodes:
        count = min(int(rng.integers(1, 200)), nodes - len(rows))
        parents = rng.integers(max(0, len(rows) - 50), len(rows), count)
        actions = np.array([env.action_space.sample() for _ in range(count)])
        dt = rng.integers(1, 4, count)
        step = env.step_batch(actions, np.stack([rows[parent] for parent in parents]), dt)
        nodes_added = archive.add(step.states, parents, actions, dt, step.rewards)
        assert nodes_added.tolist() == list(range(len(rows), len(rows) + count))
        rows += list(step.states.copy())
    return np.stack(rows)


def same(one: StateArchive, other: StateArchive) -> bool:
    names = ["parents", "actions", "dt", "rewards"]
    every = np.arange(len(one))
    return len(one) == len(other) and bool(
        np.array_equal(one.get(every), other.get(every))
        and all(np.array_equal(one[name], other[name]) for name in names)
        and all(one[name].dtype == other[name].dtype for name in names)
    )


@pytest.mark.parametrize(
    ("name", "kwargs", "spilled"),
    first_of(
        [
            ("ALE/MsPacman-v5", {"obs_type": "ram"}, False),
            ("Pendulum-v1", {}, True),
            ("minigrid:MiniGrid-DoorKey-5x5-v0", {}, True),
        ],
        2,
    ),
)
def test_a_tree_of_real_states(
    name: str, kwargs: dict[str, Any], spilled: bool, tmp_path: Path
) -> None:
    with plangym_like.make(name, **kwargs) as env:
        archive = StateArchive(env, directory=tmp_path if spilled else None)
        rows = grow(archive, 300)
        assert np.array_equal(archive.get(np.arange(300)), rows)
        order = np.random.default_rng(1).permutation(300)
        assert np.array_equal(archive.get(order), rows[order])
        assert all(np.array_equal(archive.get(node), rows[node]) for node in range(0, 300, 37))
        firsts = {row.tobytes(): node for node, row in reversed(list(enumerate(rows)))}
        assert archive.find(rows).tolist() == [firsts[row.tobytes()] for row in rows]
        deepest = max(range(300), key=lambda node: len(archive.path(node)))
        path = archive.path(deepest)
        assert path[0] == 0 and path[-1] == deepest
        assert np.array_equal(archive.parents[path[1:]], path[:-1])
        assert archive.replay(deepest) == pytest.approx(archive.rewards[path].sum())
        archive.save(tmp_path / "archive")
        again = StateArchive.load(tmp_path / "archive", env)
        assert same(archive, again)
        assert again.replay(deepest) == archive.replay(deepest)
        more = env.step_batch([env.action_space.sample()], archive.get([deepest]))
        for each in (archive, again):
            actions = np.zeros_like(archive.actions[0])
            (node,) = each.add(more.states, deepest, actions, rewards=more.rewards)
            assert node == 300 and np.array_equal(each.get(node), more.states[0])
            assert np.array_equal(each.get(np.arange(300)), rows)
        if "ram" in kwargs.values():  # rows of games take little memory
            assert archive.nbytes - archive._blocks._complete.open.nbytes < 200 * 1024
    spilled_bytes = archive._blocks._frames._array.base is not None
    assert spilled_bytes == spilled


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_trees_of_random_bytes(env: Any, data: Any) -> None:
    """Payloads of any kind: equal, sparse, or noise; batches of any size, and empty ones."""
    archive = StateArchive(env, {"visits": int})
    payload = env.state_nbytes - 32
    rows = np.empty((0, env.state_nbytes), np.uint8)
    parents = np.empty(0, np.int64)
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(0, 150))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        new = np.zeros((count, env.state_nbytes), np.uint8)
        new[:, :32] = env.layout.format.header_bytes
        kind = data.draw(st.sampled_from(["equal", "sparse", "noise"]))
        if kind == "sparse" and count:
            new[np.arange(count), 32 + rng.integers(0, payload, count)] = 7
        elif kind == "noise":
            new[:, 32:] = rng.integers(0, 256, (count, payload))
        above = [int(rng.integers(-1, len(rows) + index)) for index in range(count)]
        archive.add(new, np.array(above, np.int64), np.zeros(count, int))
        rows, parents = np.concatenate([rows, new]), np.concatenate([parents, above])
    assert np.array_equal(archive.get(np.arange(len(rows))), rows)
    assert np.array_equal(archive.parents, parents)
    found = archive.find(rows)
    assert np.array_equal(rows[found], rows) and np.all(found <= np.arange(len(rows)))
    if len(rows):
        other = rows[:1].copy()
        other[0, 40:48] ^= 255
        there = (rows == other).all(axis=1)
        assert archive.find(other)[0] == (there.argmax() if there.any() else -1)


def test_columns_of_ones_own(env: Any, tmp_path: Path) -> None:
    archive = StateArchive(env, {"visits": np.int32, "cell": (np.uint8, (2, 3))})
    root = env.get_state()
    archive.add(root)
    cells = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    archive.add(np.stack([root, root]), 0, [0, 1], cell=cells, visits=5)
    archive["visits"][archive.path(2)] += 1
    assert archive["visits"].tolist() == [1, 5, 6]
    assert np.array_equal(archive["cell"][1:], cells) and not archive["cell"][0].any()
    for name in ("parents", "actions", "dt", "rewards"):
        with pytest.raises(ValueError, match="read-only"):
            archive[name][0] = 1
    archive.save(tmp_path / "archive")
    again = StateArchive.load(tmp_path / "archive", env)
    assert np.array_equal(again["cell"], archive["cell"])
    again["visits"][0] = 100
    assert StateArchive.load(tmp_path / "archive", env)["visits"][0] == 1, "the file is unchanged"
    assert archive["visits"].dtype == again["visits"].dtype == np.int32


def test_seeds_of_chance_nodes_are_replayed() -> None:
    with plangym_like.make("FrozenLake-v1", is_slippery=True) as lake:
        archive = StateArchive(lake, {"seeds": np.int64})
        archive.add(lake.reset(seed=0).state)
        for node in range(30):
            seeds = np.arange(8) + 100 * node
            step = lake.step_batch(np.full(8, 2), archive.get(node), seeds=seeds)
            archive.add(step.states, node, np.full(8, 2), rewards=step.rewards, seeds=seeds)
        for node in (7, 100, len(archive) - 1):
            assert archive.replay(node) == archive.rewards[archive.path(node)].sum()
        # A step without a seed, as in the plans of planners with rollouts.
        step = lake.step_batch([2], archive.get(7))
        (last,) = archive.add(step.states, 7, 2, rewards=step.rewards)
        assert archive["seeds"][last] == -1
        assert archive.replay(last) == archive.rewards[archive.path(last)].sum()
        archive["seeds"][:] += 1
        with pytest.raises(StateError, match="does not lead from its parent"):
            for node in range(len(archive)):
                archive.replay(node)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"parents": 3}, InputError, "nodes that were added before"),
        ({"parents": -2}, InputError, "nodes that were added before"),
        ({"parents": [0, 0, 0]}, InputError, r"parents must have shape \(2,\)"),
        ({"parents": 0, "actions": None}, InputError, "need the actions"),
        ({"actions": ["left", "up"]}, InputError, "must be numbers"),
        ({"dt": 0}, InputError, "dt must be a whole number"),
        ({"rewards": [1.0]}, None, ""),
        ({"small": 300}, InputError, "do not fit its dtype uint8"),
        ({"half": [1.0, 1e9]}, InputError, "do not fit its dtype float16"),
        ({"half": [np.inf, 0.1]}, None, ""),
        ({"large": 1}, InputError, "no column 'large'"),
        ({"hashes": 1}, InputError, "no column 'hashes'"),
        ({"states": np.zeros((2, 5), np.uint8)}, StateFormatError, "bytes"),
    ],
)
def test_nodes_that_are_refused(env: Any, given: dict[str, Any], error: Any, words: str) -> None:
    archive = StateArchive(env, {"small": np.uint8, "half": np.float16})
    root = env.get_state()
    archive.add(root)
    arguments = {"states": np.stack([root, root]), "parents": [0, 1], "actions": [0, 1], **given}
    if error is None:
        archive.add(**arguments)
        return
    with pytest.raises(error, match=words):
        archive.add(**arguments)
    assert len(archive) == len(archive.parents) == 1


def test_archives_and_nodes_that_are_refused(env: Any) -> None:
    for name in ("parents", "hashes", "frames", "states", "self", 1):
        with pytest.raises(InputError, match="cannot be called"):
            StateArchive(env, {name: int})
    with pytest.raises(InputError, match="dtype of integers, floats or bools, got object"):
        StateArchive(env, {"cell": object})
    with pytest.raises(InputError, match="level must be"):
        StateArchive(env, level=23)
    archive = StateArchive(env, level=22)
    assert archive.find(env.get_state()).tolist() == [-1]
    assert archive.get([]).shape == (0, env.state_nbytes)
    for node in (0, -1, [0]):
        with pytest.raises(IndexError, match="in an archive of 0"):
            archive.get(node)
    with pytest.raises(InputError, match="a whole number"):
        archive.get(0.5)
    with pytest.raises(KeyError):
        archive["visits"]


def test_a_full_disk_changes_nothing(
    env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = StateArchive(env, directory=tmp_path)
    rows = grow(archive, 100)
    assert list(tmp_path.iterdir()) == [], "its files have no names"

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    many = np.repeat(rows, 100, axis=0)
    with pytest.raises(OSError, match="No space left"):
        archive.add(many)
    monkeypatch.undo()
    assert len(archive) == len(archive.parents) == 100
    archive.add(many)
    assert np.array_equal(archive.get(np.arange(100, len(archive))), many)


def test_different_rows_with_one_hash_are_not_confused(
    env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = StateArchive(env)
    module = "plangym_like.archive.state_archive.hash_rows"
    monkeypatch.setattr(module, lambda rows, _: np.zeros(len(rows), np.uint64))
    rows = grow(archive, 20)
    assert archive.find(rows).tolist() == [0] + [-1] * 19


# Files


def test_files_that_are_refused(env: Any, tmp_path: Path) -> None:
    archive = StateArchive(env)
    grow(archive, 500)
    path = tmp_path / "archive"
    archive.save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, 9, *rng.integers(0, len(content), 10).tolist(), len(content) - 1]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        with pytest.raises(StateFormatError, match=r"not an archive|is damaged"):
            StateArchive.load(path, env)
    for length in (0, 8, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(StateFormatError, match=r"not an archive|is damaged"):
            StateArchive.load(path, env)
    env.save_states(path, archive.get([0]))
    with pytest.raises(StateFormatError, match="not an archive"):
        StateArchive.load(path, env)
    path.write_bytes(content)
    with plangym_like.make("Acrobot-v1") as other, pytest.raises(StateMismatchError):
        StateArchive.load(path, other)
    assert same(StateArchive.load(path, env), archive)
    with pytest.raises(FileNotFoundError):
        StateArchive.load(tmp_path / "none", env)


# After a Ctrl-C at any moment, and in several threads


@pytest.fixture(scope="module")
def rows(env: Any) -> np.ndarray:
    """Return 1,500 different rows."""
    env.reset(seed=0)
    places = np.random.default_rng(0).uniform(-0.1, 0.1, (1500, 4))
    return np.stack([env.make_state(x=place) for place in places])


@pytest.mark.parametrize("directory", [False, True])
def test_an_interrupted_add_adds_all_nodes_or_none(
    env: Any, rows: np.ndarray, tmp_path: Path, directory: bool
) -> None:
    number, counts = 1, set()
    while True:
        archive = StateArchive(env, {"tag": int}, directory=tmp_path if directory else None)
        archive.add(rows[:70], tag=np.arange(70))
        moment = Moment(number)
        with moment.strikes():
            archive.add(rows[70:200], tag=np.arange(70, 200))
        if moment.where is None:
            break
        count = len(archive)
        assert count in (70, 200), moment.where
        counts.add(count)
        rest = archive.add(rows[count:300], tag=np.arange(count, 300))
        assert rest.tolist() == list(range(count, 300))
        assert np.array_equal(archive.get(np.arange(300)), rows[:300]), moment.where
        assert np.array_equal(archive["tag"], np.arange(300)), moment.where
        assert archive.find(rows[:300]).tolist() == list(range(300)), moment.where
        number += 9 if directory else 3
    assert 70 in counts, "Python 3.13 traces no moment after all nodes are there"


def test_threads_that_read_and_write_one_archive(env: Any, rows: np.ndarray) -> None:
    archive = StateArchive(env, {"tag": int})
    archive.add(rows, tag=np.arange(len(rows)))

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            chosen = rng.integers(0, len(rows), 30)
            added = archive.add(rows[chosen], tag=chosen)
            places = np.concatenate([added, rng.integers(0, len(rows), 30)])
            tags = archive["tag"][places]
            if not np.array_equal(archive.get(places), rows[tags]):
                return False
            if not np.array_equal(archive.find(rows[chosen]), chosen):
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


# The hash table


def test_the_table_with_many_equal_slots() -> None:
    """Hashes whose low bits are equal share their first slot."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**20, 5000).astype(np.uint64) << np.uint64(24)
    index = RowIndex()
    for stop in (10, 11, 2000, 5000):
        known = hashes[:stop]
        wanted = np.concatenate([known, known + np.uint64(1)])
        first = {value: node for node, value in reversed(list(enumerate(known.tolist())))}
        expected = [first.get(value, -1) for value in wanted.tolist()]
        assert index.find(known, wanted).tolist() == expected


def test_hashes_differ_if_one_bit_does() -> None:
    rng = np.random.default_rng(0)
    reference = rng.integers(0, 256, 800).astype(np.uint8)
    bits = np.unpackbits(reference) ^ np.eye(6400, dtype=np.uint8)
    rows = np.packbits(bits, axis=1)
    hashes = hash_rows(np.concatenate([reference[None], rows]), reference)
    assert len(np.unique(hashes)) == 6401 and hashes[0] == 0
    for shift in (0, 16, 32, 48):  # every part of a hash is as good
        assert len(np.unique((hashes >> np.uint64(shift)) & np.uint64(0xFFFF))) > 5800

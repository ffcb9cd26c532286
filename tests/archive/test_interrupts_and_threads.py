"""`StateArchive` after a Ctrl-C at any moment, and used by several threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import Moment

import plangym_like
from plangym_like import StateArchive


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    with plangym_like.make("CartPole-v1") as env:
        yield env


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

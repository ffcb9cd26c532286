"""Episodes played by actors of a real cluster are those of processes, to the bit."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from episode_envs import Counter, Weighted, chance_env, count_env
from vanishing import assert_gone

from plangym_like.batchers import Workers
from plangym_like.batchers.episodes import Batcher, DictTensor, EpisodeBatcher, Trajectories
from plangym_like.errors import ClosedError, WorkerDiedError

ray = pytest.importorskip("ray", reason="Ray is not installed")
ON_RAY = Workers(1, ray={"resources": {"num_cpus": 0}})


def _assert_same(ours: list[Trajectories], theirs: list[Trajectories]) -> None:
    for mine, its in zip(ours, theirs, strict=True):
        assert torch.equal(mine.lengths, its.lengths)
        assert mine.keys() == its.keys()
        assert all(torch.equal(value, its[key]) for key, value in mine.items())


def _batcher(n_threads: int | Workers) -> EpisodeBatcher:
    """Few slots, each shorter than an episode."""
    return EpisodeBatcher(3, 6, n_threads, [0, 1], Weighted, {}, chance_env, {})


def _play(batcher: EpisodeBatcher) -> list[Trajectories]:
    played = []
    for weight in (None, 3.0, 5.0):
        if weight is not None:
            batcher.update({"weight": torch.tensor([weight])})
        batcher.execute(8)
        played.append(batcher.get())
    return played


def test_episodes_are_those_of_processes_until_an_actor_dies(cluster: Any) -> None:
    with _batcher(ON_RAY) as batcher, _batcher(0) as same:
        ours, theirs = _play(batcher), _play(same)
        _assert_same(ours, theirs)
        assert [int(played["action"][0, 0]) for played in ours[1:]] == [3, 5]
        assert ours[0].lengths.tolist() == [7] * 8

        (pid,) = batcher._workers.pids
        os.kill(pid, signal.SIGKILL)
        batcher.execute(8)
        with pytest.raises(WorkerDiedError, match=f"pid {pid} on node .* has died") as caught:
            batcher.get(timeout=100)
        assert f"in worker EpisodeBatcher-0 (pid {pid}" in caught.value.__notes__[-1]
        with pytest.raises(ClosedError):
            batcher.get()


@pytest.mark.full
def test_chunks_and_close_in_the_middle(cluster: Any) -> None:
    long = DictTensor({"end": torch.full((4,), 1_000_000)})
    found = []
    for n_threads in (ON_RAY, 0):
        batcher = Batcher(200, 8, n_threads, [0], Counter, {}, count_env, {})
        batcher.execute(env_info=long)
        chunks = [batcher.get()]
        batcher.reexecute()
        chunks.append(batcher.get())
        batcher.reexecute()
        pids = batcher._workers.pids
        begin = time.monotonic()
        batcher.close()
        batcher.close()
        assert time.monotonic() - begin < 100
        found.append(chunks)
        assert_gone(pids)
    _assert_same(*found)

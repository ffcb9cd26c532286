"""Episodes played by actors of a real cluster are those of processes, to the bit."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from episode_envs import Weighted, chance_env

from plangym_like.batchers import Workers
from plangym_like.batchers.episodes import EpisodeBatcher, Trajectories
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

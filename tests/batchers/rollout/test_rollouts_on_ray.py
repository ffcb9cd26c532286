"""Rollouts by actors of a real cluster are those of processes, to the bit."""

from __future__ import annotations

import os
import signal
import time
from itertools import islice
from typing import Any

import gymnasium
import pytest
import torch
from counting import Policy
from suite import assert_gone

from plangym_like.batchers import Workers
from plangym_like.batchers.rollout import Fragment, multi
from plangym_like.errors import WorkerDiedError
from plangym_like.vector.tree import tree_leaves

ray = pytest.importorskip("ray", reason="Ray is not installed")
ON_RAY = Workers(2, ray={"resources": {"num_cpus": 0}})


def _cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


def _learner(**options: Any) -> tuple[Any, Policy]:
    torch.manual_seed(0)
    actor = Policy()
    it = multi.rollout(
        _cart_pole, actor, 40, 3, 2, 6, 2, seed=7, ordered=True, max_lag=0, **options
    )
    return it, actor


def _learn(it: Any, actor: Policy) -> list[Fragment]:
    fragments = []
    for fragment in islice(it, 6):
        fragments.append(fragment)
        with torch.no_grad():
            actor.policy[0].weight += 0.1 * fragment.state.rew.sum()
    return fragments


def test_fragments_are_those_of_processes_until_an_actor_dies(cluster: Any) -> None:
    """Though the policy samples, and its weights change in step."""
    it, actor = _learner(workers=ON_RAY)
    same, copy = _learner(workers=0)
    with it, same:
        ours, theirs = _learn(it, actor), _learn(same, copy)
        for mine, its in zip(ours, theirs, strict=True):
            pairs = zip(tree_leaves(tuple(mine[:-1])), tree_leaves(tuple(its[:-1])), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
        assert torch.equal(actor.policy[0].weight, copy.policy[0].weight)
        assert ours[0].state.fin.any() and len(ours[0].final.t)
        assert [fragment.version[0] for fragment in ours] == list(range(6))

        pids = it.pids
        os.kill(pids[0], signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(WorkerDiedError, match=f"pid {pids[0]}"):
            while True:
                next(it)
        assert time.monotonic() - begin < 100
        begin = time.monotonic()
        it.close()
        assert time.monotonic() - begin < 100
        assert_gone(pids)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2

"""Batchers in other processes notice that the caller has changed a module."""

from __future__ import annotations

import collections
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from usual import first_of

from plangym_like.batchers.episodes import Agent, DictTensor, EpisodeBatcher, GymEnv
from plangym_like.batchers.rollout import BaseActorModule, multi
from plangym_like.errors import DifferentWorkerError


class Still(BaseActorModule):
    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> Any:
        return torch.zeros(*obs.shape[:2], 3), (), {}


class Resting(Agent):
    def __call__(self, state: Any, observation: DictTensor, *args: Any, **kwargs: Any) -> Any:
        action = torch.zeros(observation.n_elems(), 3)
        return DictTensor(), DictTensor({"action": action}), DictTensor()


MADE: collections.Counter[str] = collections.Counter()


def hopper() -> Any:
    MADE["here"] += 1
    return gymnasium.make("Hopper-v5")


def hoppers(seed: int) -> GymEnv:
    return GymEnv([hopper(), hopper()], seed)


@pytest.fixture(params=[False, True], ids=["as imported", "patched"])
def patched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    original = HopperEnv._get_rew

    def doubled(env: Any, *args: Any) -> Any:
        reward, parts = original(env, *args)
        return 2 * reward, parts

    if request.param:
        monkeypatch.setattr(HopperEnv, "_get_rew", doubled)
    MADE.clear()
    return bool(request.param)


@pytest.mark.parametrize("source", first_of([hopper, "Hopper-v5"]))
@pytest.mark.parametrize("n_workers", [0, 2])
def test_rollouts(patched: bool, source: Any, n_workers: int) -> None:
    sizes = {"n_actors": 2, "n_per_actor": 1, "n_buffers": 2, "n_per_batch": 1}
    with multi.rollout(source, Still(), 3, **sizes, workers=n_workers) as fragments:
        if patched and n_workers:
            with pytest.raises(DifferentWorkerError, match="changed an imported module") as caught:
                next(fragments)
            assert "in worker rollout-" in caught.value.__notes__[0]
        else:
            rewards = next(fragments).state.rew
            assert ((rewards > 1.5) == patched).all()
    assert bool(MADE["here"]) == (n_workers == 0 and source is hopper)


def test_forked_workers_have_the_changes(patched: bool) -> None:
    sizes = {"n_actors": 2, "n_per_actor": 1, "n_buffers": 2, "n_per_batch": 1}
    with multi.rollout(hopper, Still(), 3, **sizes, workers=2, start_method="fork") as fragments:
        assert ((next(fragments).state.rew > 1.5) == patched).all()


def test_episodes(patched: bool) -> None:
    batcher = EpisodeBatcher(5, 4, 2, [0, 100], Resting, {}, hoppers, {})
    try:
        if patched:
            with pytest.raises(DifferentWorkerError, match="changed an imported module"):
                batcher.execute(2)
                batcher.get()
        else:
            batcher.execute(2)
            assert batcher.get() is not None
    finally:
        batcher.close()
    assert not MADE["here"]

"""Ids, factories of `plangym_like.make` and Gymnasium's: all three APIs take all of them."""

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from counting import Follower

import plangym_like
from plangym_like.batchers.episodes import DictTensor, EpisodeBatcher, GymEnv
from plangym_like.batchers.rollout import multi, same
from plangym_like.batchers.workspaces import ParallelGymAgent, Workspace

NAME = "CartPole-v1"
SOURCES: dict[str, Any] = {
    "id": NAME,
    "plan env": lambda: plangym_like.make(NAME, remove_time_limit=False),
    "live plan env": lambda: plangym_like.make(
        NAME, remove_time_limit=False, wrappers=[gymnasium.wrappers.RecordEpisodeStatistics]
    ),
}


def _new(source: Any) -> Any:
    return source() if callable(source) else plangym_like.make(source, remove_time_limit=False)


class Ones(Follower):
    """Pushes to the right."""

    def forward(self, obs: Any, act: Any, rew: Any, fin: Any, *, hx: Any = None) -> Any:
        return torch.ones(obs.shape[:2], dtype=torch.int64), (), {}


def _rollouts(source: Any) -> list[Any]:
    played = []
    for rollout in (
        same.rollout([_new(source) for _ in range(2)], Ones(), 30, seed=3),
        multi.rollout(source, Ones(), 30, 1, 2, 2, 1, workers=0, seed=3),
    ):
        with rollout:
            for _ in range(2):
                state = next(rollout).state
                played.append([x.clone() for x in state])
    return played


def _agent() -> Callable[..., Any]:
    def answer(state: Any, observation: Any, *rest: Any, **more: Any) -> Any:
        count = observation.n_elems()
        action = DictTensor({"action": torch.ones(count, dtype=torch.int64)})
        return DictTensor({}), action, DictTensor({})

    return answer


def _episodes(source: Any) -> Any:
    def create_env(seed: int) -> GymEnv:
        return GymEnv(source, seed, num_envs=2)

    batcher = EpisodeBatcher(20, 4, 0, 5, _agent, {}, create_env, {})
    with batcher:
        batcher.execute(n_episodes=3)
        return batcher.get()


def _workspaces(source: Any) -> Any:
    env = ParallelGymAgent(source, 2).seed(1)
    workspace = Workspace()
    for t in range(20):
        env(workspace, t=t)
        workspace.set("action", t, torch.ones(2, dtype=torch.int64))
    return [[workspace["env/env_obs"], workspace["env/done"]]]


def _played(source: Any) -> list[Any]:
    episodes = _episodes(source)
    return [*_rollouts(source), [episodes["frame"], episodes.lengths], *_workspaces(source)]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return _played(lambda: gymnasium.make(NAME))


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_all_sources_give_the_same(source: Any, expected: list[Any]) -> None:
    for mine, theirs in zip(_played(source), expected, strict=True):
        assert all(map(torch.equal, mine, theirs))

"""A recurrent agent, replayed from its recorded state."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

from plangym_like.batchers.episodes import (
    Agent,
    Batcher,
    DictTensor,
    EpisodeBatcher,
    GymEnv,
    GymInfEnv,
    replay_agent,
)


class Recurrent(Agent, nn.Module):
    """A GRU, which begins again where an episode does."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.cell, self.head = nn.GRUCell(4, 8), nn.Linear(8, 2)
        self.beginning = nn.Parameter(torch.randn(8))

    def __call__(self, state: Any, observation: Any, agent_info: Any = None, history: Any = None):
        beginning = self.beginning.expand(observation.n_elems(), -1)
        if state is None:
            state = DictTensor({"memory": beginning})
        begins = observation["initial_state"][:, None]
        memory = self.cell(observation["frame"], torch.where(begins, beginning, state["memory"]))
        logits = self.head(memory) * agent_info["warmth"][:, None]
        action = torch.distributions.Categorical(logits=logits).sample()
        return (
            state,
            DictTensor({"action": action, "logits": logits}),
            DictTensor({"memory": memory}),
        )


def make(kind: Any, vec_env: Any, n_threads: int, agent: Any) -> Any:
    def create_env(seed: int) -> Any:
        return vec_env([gymnasium.make("CartPole-v1") for _ in range(3)], seed)

    batcher = kind(12, 6, n_threads, [0, 50], Recurrent, {}, create_env, {})
    batcher.update(agent.state_dict())
    return batcher


@pytest.mark.parametrize("n_threads", [0, 2])
def test_whole_episodes(n_threads: int) -> None:
    agent = Recurrent()
    with make(EpisodeBatcher, GymEnv, n_threads, agent) as batcher:
        batcher.execute(9, DictTensor({"warmth": torch.linspace(0.5, 2, 9)}))
        trajectories = batcher.get()
    mask = trajectories.mask()
    replayed = replay_agent(agent, trajectories)
    assert replayed["logits"].shape == (*mask.shape, 2)
    torch.testing.assert_close(
        replayed["logits"][mask], trajectories["logits"][mask], atol=1e-5, rtol=0
    )
    log_probs = torch.distributions.Categorical(logits=replayed["logits"][mask]).log_prob(
        trajectories["action"][mask]
    )
    log_probs.sum().backward()
    assert agent.beginning.grad is not None and agent.beginning.grad.abs().sum() > 0


def test_chunks_through_the_ends_of_episodes() -> None:
    agent = Recurrent()
    with make(Batcher, GymInfEnv, 0, agent) as batcher:
        batcher.reset(DictTensor({"warmth": torch.ones(6)}))
        for _ in range(3):
            batcher.execute()
            chunk = batcher.get()
            state = DictTensor({"memory": chunk["memory"][:, 0]})
            replayed = replay_agent(agent, chunk, state)
            torch.testing.assert_close(replayed["logits"], chunk["logits"], atol=1e-5, rtol=0)
        assert chunk["initial_state"].any(), "or nothing was tried"

"""The calls of BBRL's three introductory notebooks, with the results that the notebooks show."""

from functools import partial
from typing import Any

import torch
from gymnasium.wrappers import TimeLimit

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    ParallelGymAgent,
    ReplayBuffer,
    TemporalAgent,
    Workspace,
    make_env,
)

ENV_VARIABLES = [
    "env/cumulated_reward",
    "env/done",
    "env/env_obs",
    "env/reward",
    "env/terminated",
    "env/timestep",
    "env/truncated",
]


class Random(Agent):
    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.num_actions = num_actions

    def forward(self, t: int, choose_action: bool = True, **kwargs: Any) -> None:
        batch_size = len(self.get(("env/env_obs", t)))
        self.set(("action", t), torch.randint(0, self.num_actions, (batch_size,)))


def _cart_poles(num_envs: int, autoreset: bool) -> ParallelGymAgent:
    factory = partial(make_env, env_name="CartPole-v1", autoreset=autoreset)
    return ParallelGymAgent(factory, num_envs=num_envs).seed(2139)


def test_environments_without_autoreset() -> None:
    factory = partial(
        make_env, "CartPole-v1", autoreset=False, wrappers=[lambda env: TimeLimit(env, 5)]
    )
    env = ParallelGymAgent(factory, 3, reward_at_t=False)
    env.seed(2139)
    obs_size, num_actions = env.get_obs_and_actions_sizes()
    assert (obs_size, num_actions) == (4, 2)

    workspace = Workspace()
    env(workspace, t=0)
    assert workspace.get("env/env_obs", 0).shape == (3, 4)
    workspace.set("action", 0, torch.randint(0, num_actions, (3,)))
    env(workspace, t=1)
    assert sorted(workspace.variables) == ["action", *ENV_VARIABLES]
    assert workspace["env/reward"].tolist() == [[0] * 3, [1] * 3]
    assert workspace["env/timestep"].tolist() == [[0] * 3, [1] * 3]
    assert workspace["action"].shape == (1, 3)

    workspace = Workspace()
    player = TemporalAgent(Agents(env, Random(num_actions)))
    player(workspace, t=0, stop_variable="env/done", stochastic=True)
    assert workspace["env/env_obs"].shape == (6, 3, 4)
    assert workspace["env/truncated"].tolist() == [[False] * 3] * 5 + [[True] * 3]
    assert workspace["env/done"].equal(workspace["env/truncated"])
    assert not workspace["env/terminated"].any()
    assert workspace["env/cumulated_reward"].tolist() == [[t] * 3 for t in range(6)]
    assert workspace["action"].shape == (6, 3)


def test_environments_with_autoreset() -> None:
    torch.manual_seed(0)
    workspace = Workspace()
    player = TemporalAgent(Agents(_cart_poles(1, autoreset=True), Random(2)))
    player(workspace, n_steps=15)
    assert workspace["env/env_obs"].shape == (15, 1, 4)
    transitions = workspace.get_transitions()
    for t in range(4):
        assert transitions["env/env_obs"][:, t].equal(workspace["env/env_obs"][t : t + 2, 0])

    # A workspace of transitions is a workspace of two steps.
    TemporalAgent(Random(2))(transitions, t=0, n_steps=2)
    assert transitions["action"].shape == (2, transitions.batch_size())

    player = TemporalAgent(Agents(_cart_poles(3, autoreset=True), Random(2)))
    workspace = Workspace()
    player(workspace, n_steps=15)
    transitions = workspace.get_transitions()
    assert transitions["env/env_obs"][:, :3].equal(workspace["env/env_obs"][:2])

    buffer = ReplayBuffer(max_size=80)
    buffer.put(transitions)
    assert buffer.get_shuffled(3)["env/env_obs"].shape == (2, 3, 4)

    # Epochs begin in the workspace of the longer run before, at time 0 and then at time 1.
    total, put, epoch = 0, transitions.batch_size(), 0
    while total < 100:
        if epoch:
            workspace.zero_grad()
            workspace.copy_n_last_steps(1)
        player(workspace, t=1 if epoch else 0, n_steps=10)
        transitions = workspace.get_transitions()
        steps, ended = (10 if epoch else 9), int(workspace["env/done"][:-1].sum())
        assert transitions["action"].shape == (2, 3 * steps - ended)
        total, put = total + transitions.batch_size(), put + transitions.batch_size()
        epoch += 1
        buffer.put(transitions)
        assert buffer.size() == min(put, 80)

"""The calls of BBRL's three introductory notebooks, with the results that the notebooks show."""

from functools import partial
from typing import Any

import torch
from gymnasium.wrappers import TimeLimit

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    ParallelGymAgent,
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

"""Environments as an agent: every row says where it comes from, and none is out of date."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from count_env import Chance, Count, Staggered, Turns, count_env, counting, joined
from gymnasium.wrappers import Autoreset, TimeLimit
from small_envs import Nested

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    ParallelGymAgent,
    ReplayBuffer,
    TemporalAgent,
    Workspace,
    make_env,
)
from plangym_like.errors import ActionError, InputError

CART_POLE = partial(make_env, "CartPole-v1", autoreset=True)
MEASURES = ["terminated", "truncated", "done", "reward", "cumulated_reward", "timestep"]


def _run(agent: Agent, **kwargs: Any) -> Workspace:
    workspace = Workspace()
    agent(workspace, **kwargs)
    return workspace


def _check_alignment(transitions: dict[str, torch.Tensor]) -> None:
    """Check that every transition is one that a count can make."""
    index, action = transitions["env/env_obs"][..., 0].long(), transitions["action"]
    assert (index[1] == index[0] + 1).all()
    assert transitions["env/timestep"].equal(index)
    assert transitions["env/reward"][1].equal((10 * index[0] + action[0]).float())
    total = transitions["env/cumulated_reward"]
    assert (total[1] - total[0]).equal(transitions["env/reward"][1])
    assert transitions["env/done"][1].equal(index[1] == 7)


# With autoreset


def test_autoreset_rows() -> None:
    workspace = _run(counting(2, autoreset=True), n_steps=18)
    assert workspace["env/env_obs"].dtype == torch.uint8
    clock = torch.arange(18)
    index = clock % 8
    for lane in range(2):
        assert workspace["env/env_obs"][:, lane, 0].equal(index.to(torch.uint8))
        assert workspace["env/timestep"][:, lane].equal(index)
        assert workspace["env/done"][:, lane].equal(index == 7)
        earned = torch.where(index == 0, 0, 10 * (index - 1) + (clock - 1 + lane) % 4).float()
        assert workspace["env/reward"][:, lane].equal(earned)
        total = torch.cat([part.cumsum(0) for part in earned.split(8)])
        assert workspace["env/cumulated_reward"][:, lane].equal(total)
    assert not workspace["env/truncated"].any()
    _check_alignment(joined([workspace.get_transitions()]))


@pytest.mark.parametrize("factory", [CART_POLE, partial(count_env, True), Staggered(True)])
@pytest.mark.parametrize("copied", [1, 2])
def test_ten_epochs_give_the_transitions_of_one_run(factory: Any, copied: int) -> None:
    def agent() -> TemporalAgent:
        if isinstance(factory, Staggered):
            factory.made = 0
        env = ParallelGymAgent(factory, 3, seed=4)
        return TemporalAgent(Agents(env, Chance(env.get_obs_and_actions_sizes()[1])))

    whole = _run(agent(), n_steps=1000 + copied)
    workspace, epochs, parts = Workspace(), agent(), []
    for epoch in range(10):
        if epoch == 0:
            epochs(workspace, n_steps=100 + copied)
            parts.append(workspace.get_transitions())
            continue
        workspace.zero_grad()
        workspace.copy_n_last_steps(copied)
        epochs(workspace, t=copied, n_steps=100)
        assert workspace.time_size() == 100 + copied
        parts.append(workspace.subtime(copied - 1, 100 + copied).get_transitions())
    expected, got = joined([whole.get_transitions()]), joined(parts)
    assert expected.keys() == got.keys()
    for name in expected:
        assert got[name].equal(expected[name]), name
    episodes = got["env/done"][1].sum()
    assert episodes == whole["env/done"].sum() > 30


def test_a_shorter_run_leaves_no_rows_of_the_longer() -> None:
    agent = counting(3, autoreset=True)
    workspace = _run(agent, n_steps=15)
    critic = torch.zeros(15, 3)
    workspace.set_full("critic", critic)
    agent(workspace, t=0, n_steps=10)
    assert all(len(workspace[name]) == 10 for name in workspace.variables)
    assert "critic" not in workspace
    transitions = workspace.get_transitions()
    assert transitions.batch_size() == 3 * 8
    _check_alignment(joined([transitions]))
    buffer = ReplayBuffer(1000)
    buffer.put(transitions)
    _check_alignment(joined([buffer.get_shuffled(500)]))


def test_other_agents_may_write_before_the_environments() -> None:
    class Before(Agent):
        def forward(self, t: int, **kwargs: Any) -> None:
            self.set(("clock", t), torch.full((2,), t))

    agent = TemporalAgent(Agents(Before(), counting(2, autoreset=True).agent))
    workspace = _run(agent, n_steps=9)
    agent(workspace, n_steps=6)
    assert workspace["clock"][:, 0].tolist() == list(range(6)) and workspace.time_size() == 6


def test_another_course_is_refused() -> None:
    agent = counting(2, autoreset=True)
    workspace = _run(agent, n_steps=6)
    _run(agent, n_steps=4)
    with pytest.raises(InputError, match="5, 5.*3, 3"):
        agent(workspace, t=6, n_steps=2)
    with pytest.raises(InputError, match="time 0"):
        counting(2, autoreset=True)(workspace, t=6, n_steps=1)
    env = agent.agent[0]  # type: ignore[index]
    with pytest.raises(InputError, match="time 0"):
        env.seed(3)(workspace, t=6)


def test_without_last_states() -> None:
    agent = counting(2, autoreset=True, include_last_state=False)
    workspace = _run(agent, n_steps=16)
    index = workspace["env/env_obs"][:, 0, 0].tolist()
    assert index == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert workspace["env/done"][:, 0].nonzero().flatten().tolist() == [7, 14]
    assert workspace["env/timestep"][:9, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 1]
    reward, action = workspace["env/reward"][:, 0], workspace["action"][:, 0]
    assert reward[7] == 60 + action[6] and reward[8] == action[7]
    assert workspace["env/cumulated_reward"][8, 0] == reward[8]
    assert workspace.get_transitions(no_final_state=True).batch_size() == 30


@pytest.mark.parametrize("autoreset", [False, True])
def test_rewards_where_they_are_earned(autoreset: bool) -> None:
    late, early = (
        _run(counting(2, autoreset, reward_at_t=where), n_steps=12) for where in (False, True)
    )
    assert early["env/reward"][:-1].equal(late["env/reward"][1:])
    assert early["env/reward"][-1].tolist() == [0.0, 0.0]
    first = late.get_transitions()["env/reward"][1]
    assert early.get_transitions()["env/reward"][0].equal(first)
    final = late["env/done"]
    total = early["env/cumulated_reward"]
    assert total[final].equal(late["env/cumulated_reward"][final])
    assert early["env/env_obs"].equal(late["env/env_obs"])


# Without autoreset


def test_environments_wait_for_each_other() -> None:
    env = ParallelGymAgent(Staggered(False), 3)
    workspace = _run(TemporalAgent(Agents(env, Turns(3))), stop_variable="env/done")
    assert workspace.time_size() == 6
    for lane, end in enumerate((3, 4, 5)):
        steps = [min(t, end) for t in range(6)]
        assert workspace["env/timestep"][:, lane].tolist() == steps
        assert workspace["env/env_obs"][:, lane, 0].tolist() == steps
        assert workspace["env/done"][:, lane].tolist() == [t >= end for t in range(6)]
        earned = [10.0 * (t - 1) + (t - 1 + lane) % 4 if 0 < t <= end else 0 for t in range(6)]
        assert workspace["env/reward"][:, lane].tolist() == earned
        assert workspace["env/cumulated_reward"][-1, lane] == sum(earned)
    assert workspace["env/terminated"].equal(workspace["env/done"])
    assert workspace.get_transitions().batch_size() == 3 + 4 + 5


# Seeds


class Sampling(Agent):
    """Takes actions of any space, from the space's own generator."""

    def __init__(self, env: ParallelGymAgent) -> None:
        super().__init__()
        self.space, self.num_envs = env.action_space, env.num_envs
        self.space.seed(7)

    def forward(self, t: int, **kwargs: Any) -> None:
        drawn = [self.space.sample() for _ in range(self.num_envs)]
        if isinstance(drawn[0], dict):
            for key in drawn[0]:
                rows = torch.as_tensor(np.stack([each[key] for each in drawn]))
                self.set((f"action/{key}", t), rows)
        else:
            self.set(("action", t), torch.as_tensor(np.stack(drawn)))


def test_rows_of_a_seeded_environment() -> None:
    """CartPole from the seed that the agent chose is what Gymnasium makes of that seed."""
    env = ParallelGymAgent(CART_POLE, 1).seed(11)
    (seed,) = env._seeds or ()
    workspace = _run(TemporalAgent(Agents(env, Turns(1, 2))), n_steps=60)
    twin = gymnasium.make("CartPole-v1")
    obs, _ = twin.reset(seed=seed)
    ended = False
    for t in range(60):
        if t and ended:
            obs, ended = twin.reset()[0], False
        elif t:
            obs, _, terminated, truncated, _ = twin.step(int(workspace["action"][t - 1]))
            ended = terminated or truncated
        assert workspace["env/env_obs"][t, 0].numpy().tobytes() == obs.tobytes()
        assert bool(workspace["env/done"][t]) == ended


# Spaces, factories, errors


def test_nested_observations_and_actions() -> None:
    env = ParallelGymAgent(Nested, 3).seed(0)
    assert env.get_obs_and_actions_sizes() == (
        {"place": 2, "cargo": (50, 3)},
        {"move": 2, "pick": 3},
    )
    workspace = _run(TemporalAgent(Agents(env, Sampling(env))), n_steps=9)
    assert workspace["env/env_obs/place"].shape == (9, 3, 2)
    picked = workspace["action/pick"][:-1].cumsum(0)
    assert workspace["env/env_obs/cargo/0"][1:].equal(picked)
    assert workspace["env/env_obs/cargo/1"].dtype == torch.int8


@pytest.mark.parametrize(
    "action",
    [torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.zeros(2, 1, dtype=torch.int64)],
)
def test_actions_that_do_not_fit(action: torch.Tensor) -> None:
    env = ParallelGymAgent(CART_POLE, 2)
    workspace = Workspace()
    env(workspace, t=0)
    workspace.set("action", 0, action)
    with pytest.raises(ActionError, match="'action' at time 0"):
        env(workspace, t=1)
    assert workspace.time_size() == 1
    workspace.clear("action")
    with pytest.raises(InputError, match="'action'"):
        env(workspace, t=1)
    workspace.set("action", 0, torch.tensor([0, 1]))
    env(workspace, t=1)
    assert workspace.get("env/timestep", 1).tolist() == [1, 1]


def test_factories() -> None:
    assert make_env("CartPole-v1", wrappers=[partial(TimeLimit, max_episode_steps=5)]).spec
    order: list[str] = []

    def note(name: str) -> Any:
        return lambda env: (order.append(name), env)[1]

    env = make_env("CartPole-v1", True, [note("first"), note("second")], max_episode_steps=9)
    assert order == ["first", "second"] and isinstance(env, Autoreset)
    limited = partial(make_env, wrappers=[lambda env: TimeLimit(env, 5)])
    agent = ParallelGymAgent(limited, 2, {"env_name": "CartPole-v1", "autoreset": True})
    workspace = _run(TemporalAgent(Agents(agent, Turns(2, 2))), n_steps=14)
    assert workspace["env/truncated"][:, 0].nonzero().flatten().tolist() == [5, 11]
    with pytest.raises(InputError, match="num_envs"):
        ParallelGymAgent(CART_POLE, 0)
    single = gymnasium.make("CartPole-v1")
    with pytest.raises(InputError, match="twice"):
        ParallelGymAgent(lambda: single, 2)


def test_dtypes_are_the_environments_own() -> None:
    for dtype, expected in ((np.uint8, torch.uint8), (np.float64, torch.float64)):
        env = ParallelGymAgent(partial(Count, dtype=dtype), 2)
        workspace = _run(env, t=0)
        assert workspace["env/env_obs"].dtype == expected
    kinds = {name: workspace[f"env/{name}"].dtype for name in MEASURES}
    flags = dict.fromkeys(MEASURES[:3], torch.bool)
    floats = dict.fromkeys(MEASURES[3:5], torch.float32)
    assert kinds == {**flags, **floats, "timestep": torch.int64}


def test_what_was_read_is_the_readers_to_keep() -> None:
    agent = counting(2, autoreset=True)
    workspace = _run(agent, n_steps=40)
    rows = workspace["env/env_obs"]
    kept = rows.clone()
    for _ in range(3):
        workspace.copy_n_last_steps(1)
        agent(workspace, t=1, n_steps=70)
    agent(workspace, n_steps=5)
    assert rows.equal(kept)

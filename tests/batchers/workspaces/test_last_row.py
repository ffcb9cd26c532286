"""Environments continue only from as many steps into their episodes as the workspace says."""

import signal
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from count_env import Count, Turns, counting
from counting import Interrupted
from gymnasium.wrappers import Autoreset

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    ParallelGymAgent,
    ReplayBuffer,
    TemporalAgent,
    Workspace,
)
from plangym_like.errors import InputError


def _last(workspace: Workspace) -> Workspace:
    workspace.copy_n_last_steps(1)
    return workspace


def _read_first(workspace: Workspace) -> Workspace:
    assert len(workspace["env/timestep"]) == 10
    return workspace


MOVES: list[Callable[[Workspace], Workspace]] = [
    lambda workspace: workspace, _last, _read_first, lambda workspace: Workspace(_last(workspace)),
]  # fmt: skip
MOVED = pytest.mark.parametrize("move", MOVES)


@MOVED
def test_the_row_where_they_stand_is_known_wherever_it_went(move: Any) -> None:
    agent, twin = counting(2, True, reward_at_t=True), counting(2, True, reward_at_t=True)
    whole, first = Workspace(), Workspace()
    twin(whole, n_steps=20)
    agent(first, n_steps=10)
    moved = move(first)
    size = moved.time_size()
    agent(moved, t=size, n_steps=10)
    for name in ("env/timestep", "env/env_obs", "env/done"):
        assert moved[name][-11:].equal(whole[name][-11:])


class Stops(Agent):
    """Gets a Ctrl-C behind the environments."""

    at: ClassVar[list[int]] = []

    def forward(self, t: int, **kwargs: Any) -> None:
        if t in self.at:
            self.at.clear()
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("autoreset", [False, True])
@pytest.mark.parametrize("armed", [("step", 3), ("stepped", 4), ("stepped", 7)])
def test_after_a_ctrl_c_they_begin_at_time_0(autoreset: bool, armed: Any) -> None:
    made = iter([4, 9, 9])

    def factory() -> Any:
        env = Interrupted(end=next(made))
        return Autoreset(env) if autoreset else env

    agent = TemporalAgent(Agents(ParallelGymAgent(factory, 3, seed=0), Turns(3)))
    workspace = Workspace()
    agent(workspace, n_steps=2)
    Interrupted.armed[:] = [armed]
    with pytest.raises(KeyboardInterrupt):
        agent(workspace, t=2, n_steps=20)
    size = workspace.time_size()
    with pytest.raises(InputError, match="stopped halfway"):
        agent(workspace, t=size, n_steps=1)
    agent(workspace, n_steps=14)
    period = 5 if autoreset else 99
    steps = [t % period if autoreset else min(t, 4) for t in range(14)]
    assert workspace["env/timestep"][:, 0].tolist() == steps
    assert workspace["env/env_obs"][:, 0, 0].tolist() == steps
    assert workspace["env/done"][:, 0].tolist() == [step == 4 for step in steps]


def test_a_ctrl_c_behind_them_leaves_them_where_they_stand() -> None:
    env = ParallelGymAgent(lambda: Autoreset(Count()), 2, seed=0)
    agent, workspace = TemporalAgent(Agents(env, Stops(), Turns(2))), Workspace()
    Stops.at[:] = [5]
    with pytest.raises(KeyboardInterrupt):
        agent(workspace, n_steps=9)
    workspace.set("action", 5, torch.zeros(2, dtype=torch.int64))
    agent(workspace, t=6, n_steps=4)
    assert workspace["env/timestep"][:, 0].tolist() == [t % 8 for t in range(10)]


def test_an_interrupt_comes_after_a_put() -> None:
    """Entries are whole: `x` and `y` of an entry are of one put."""
    buffer = ReplayBuffer(4)

    def entries(value: int, count: int) -> Workspace:
        workspace = Workspace()
        for name in ("x", "y"):
            workspace.set_full(name, torch.full((1, count), value))
        return workspace

    buffer.put(entries(1, 4))

    class Stopping(torch.Tensor):
        def index_copy_(self, *args: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return self.as_subclass(torch.Tensor).index_copy_(*args)

    buffer.variables["x"] = buffer.variables["x"].as_subclass(Stopping)
    with pytest.raises(KeyboardInterrupt):
        buffer.put(entries(2, 3))
    buffer.variables["x"] = buffer.variables["x"].as_subclass(torch.Tensor)
    drawn = buffer.get_shuffled(200)
    assert torch.equal(drawn["x"], drawn["y"])
    buffer.put(entries(3, 1))
    assert sorted(buffer.variables["x"][:, 0].tolist()) == [2, 2, 2, 3]
    assert torch.equal(buffer.variables["x"], buffer.variables["y"])

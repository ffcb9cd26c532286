"""Environments continue only from the row that they wrote last, whatever that row holds."""

import signal
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from count_env import Count, Turns, counting
from gymnasium import spaces
from gymnasium.wrappers import Autoreset

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    EpisodesDone,
    ParallelGymAgent,
    ReplayBuffer,
    TemporalAgent,
    Workspace,
)
from plangym_like.errors import ActionError, InputError


class Dark(gymnasium.Env[Any, Any]):
    """Shows nothing of where it stands; only rewards tell."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.index = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.index += 1
        return np.zeros(1, np.float32), 0.0, False, False, {}


def dark(**options: Any) -> TemporalAgent:
    env = ParallelGymAgent(lambda: Autoreset(Dark()), 2, seed=0, **options)
    return TemporalAgent(Agents(env, Turns(2)))


def _copy(workspace: Workspace) -> Workspace:
    return Workspace(workspace)


def _last(workspace: Workspace) -> Workspace:
    workspace.copy_n_last_steps(1)
    return workspace


def _last_two(workspace: Workspace) -> Workspace:
    workspace.copy_n_last_steps(2)
    return workspace


def _read_first(workspace: Workspace) -> Workspace:
    assert len(workspace["env/timestep"]) == 10
    return workspace


def _to_front(workspace: Workspace) -> Workspace:
    workspace.copy_time(9, 0, 1)
    workspace.rewind(1)
    return workspace


MOVES: list[Callable[[Workspace], Workspace]] = [
    lambda workspace: workspace, _copy, _last, _last_two, _read_first, _to_front,
    lambda workspace: _copy(_last(_copy(workspace))),
]  # fmt: skip
MOVED = pytest.mark.parametrize("move", MOVES)
# Copies are compared by value, so they must differ.
MOVED_WITHIN = pytest.mark.parametrize("move", [MOVES[0], _last, _last_two, _read_first, _to_front])
AGENTS = pytest.mark.parametrize(
    "make", [dark, partial(counting, 2, True), partial(dark, reward_at_t=True)]
)


@AGENTS
@MOVED_WITHIN
@pytest.mark.parametrize("elsewhere", [10, 4])
def test_a_row_that_looks_alike_is_not_where_they_stand(
    make: Any, move: Any, elsewhere: int
) -> None:
    agent, first, second = make(), Workspace(), Workspace()
    agent(first, n_steps=10)
    agent(second, n_steps=elsewhere)
    first = move(first)
    with pytest.raises(InputError, match="stepped elsewhere since"):
        agent(first, t=first.time_size(), n_steps=1)
    agent(second, t=elsewhere, n_steps=3)
    assert second.time_size() == elsewhere + 3


@AGENTS
@MOVED
def test_the_row_where_they_stand_is_known_wherever_it_went(make: Any, move: Any) -> None:
    agent, twin, whole, first = make(), make(), Workspace(), Workspace()
    twin(whole, n_steps=20)
    agent(first, n_steps=10)
    moved = move(first)
    size = moved.time_size()
    agent(moved, t=size, n_steps=10)
    for name in ("env/timestep", "env/env_obs", "env/done"):
        assert moved[name][-11:].equal(whole[name][-11:])


def test_rows_before_the_last_are_not_where_they_stand() -> None:
    agent, workspace = dark(), Workspace()
    agent(workspace, n_steps=10)
    with pytest.raises(InputError, match="stepped elsewhere since"):
        agent(workspace, t=7, n_steps=1)


def test_a_copy_made_by_hand_is_compared_as_a_whole() -> None:
    agent, workspace = counting(2, autoreset=True), Workspace()
    agent(workspace, n_steps=5)
    true, false = Workspace(), Workspace()
    for other in (true, false):
        for name in workspace.keys():  # noqa: SIM118
            other.set(name, 0, workspace.get(name, 4).clone())
    false.get("env/env_obs", 0)[1] += 1
    with pytest.raises(InputError, match="stepped elsewhere since"):
        agent(false, t=1, n_steps=1)
    agent(true, t=1, n_steps=3)
    assert true["env/timestep"][:, 0].tolist() == [4, 5, 6, 7]


class Interrupted(Count):
    armed: ClassVar[list[tuple[str, int]]] = []

    def _perhaps(self, where: str) -> None:
        if (where, self.index) in self.armed:
            self.armed.clear()
            signal.raise_signal(signal.SIGINT)

    def step(self, action: Any) -> Any:
        self._perhaps("step")
        result = super().step(action)
        self._perhaps("stepped")
        return result


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


def test_flags_that_stay_are_those_of_the_workspace() -> None:
    env = ParallelGymAgent(lambda: Autoreset(Count()), 2, seed=0)
    agent = TemporalAgent(Agents(env, Turns(2)))
    done = TemporalAgent(EpisodesDone("env/done", "over"))
    first, second = Workspace(), Workspace()
    agent(first, n_steps=10)
    agent(second, n_steps=10)
    done(first, n_steps=10)
    done(second, n_steps=5)
    assert not second["over"].any()
    done(second, t=5, n_steps=5)
    assert second["over"][:, 0].tolist() == first["over"][:, 0].tolist() == [False] * 7 + [True] * 3
    assert second["over"].equal(first["over"])


def test_an_action_that_its_dtype_cannot_hold_is_refused() -> None:
    class Levers(Dark):
        action_space = spaces.Box(0, 200, (1,), np.uint8)

    agent, workspace = ParallelGymAgent(Levers, 2), Workspace()
    agent(workspace, t=0)
    for wrong in (torch.tensor([[300], [0]]), torch.tensor([[-1], [0]])):
        workspace.set("action", 0, wrong)
        with pytest.raises(ActionError, match="'action' at time 0"):
            agent(workspace, t=1)
    workspace.set("action", 0, torch.tensor([[200], [0]]))
    agent(workspace, t=1)
    assert len(workspace["env/reward"]) == 2


def test_actions_in_bfloat16() -> None:
    class Smooth(Dark):
        action_space = spaces.Box(-1, 1, (1,), np.float32)

    agent, workspace = ParallelGymAgent(Smooth, 2), Workspace()
    agent(workspace, t=0)
    workspace.set("action", 0, torch.zeros(2, 1, dtype=torch.bfloat16))
    agent(workspace, t=1)
    assert len(workspace["env/reward"]) == 2


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

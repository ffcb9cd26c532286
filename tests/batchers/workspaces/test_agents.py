"""Agents on a board: who is called when, on what, and until when."""

import copy
from typing import Any

import pytest
import torch
from count_env import Chance, counting
from torch import nn

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    CopyTAgent,
    EpisodesDone,
    ParallelGymAgent,
    PrintAgent,
    TemporalAgent,
    Workspace,
)
from plangym_like.errors import InputError


class Fibonacci(Agent):
    def forward(self, t: int, **kwargs: Any) -> None:
        following = self.get(("number", t)) + self.get(("number", t - 1))
        self.set(("number", t + 1), following)
        self.set(("large", t), following >= 50)


class Mean(Agent):
    """Writes a whole variable."""

    def __init__(self) -> None:
        super().__init__(name="mean")
        self.scale = nn.Linear(1, 1)

    def forward(self, factor: float = 1.0, **kwargs: Any) -> None:
        number = self.get("number")
        self.set("mean", factor * number.mean(0, keepdim=True).expand_as(number))


class Failing(Agent):
    def forward(self, **kwargs: Any) -> None:
        raise OSError("broken")


def _begun() -> Workspace:
    workspace = Workspace()
    workspace.set("number", 0, torch.tensor([0.0, 1.0]))
    workspace.set("number", 1, torch.tensor([1.0, 1.0]))
    return workspace


@pytest.mark.parametrize(("n_steps", "last"), [(None, 9), (4, 4), (100, 9)])
def test_until_all_say_stop(n_steps: int | None, last: int) -> None:
    workspace = _begun()
    TemporalAgent(Fibonacci())(workspace, t=1, n_steps=n_steps, stop_variable="large")
    assert len(workspace["number"]) == last + 2
    assert bool(workspace.get("large", last).all()) == (last == 9)


def test_agents_run_in_order_with_the_same_arguments() -> None:
    workspace = _begun()
    agents = Agents(Mean(), CopyTAgent("mean", "copied"), name="both")
    agents(workspace, factor=2.0)
    assert workspace["copied"].equal(workspace["mean"]) and workspace["mean"][0, 0] == 1.0
    assert agents.get_by_name("mean") == [agents[0]] and len(agents) == 2
    assert TemporalAgent(agents).get_by_name("both") == [agents]
    assert agents[1].set_name("copier").get_name() == "copier"
    assert len(list(agents.parameters())) == 2
    with pytest.raises(InputError, match="Linear"):
        Agents(nn.Linear(1, 1))  # type: ignore[arg-type]


def test_an_agent_has_a_workspace_only_while_it_acts() -> None:
    agent = Failing()
    with pytest.raises(OSError, match="broken"):
        agent(Workspace())
    assert agent.workspace is None
    with pytest.raises(InputError, match="while"):
        agent.get("x")
    with pytest.raises(InputError, match="dict"):
        agent({})  # type: ignore[arg-type]


def test_seeds_reach_the_environments_inside() -> None:
    first, second = counting(2, autoreset=True), counting(2, autoreset=True)
    env = first.agent[0]  # type: ignore[index]
    twin = copy.deepcopy(env)
    assert isinstance(twin, ParallelGymAgent) and twin is not env and twin.num_envs == 2
    assert first.seed(5) is first and second.seed(5) is second
    with pytest.raises(InputError, match="seed"):
        first.seed(-1)


def test_time_is_copied_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    workspace = _begun()
    workspace.set("late", 1, torch.zeros(2))
    TemporalAgent(Agents(CopyTAgent("number", "same", detach=True), PrintAgent()))(
        workspace, n_steps=2
    )
    assert workspace["same"].equal(workspace["number"])
    assert capsys.readouterr().out.count("late") == 1
    PrintAgent("number")(workspace, t=0)
    assert capsys.readouterr().out == "number  =  tensor([0., 1.])\n"


def test_first_episodes_of_environments_that_start_anew() -> None:
    env = counting(2, autoreset=True).agent[0]  # type: ignore[index]
    workspace = Workspace()
    first = TemporalAgent(Agents(env, EpisodesDone(out_var="over"), Chance(4)))
    first(workspace, stop_variable="over")
    assert len(workspace["over"]) == 8
    first(workspace, n_steps=12)
    assert workspace["over"][:, 0].tolist() == [False] * 7 + [True] * 5


class Powers(Agent):
    """Writes one step ahead, as tutorials of BBRL do."""

    def forward(self, t: int, **kwargs: Any) -> None:
        following = 2 * self.get((f"{self.prefix}number", t))
        self.set((f"{self.prefix}number", t + 1), following)
        self.set(("stop", t + 1), following >= 100)


def test_a_stop_variable_may_be_written_one_step_ahead() -> None:
    workspace = Workspace()
    workspace.set("own/number", 0, torch.tensor([1.0]))
    TemporalAgent(Powers().with_prefix("own/"))(workspace, t=0, stop_variable="stop")
    # It stops after the first step at whose time the flag is true, and which writes one more row.
    assert workspace["own/number"][-2:].flatten().tolist() == [128, 256]
    assert Powers().prefix == ""

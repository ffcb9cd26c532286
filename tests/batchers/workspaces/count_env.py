"""An environment in which every number says where it comes from, and agents for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import torch
from counting import Count
from gymnasium.wrappers import Autoreset

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    ParallelGymAgent,
    TemporalAgent,
    Workspace,
)


class Staggered:
    """A factory of counts that end at 3, 4, 5, ..., so that lanes do not go in step."""

    def __init__(self, autoreset: bool) -> None:
        self.autoreset = autoreset
        self.made = 0

    def __call__(self) -> gymnasium.Env[Any, Any]:
        env = Count(end=3 + self.made)
        self.made += 1
        return Autoreset(env) if self.autoreset else env


class Turns(Agent):
    """Acts by the clock: at its n-th call, lane b takes action ``(n + b) % num_actions``."""

    def __init__(self, num_envs: int, num_actions: int = 4) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.lanes = torch.arange(num_envs)
        self.calls = 0

    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), (self.calls + self.lanes) % self.num_actions)
        self.calls += 1


class Chance(Agent):
    """Acts by a generator of its own."""

    def __init__(self, num_actions: int, seed: int = 0) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, t: int, **kwargs: Any) -> None:
        count = len(self.get(("env/done", t)))
        drawn = torch.randint(self.num_actions, (count,), generator=self.generator)
        self.set(("action", t), drawn)


def counting(num_envs: int, autoreset: bool, **kwargs: Any) -> TemporalAgent:
    """Return agents that run `num_envs` counts of 7 by the clock."""
    env = ParallelGymAgent(partial(count_env, autoreset=autoreset), num_envs, seed=0, **kwargs)
    return TemporalAgent(Agents(env, Turns(num_envs)))


def count_env(autoreset: bool = False, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return a count, on request inside Gymnasium's `Autoreset`."""
    env = Count(**kwargs)
    return Autoreset(env) if autoreset else env


def joined(parts: list[Workspace]) -> dict[str, torch.Tensor]:
    """Return the transitions of several workspaces, one behind the other."""
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0].variables}

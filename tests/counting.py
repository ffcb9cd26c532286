"""A world in which every number says where it comes from, and actors that answer in it."""

from __future__ import annotations

import signal
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from plangym_like.batchers.rollout import BaseActorModule, multinomial


class Count(gymnasium.Env[Any, Any]):
    """Observes the number of the step, earns 10 times that and the action, ends at `end`.

    The reward of a step is ``10 * index + action`` with the index it was taken at.
    """

    action_space = spaces.Discrete(4)

    def __init__(self, end: int = 7, limit: int | None = None, dtype: Any = np.uint8) -> None:
        self.observation_space = spaces.Box(0, 255, (1,), dtype)
        self.end, self.limit, self.dtype = end, limit, dtype
        self.index = 0
        self.over = True

    def _observe(self) -> Any:
        return np.array([self.index], self.dtype)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.index, self.over = 0, False
        return self._observe(), {"half": 0.0}

    def step(self, action: Any) -> Any:
        assert not self.over, "an episode that has ended was stepped"
        reward = 10.0 * self.index + float(action)
        self.index += 1
        info = {"half": self.index / 2, "twice": np.array([self.index, self.index], np.int16)}
        terminated, truncated = self.index == self.end, self.index == self.limit
        self.over = terminated or truncated
        return self._observe(), reward, terminated, truncated, info


class Interrupted(Count):
    """Gets a Ctrl-C in its step, or in its reset, when that is asked for."""

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

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._perhaps("reset")
        return super().reset(seed=seed, options=options)


class Follower(BaseActorModule):
    """Answers with the observed number modulo 4, deterministically."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> Any:
        number = obs[..., 0].to(torch.float32)
        info = {"value": number * self.weight, "before": act, "earned": rew, "begun": fin}
        return obs[..., 0].to(torch.int64) % 4, (), info


class Recurrent(BaseActorModule):
    """A GRU on the observation and on the last action and reward; samples in training mode."""

    def __init__(self, num_inputs: int = 1, num_actions: int = 4, hidden: int = 8) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.core = torch.nn.GRU(num_inputs + num_actions + 1, hidden)
        self.policy = torch.nn.Linear(hidden, num_actions)
        self.critic = torch.nn.Linear(hidden, 1)

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> Any:
        last = torch.nn.functional.one_hot(act, self.num_actions).to(torch.float32)
        inputs = torch.cat((obs.to(torch.float32), last, rew[..., None] / 10), -1)
        if hx is None:
            hx = inputs.new_zeros(1, inputs.shape[1], self.core.hidden_size)
        outputs = []
        for row, begun in zip(inputs, fin, strict=True):
            output, hx = self.core(row[None], hx * ~begun[None, :, None])
            outputs.append(output)
        output = torch.cat(outputs)
        logits = self.policy(output).log_softmax(-1)
        actions = multinomial(logits.exp()) if self.training else logits.argmax(-1)
        return actions, hx, {"value": self.critic(output)[..., 0], "logits": logits}


class Policy(BaseActorModule):
    """Samples in training mode, and is greedy in the other; for CartPole."""

    def __init__(self, num_inputs: int = 4, num_actions: int = 2) -> None:
        super().__init__()
        self.policy = torch.nn.Sequential(
            torch.nn.Linear(num_inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, num_actions)
        )
        self.critic = torch.nn.Linear(num_inputs, 1)

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> Any:
        logits = self.policy(obs).log_softmax(-1)
        actions = multinomial(logits.exp()) if self.training else logits.argmax(-1)
        return actions, (), {"value": self.critic(obs)[..., 0], "logits": logits}

"""plangym_like's rollouts: two workers, and fragments that the caller may keep."""

from __future__ import annotations

from typing import Any

from contenders import collecting
from contenders.contract import Job, Work

PACKAGES = ("plangym_like", "torch", "gymnasium", "ale-py", "numpy")


def open_job(job: Job, *, workers: int, critic: bool = False) -> Work:
    """Start the workers; ``count`` environments are shared between them."""
    from plangym_like.batchers.rollout import multi

    it = multi.rollout(
        lambda: collecting.make_env(job),
        _actor(critic),
        collecting.STEPS,
        n_actors=workers,
        n_per_actor=job.count // workers,
        n_buffers=2 * workers,
        n_per_batch=workers,
        workers=workers,
        seed=0,
    )

    def step(count: int) -> int:
        return int(next(it).state.fin.numel())

    return Work(step, it.close, {})


def _actor(critic: bool) -> Any:
    import torch

    from plangym_like.batchers.rollout import BaseActorModule, multinomial

    class Actor(BaseActorModule):
        def __init__(self) -> None:
            super().__init__()
            body, tanh, self.head = collecting.make_policy()
            self.body = torch.nn.Sequential(body, tanh)
            self.critic = torch.nn.Linear(collecting.UNITS, 1) if critic else None

        def forward(
            self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
        ) -> Any:
            features = self.body(obs)
            logits = self.head(features)
            info = {"logits": logits}
            if self.critic is not None:
                info["value"] = self.critic(features)[..., 0]
            return multinomial(logits.softmax(-1)), (), info

    return Actor()

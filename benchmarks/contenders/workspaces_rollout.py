"""plangym_like's workspaces: what the BBRL contender does, by our names."""

from __future__ import annotations

from typing import Any

from contenders import collecting
from contenders.contract import Job, Work

PACKAGES = ("plangym_like", "torch", "gymnasium", "numpy")


def open_job(job: Job) -> Work:
    """Open the environments in this process, as ParallelGymAgent does."""
    from functools import partial

    import torch

    from plangym_like.batchers.workspaces import (
        Agent,
        Agents,
        ParallelGymAgent,
        TemporalAgent,
        Workspace,
        make_env,
    )

    torch.set_num_threads(1)

    class Policy(Agent):
        def __init__(self) -> None:
            super().__init__()
            self.model = collecting.make_policy()

        def forward(self, t: int, **options: Any) -> None:
            logits = self.model(self.get(("env/env_obs", t)))
            self.set(("action", t), torch.multinomial(logits.softmax(-1), 1)[:, 0])

    envs = ParallelGymAgent(partial(make_env, job.env_id, autoreset=True), job.count).seed(0)
    agent = TemporalAgent(Agents(envs, Policy()))
    workspace = Workspace()
    with torch.no_grad():
        agent(workspace, n_steps=collecting.STEPS + 1)

    @torch.no_grad()
    def step(count: int) -> int:
        workspace.zero_grad()
        workspace.copy_n_last_steps(1)
        agent(workspace, t=1, n_steps=collecting.STEPS)
        assert workspace["env/env_obs"].shape[:2] == (collecting.STEPS + 1, job.count)
        return job.count * collecting.STEPS

    return Work(step, bool, {})

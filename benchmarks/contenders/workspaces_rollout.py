"""plangym_like's workspaces: the same as the BBRL contender, with this package's classes."""

from __future__ import annotations

from typing import Any

from contenders import collecting
from contenders.contract import Job, Work

PACKAGES = ("plangym_like", "torch", "gymnasium", "numpy")


def open_job(job: Job) -> Work:
    """Open the environments in this process, as ParallelGymAgent does."""
    from plangym_like.batchers import workspaces

    return open_board(job, workspaces)


def open_board(job: Job, names: Any) -> Work:
    """Open the environments in this process, with the agents and the workspace of `names`."""
    from functools import partial

    import torch

    torch.set_num_threads(1)

    class Policy(names.Agent):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = collecting.make_policy()

        def forward(self, t: int, **options: Any) -> None:
            logits = self.model(self.get(("env/env_obs", t)))
            self.set(("action", t), torch.multinomial(logits.softmax(-1), 1)[:, 0])

    make_env = partial(names.make_env, job.env_id, autoreset=True)
    envs = names.ParallelGymAgent(make_env, job.count).seed(0)
    agent = names.TemporalAgent(names.Agents(envs, Policy()))
    workspace = names.Workspace()
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

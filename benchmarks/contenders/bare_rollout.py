"""The bare loop: Gymnasium's step and a torch policy, no bookkeeping, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

from contenders import collecting
from contenders.contract import Job, Work
from contenders.raw import Loops

PACKAGES = ("torch", "gymnasium", "ale-py", "numpy")


def open_job(job: Job, *, processes: int) -> Work:
    """Start the loops, each over its share of the environments."""
    return Loops("spawn", _open_share, job, processes)


def _open_share(job: Job, index: int, processes: int) -> Callable[[], int]:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    policy, lanes = collecting.make_policy(), job.count // processes
    envs = [collecting.make_env(job) for _ in range(lanes)]
    obs = np.stack([env.reset(seed=index * lanes + lane)[0] for lane, env in enumerate(envs)])

    @torch.no_grad()
    def do_share() -> int:
        for _ in range(collecting.STEPS):
            logits = policy(torch.from_numpy(obs))
            actions = torch.multinomial(logits.softmax(-1), 1)[:, 0].tolist()
            for lane, env in enumerate(envs):
                obs[lane], _, terminated, truncated, _ = env.step(actions[lane])
                if terminated or truncated:
                    obs[lane] = env.reset()[0]
        return lanes * collecting.STEPS

    return do_share

"""The bare loop: Gymnasium's step and a torch policy, no bookkeeping, in processes of their own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from contenders import collecting
from contenders.contract import Job, Work
from contenders.raw import _RawWork

PACKAGES = ("torch", "gymnasium", "ale-py", "numpy")


def open_job(job: Job, *, processes: int = 2, alone: bool = False) -> Work:
    """Start the loops, each over its share of the environments; `alone`: only one of them."""
    context = multiprocessing.get_context("spawn")
    loops = []
    lanes = job.count // processes
    for index in range(1 if alone else processes):
        near, far = context.Pipe()
        process = context.Process(target=_serve, args=(far, job, index, lanes), daemon=True)
        process.start()
        far.close()
        loops.append((process, near))
    for _, near in loops:
        near.recv()

    def close() -> None:
        for process, near in loops:
            near.send(None)
            process.join()

    return _RawWork([near for _, near in loops], close, {})


def _serve(pipe: Connection, job: Job, index: int, lanes: int) -> None:
    step = _open_loop(job, index, lanes)
    step()
    pipe.send("ready")
    while True:
        seconds = pipe.recv()
        if seconds is None:
            return
        transitions = 0
        start = time.perf_counter()
        end = start
        while end - start < seconds:
            for _ in range(collecting.STEPS):
                step()
            transitions += lanes * collecting.STEPS
            end = time.perf_counter()
        pipe.send((transitions, end - start))


def _open_loop(job: Job, index: int, lanes: int) -> Callable[[], None]:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    policy = collecting.make_policy()
    envs = [collecting.make_env(job) for _ in range(lanes)]
    obs = np.stack([env.reset(seed=index * lanes + lane)[0] for lane, env in enumerate(envs)])

    @torch.no_grad()
    def step() -> None:
        logits = policy(torch.from_numpy(obs))
        actions = torch.multinomial(logits.softmax(-1), 1)[:, 0].tolist()
        for lane, env in enumerate(envs):
            obs[lane], _, terminated, truncated, _ = env.step(actions[lane])
            if terminated or truncated:
                obs[lane] = env.reset()[0]

    return step

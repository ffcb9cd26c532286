"""EnvPool: environments in C++ on threads; they step forward and cannot be given states."""

from __future__ import annotations

from typing import Any

from contenders.contract import CannotDo, Job, Work
from contenders.gymnasium import NUM_DRAWS, draw_actions

PACKAGES = ("envpool", "gymnasium", "numpy")


def open_job(job: Job, *, num_envs: int, num_threads: int) -> Work:
    """Open ``num_envs`` environments on ``num_threads`` threads, all stepped at every call."""
    if job.obs_type == "ram":
        raise CannotDo("EnvPool has no RAM observations")
    import envpool
    import numpy as np

    options: dict[str, Any] = {}
    name = job.env_id
    if job.atari:
        name = job.env_id.removeprefix("ALE/")
        # The whole screen in colour, one frame a step: what the others do.
        options = {
            "frame_skip": 1,
            "stack_num": 1,
            "gray_scale": False,
            "img_height": 210,
            "img_width": 160,
            "repeat_action_probability": 0.0,
            "noop_max": 1,
            "use_fire_reset": False,
        }
    envs = envpool.make_gymnasium(name, num_envs=num_envs, num_threads=num_threads, **options)
    envs.reset()
    draws = draw_actions(int(envs.action_space.n), num_envs).astype(np.int32)
    turn = 0

    def step(count: int) -> int:
        nonlocal turn
        turn = (turn + 1) % NUM_DRAWS
        envs.step(draws[turn])
        return num_envs

    return Work(step=step, close=envs.close)

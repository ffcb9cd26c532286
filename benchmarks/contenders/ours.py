"""plangym_like itself."""

from __future__ import annotations

import time
from typing import Any

import far_node

from contenders import walks
from contenders.contract import Job, Work, summarise

PACKAGES = ("plangym_like", "gymnasium", "ale-py", "numpy")
# What workers of a new environment get to start.
START_SECONDS = 1.0
_ROOTS: dict[Job, tuple[Any, int]] = {}


def open_job(job: Job, *, n_workers: int | None, **where: Any) -> Work:
    """Open our environment, its frameskip 1 on Atari as everybody's."""
    import numpy as np

    env = make(job, n_workers=n_workers, **where)
    states, num_actions = _roots(env, job)
    actions = walks.batch_actions(num_actions, job.count)
    slices: dict[int, tuple[Any, Any]] = {job.count: (actions, states)}

    def step(count: int) -> int:
        if count not in slices:
            slices[count] = np.array(actions[:count]), np.array(states[:count])
        some_actions, some_states = slices[count]
        env.step_batch(some_actions, states=some_states)
        return count

    _, observations, rewards, _, _, _ = env.step_batch(actions, states=states)
    return Work(step=step, close=env.close, evidence=summarise(observations, rewards))


def make(job: Job, *, n_workers: int | None, far: bool = False, **where: Any) -> Any:
    """Make the environment; `where` may name a cluster, `far`: one whose cores are elsewhere."""
    import plangym_like

    if far:
        assert n_workers is not None
        far_node.start(n_workers, where["object_store_memory"])
    options: dict[str, Any] = {"frameskip": 1, "obs_type": job.obs_type} if job.atari else {}
    env = plangym_like.make(job.env_id, n_workers=n_workers, **options, **where)
    if where.get("ray"):
        env.wait_ready(60)
    return env


def first_batch(env: Any, job: Job) -> None:
    """Do the first batch of a fresh environment."""
    state, _, _ = env.reset(seed=walks.SEED)
    env.step_batch([0] * job.count, states=state)


def time_batches(
    job: Job, *, n_workers: int | None, sizes: list[int], most_dt: int, warm: int
) -> float:
    """Return the seconds that batches of these sizes take on a new environment.

    Its workers have had a second to start, and `warm` batches have run before. Each row has a `dt`
    of its own, from 1 to `most_dt`; if that is 1, no `dt` is given.
    """
    import numpy as np

    if job not in _ROOTS:
        with make(job, n_workers=None) as env:
            _ROOTS[job] = _roots(env, job)
    states, num_actions = _ROOTS[job]
    rng = np.random.default_rng(walks.SEED)
    batches = [
        (
            rng.integers(0, num_actions, size),
            states[rng.integers(0, len(states), size)],
            rng.integers(1, most_dt + 1, size) if most_dt > 1 else 1,
        )
        for size in sizes
    ]
    with make(job, n_workers=n_workers) as env:
        env.reset(seed=walks.SEED)
        time.sleep(START_SECONDS)
        for _ in range(warm):
            env.step_batch(*batches[0])
        begun = time.perf_counter()
        for batch in batches:
            env.step_batch(*batch)
        return time.perf_counter() - begun


def _roots(env: Any, job: Job) -> tuple[Any, int]:
    import numpy as np

    num_actions = int(env.action_space.n)
    roots = []
    if job.atari:
        env.reset(seed=walks.SEED)
        for frame, action in enumerate(
            walks.walk_actions(num_actions, walks.atari_walk_length(job.count)).tolist()
        ):
            if walks.is_sampled(frame):
                roots.append(env.get_state())
            env.step(action)
    else:
        steps = walks.walk_actions(num_actions, walks.CART_POLE_STEPS).tolist()
        for seed in range(job.count):
            env.reset(seed=seed)
            for action in steps:
                env.step(action)
            roots.append(env.get_state())
    return np.stack(roots), num_actions

"""plangym_like itself."""

from __future__ import annotations

import functools
import logging
from typing import Any

from contenders import robots, walks
from contenders.contract import Job, Work, summarise

PACKAGES = ("plangym_like", "gymnasium", "ale-py", "mujoco", "dm-control", "numpy")


def open_job(
    job: Job, *, n_workers: int | None, single: bool = False, horizon: int = 0, **where: Any
) -> Work:
    """Open our environment, its frameskip 1 on Atari as everybody's.

    `single`: without batches; `horizon`: a batch is as many plans of so many steps.
    """
    import numpy as np

    env = make(job, n_workers=n_workers, **where)
    actions, states = _rows(env, job)
    if single:
        return Work(walks.single_steps(env, actions.tolist(), list(states)), env.close)
    if horizon:
        sample = env.action_space.sample
        plans = np.stack([[sample() for _ in range(horizon)] for _ in range(job.count)])
        return Work(lambda count: int(env.rollout_batch(plans, states).rewards.size), env.close)
    slices: dict[int, tuple[Any, Any]] = {job.count: (actions, states)}

    def step(count: int) -> int:
        if count not in slices:
            slices[count] = np.array(actions[:count]), np.array(states[:count])
        some_actions, some_states = slices[count]
        env.step_batch(some_actions, states=some_states)
        return count

    _, observations, rewards, _, _, _ = env.step_batch(actions, states=states)
    return Work(step=step, close=env.close, evidence=summarise(observations, rewards))


def make(
    job: Job, *, n_workers: int | None, far: bool = False, bare: bool = False, **where: Any
) -> Any:
    """Make the environment; `where` may name a cluster, `far`: one whose cores are elsewhere.

    `bare`: an environment of the robot's XML file and a reward of our own.
    """
    import plangym_like

    if bare:
        import gymnasium

        robot: Any = gymnasium.make(job.env_id).unwrapped
        return plangym_like.make_mujoco(
            robot.fullpath,
            reward=lambda data: data.qvel[:, 0] - 0.1 * (data.ctrl**2).sum(axis=1),
            n_substeps=robot.frame_skip,
            n_workers=n_workers,
        )
    if far:
        assert n_workers is not None
        start_far_node(n_workers, where["object_store_memory"])
    options: dict[str, Any] = {"frameskip": 1, "obs_type": job.obs_type} if job.atari else {}
    env = plangym_like.make(job.env_id, n_workers=n_workers, **options, **where)
    if where.get("ray"):
        env.wait_ready(60)
    return env


@functools.cache
def start_far_node(cores: int, store_nbytes: int) -> None:
    """Start a Ray cluster of two nodes, the one of this program without cores.

    Both are processes of this machine, with two object stores. They end with the program.
    """
    import atexit

    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": store_nbytes, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    atexit.register(cluster.shutdown)
    cluster.add_node(num_cpus=cores, object_store_memory=store_nbytes)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    atexit.register(ray.shutdown)


def _rows(env: Any, job: Job) -> tuple[Any, Any]:
    """Return the actions and the states of a batch."""
    import numpy as np

    def reset(seed: int) -> None:
        env.reset(seed=seed)

    if not hasattr(env.action_space, "n"):
        states, actions = robots.walk(
            job.count, env.action_space, reset, lambda a: env.step(a).terminated, env.get_state
        )
        return actions, np.stack(states)
    num_actions = int(env.action_space.n)
    if job.atari:
        reset(walks.SEED)
        states = walks.atari_states(num_actions, job.count, env.get_state, env.step)
    else:
        states = walks.classic_states(num_actions, job.count, reset, env.get_state, env.step)
    return walks.batch_actions(num_actions, job.count), np.stack(states)

"""The floor: bare simulator loops without any library around them, one in each process.

On Atari: ``restoreState``, ``act``, the observation into one buffer that is used again and again,
``cloneState``. On classic control: Gymnasium's own environment, its state set and stepped.
"""

from __future__ import annotations

import copy
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from contenders.contract import Job, Work, summarise

PACKAGES = ("gymnasium", "ale-py", "numpy")
Row = Callable[[int], tuple[Any, float]]


def open_job(job: Job, *, processes: int) -> Work:
    """Start the loops; each takes its share of the batch's rows."""
    context = multiprocessing.get_context("fork")
    loops = []
    for index in range(processes):
        near, far = context.Pipe()
        process = context.Process(target=_serve, args=(far, job, index, processes), daemon=True)
        process.start()
        far.close()
        loops.append((process, near))
    for _, near in loops:
        near.recv()

    def close() -> None:
        for process, near in loops:
            # Said, not shown by closing: with fork, the next loop holds a copy of this end.
            near.send(None)
            process.join()
            near.close()

    row = _open_row(job)
    # Copies, since the loop fills one buffer again and again.
    results = [copy.deepcopy(row(index)) for index in range(job.count)]
    evidence = summarise([obs for obs, _ in results], [reward for _, reward in results])
    return _RawWork([near for _, near in loops], close, evidence)


class _RawWork(Work):
    """Loops that run freely for the time given, so that none ever waits for another."""

    def __init__(
        self, pipes: list[Connection], close: Callable[[], None], evidence: dict[str, float]
    ) -> None:
        super().__init__(step=lambda count: 0, close=close, evidence=evidence)
        self._pipes = pipes

    def measure(self, seconds: float, count: int) -> tuple[int, float]:
        """Return transitions of all loops within ``seconds``."""
        for pipe in self._pipes:
            pipe.send(seconds)
        results = [pipe.recv() for pipe in self._pipes]
        total = sum(transitions for transitions, _ in results)
        rate = sum(transitions / taken for transitions, taken in results)
        return total, total / rate


def _serve(pipe: Connection, job: Job, index: int, processes: int) -> None:
    row = _open_row(job)
    mine = range(index, job.count, processes)
    pipe.send("ready")
    while True:
        seconds = pipe.recv()
        if seconds is None:
            return
        for position in mine:
            row(position)
        transitions = 0
        start = time.perf_counter()
        end = start
        while end - start < seconds:
            for position in mine:
                row(position)
            transitions += len(mine)
            end = time.perf_counter()
        pipe.send((transitions, end - start))


def _open_row(job: Job) -> Row:
    return _open_atari(job) if job.atari else _open_classic(job)


def _open_atari(job: Job) -> Row:
    import ale_py
    import gymnasium as gym
    import numpy as np

    from contenders import walks

    gym.register_envs(ale_py)
    env = gym.make(
        job.env_id,
        frameskip=1,
        repeat_action_probability=0.0,
        obs_type=job.obs_type,
        disable_env_checker=True,
    )
    env.reset(seed=walks.SEED)
    ale = env.unwrapped.ale  # type: ignore[attr-defined]
    choices = list(ale.getMinimalActionSet())
    states = []
    for frame, action in enumerate(
        walks.walk_actions(len(choices), walks.atari_walk_length(job.count))
    ):
        if walks.is_sampled(frame):
            states.append(ale.cloneState())
        ale.act(choices[action])
    actions = [choices[action] for action in walks.batch_actions(len(choices), job.count)]
    if job.obs_type == "ram":
        buffer = np.empty(ale.getRAMSize(), np.uint8)
        read = ale.getRAM
    else:
        buffer = np.empty((*ale.getScreenDims(), 3), np.uint8)
        read = ale.getScreenRGB

    def row(index: int) -> tuple[Any, float]:
        ale.restoreState(states[index])
        reward = ale.act(actions[index])
        read(buffer)
        ale.cloneState()
        return buffer, reward

    return row


def _open_classic(job: Job) -> Row:
    states, num_actions = classic_states(job)

    import gymnasium as gym

    from contenders import walks

    env: Any = gym.make(job.env_id, disable_env_checker=True).unwrapped
    env.reset(seed=walks.SEED)
    actions = walks.batch_actions(num_actions, job.count).tolist()

    def row(index: int) -> tuple[Any, float]:
        env.state = states[index]
        env.steps_beyond_terminated = None
        obs, reward, _, _, _ = env.step(actions[index])
        return obs, reward

    return row


def classic_states(job: Job) -> tuple[list[tuple[float, ...]], int]:
    """Return the states of ``count`` seeded episodes after a few steps, and the action count."""
    import gymnasium as gym

    from contenders import walks

    env: Any = gym.make(job.env_id, disable_env_checker=True).unwrapped
    num_actions = int(env.action_space.n)
    steps = walks.walk_actions(num_actions, walks.CART_POLE_STEPS).tolist()
    states = []
    for seed in range(job.count):
        env.reset(seed=seed)
        for action in steps:
            env.step(action)
        states.append(tuple(float(value) for value in env.state))
    return states, num_actions

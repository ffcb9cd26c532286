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
from contenders.gymnasium import Constructor

PACKAGES = ("gymnasium", "ale-py", "numpy")
Row = Callable[[int], tuple[Any, float]]


def open_job(job: Job, *, processes: int) -> Work:
    """Start the loops; each takes its share of the batch's rows."""
    loops = Loops("fork", _open_share, job, processes)
    row = _open_row(job)
    # Copies, since the loop fills one buffer again and again.
    results = [copy.deepcopy(row(index)) for index in range(job.count)]
    loops.evidence = summarise([obs for obs, _ in results], [reward for _, reward in results])
    return loops


class Loops(Work):
    """Loops in processes that run freely for the time given, so that none waits for another.

    ``open_share(job, index, processes)`` returns what does the share of one of `processes`, and
    returns how many transitions that was.
    """

    def __init__(
        self,
        start_method: str,
        open_share: Callable[[Job, int, int], Callable[[], int]],
        job: Job,
        processes: int,
    ) -> None:
        super().__init__(step=lambda count: 0, close=self._end)
        context: Any = multiprocessing.get_context(start_method)
        self._processes, self._pipes = [], []
        for index in range(processes):
            near, far = context.Pipe()
            arguments = far, open_share, job, index, processes
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            far.close()
            self._processes.append(process)
            self._pipes.append(near)
        for pipe in self._pipes:
            pipe.recv()

    def _end(self) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            # Said, not shown by closing: with fork, the next loop holds a copy of this end.
            pipe.send(None)
            process.join()
            pipe.close()

    def measure(self, seconds: float, count: int) -> tuple[int, float]:
        """Return transitions of all loops within ``seconds``."""
        for pipe in self._pipes:
            pipe.send(seconds)
        results = [pipe.recv() for pipe in self._pipes]
        total = sum(transitions for transitions, _ in results)
        rate = sum(transitions / taken for transitions, taken in results)
        return total, total / rate


def _serve(pipe: Connection, open_share: Any, *arguments: Any) -> None:
    do_share = open_share(*arguments)
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        do_share()
        transitions = 0
        start = time.perf_counter()
        end = start
        while end - start < seconds:
            transitions += do_share()
            end = time.perf_counter()
        pipe.send((transitions, end - start))


def _open_share(job: Job, index: int, processes: int) -> Callable[[], int]:
    row, mine = _open_row(job), range(index, job.count, processes)

    def do_share() -> int:
        for position in mine:
            row(position)
        return len(mine)

    return do_share


def _open_row(job: Job) -> Row:
    return _open_atari(job) if job.atari else _open_classic(job)


def _open_atari(job: Job) -> Row:
    import numpy as np

    from contenders import walks

    env: Any = Constructor(job)()
    env.reset(seed=walks.SEED)
    ale = env.unwrapped.ale
    choices = list(ale.getMinimalActionSet())
    states = walks.atari_states(
        len(choices), job.count, ale.cloneState, lambda action: ale.act(choices[action])
    )
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
    import gymnasium as gym

    from contenders import walks

    env: Any = gym.make(job.env_id, disable_env_checker=True).unwrapped
    env.reset(seed=walks.SEED)
    states = classic_states(job)
    actions = walks.batch_actions(int(env.action_space.n), job.count).tolist()

    def row(index: int) -> tuple[Any, float]:
        env.state = states[index]
        env.steps_beyond_terminated = None
        obs, reward, _, _, _ = env.step(actions[index])
        return obs, reward

    return row


def classic_states(job: Job) -> list[tuple[float, ...]]:
    """Return the states of ``count`` seeded episodes after a few steps."""
    import gymnasium as gym

    from contenders import walks

    env: Any = gym.make(job.env_id, disable_env_checker=True).unwrapped
    return walks.classic_states(
        int(env.action_space.n),
        job.count,
        lambda seed: env.reset(seed=seed),
        lambda: tuple(float(value) for value in env.state),
        env.step,
    )

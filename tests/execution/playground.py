"""Environments for workers to step: quick ones, odd ones, and ones that do harm on request."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from plangym_like.batch.arrays import Outcome
from plangym_like.batch.simulator import Simulator
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.execution.process_executor import CostModel
from plangym_like.states.rows import Row


class CounterSimulator(Simulator):
    """A number that every action scrambles; row i of a batch is known to a trap by its action.

    Parameters
    ----------
    label : str
        Part of what its states mean.
    trap : callable, optional
        Called with the action before each step.
    num_actions : int
        The number of actions.
    """

    family = "TOYS"
    payload_nbytes = 16

    def __init__(
        self,
        label: str = "counter",
        *,
        trap: Callable[[int], None] | None = None,
        num_actions: int = 4096,
        frameskip: int | None = None,
    ) -> None:
        self.label, self._trap = label, trap
        self.action_space = spaces.Discrete(num_actions)
        self.observation_space = spaces.Box(0, 255, (4, 2), np.uint8)
        self.columns = {"total": ((), np.dtype(np.int64))}
        self.frameskip = frameskip or 1
        self.env = gymnasium.Env()
        self._words = np.zeros(2, np.uint64)

    def fingerprint_fields(self) -> Mapping[str, Any]:
        return {"label": self.label}

    def read(self, payload: Row) -> None:
        payload[:] = self._words.view(np.uint8)

    def write(self, payload: Row) -> None:
        self._words = payload.copy().view(np.uint64)

    def reseed(self, seed: int) -> None:
        self._words[1] = seed

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._words[:] = 0 if seed is None else seed, 0
        return self._observe(), {}

    def step(self, action: Any, dt: int) -> Outcome:
        if self._trap is not None:
            self._trap(int(action))
        count, noise = (int(word) for word in self._words)
        frames = 0
        for _ in range(dt):
            frames += 1
            count = (count * 6364136223846793005 + 2 * int(action) + 1 + noise) % (1 << 62)
            if count % 11 == 0:
                break
        self._words[0] = count
        info = {"total": count}
        if count % 3 == 0:
            info["divisible"] = f"{count} by 3"
        return self._observe(), count % 1000 / 7, count % 11 == 0, count % 13 == 0, info, frames

    def _observe(self) -> Any:
        return self._words[:1].view(np.uint8).reshape(4, 2).copy()

    def image(self) -> Any:
        return np.zeros((2, 2, 3), np.uint8)


class CounterEnv(FamilyEnv):
    """Plans over a `CounterSimulator`; its name is the simulator's label."""

    simulator_class = CounterSimulator


class Trap:
    """A trap that does something at some actions, each time they come or only the first time.

    Parameters
    ----------
    harm : callable
        What to do, given the action.
    actions : sequence of int
        When.
    folder : Path, optional
        Where it is noted that an action's harm has been done; without it, it is done every time.
    """

    def __init__(
        self, harm: Callable[[int], None], actions: Sequence[int], folder: Path | None = None
    ) -> None:
        self.harm, self._actions, self._folder = harm, frozenset(actions), folder
        self._owner = os.getpid()

    def __call__(self, action: int) -> None:
        if action in self._actions and self.goes_off(action):
            self.harm(action)

    def goes_off(self, action: int) -> bool:
        """Return whether harm is due, which makes it the last time where it is done once."""
        if os.getpid() == self._owner:
            return False
        if self._folder is None:
            return True
        try:
            os.close(os.open(self._folder / f"{action}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def kill_itself(action: int) -> None:
    """Die as if somebody had run ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave(action: int) -> None:
    """End without a word."""
    os._exit(7)


def read_nowhere(action: int) -> None:
    """Crash in C."""
    # Libraries such as pygame install a handler that aborts the process instead.
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def refuse(action: int) -> None:
    """Raise an ordinary exception."""
    raise ArithmeticError(f"action {action} is refused")


def get_stuck(action: int) -> None:
    """Stay here, in C and holding the GIL."""
    ctypes.PyDLL(None).sleep(600)


class Meeting:
    """Harm, or none: a worker says that it is here, and waits until the test lets it go on."""

    def __init__(self, folder: Path) -> None:
        self._paths = [str(folder / name) for name in ("reports", "permits")]
        for path in self._paths:
            os.mkfifo(path)
        # Opened for both, so that neither side waits for the other in opening.
        self._reports, self._permits = (os.open(path, os.O_RDWR) for path in self._paths)
        self._owner = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": self._paths, "_owner": self._owner}

    def __call__(self, action: int) -> None:
        self.report()
        with open(self._paths[1], "rb", buffering=0) as permits:
            permits.read(1)

    def report(self) -> None:
        """Report this process, and the time."""
        with open(self._paths[0], "wb", buffering=0) as reports:
            reports.write(f"{os.getpid():010d} {time.monotonic():029.9f}".encode())

    def next_report(self) -> tuple[int, float]:
        """Wait until a worker is here, and return its pid and when it came."""
        if not select.select([self._reports], [], [], 100)[0]:
            raise TimeoutError("no worker has come")
        words = os.read(self._reports, 40).split()
        return int(words[0]), float(words[1])

    def let_go(self, number: int = 1) -> None:
        """Let so many workers go on."""
        os.write(self._permits, bytes(number))

    def close(self) -> None:
        """Close the pipes; processes that wait go on."""
        os.close(self._reports)
        os.close(self._permits)


class PressCtrlC(Meeting):
    """Interrupts the test's own process, then waits to be let go."""

    def __call__(self, action: int) -> None:
        self.report()
        os.kill(self._owner, signal.SIGINT)
        with open(self._paths[1], "rb", buffering=0) as permits:
            permits.read(1)


class AlwaysSend(CostModel):
    """Has every batch sent to workers, however cheap: tests try the way, not whether it pays."""

    def seconds_per_row(self, steps: float) -> float:
        return super().seconds_per_row(steps) or 1e-4

    def worth_sending(self, count: int, steps: float, *, workers: int) -> bool:
        return True

    def cheap(self, count: int, steps: float) -> bool:
        return False


def sending(env: Any) -> Any:
    """Return a `ParallelEnv` or `BatchEnv`, its workers ready and sent a share of every batch."""
    batch_env = env.batch_env
    batch_env.costs = AlwaysSend()
    batch_env.pool.wait_ready()
    return env

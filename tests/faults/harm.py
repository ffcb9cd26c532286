"""What is done to workers: kills at chosen moments, and rows that do harm."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from playground import CounterEnv, CounterSimulator, kill_itself

from plangym_like.batch.arrays import Outcome
from plangym_like.env import PlanEnv
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.processes import worker
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.wire import outgoing

LARGE = 1 << 16


def seconds_to_start() -> float:
    """Return how long a worker takes to start just now."""
    begun = time.monotonic()
    with ExternalProcess(partial(CounterEnv, "toy")) as process:
        process.wait_ready()
        return time.monotonic() - begun


def kill(process: ExternalProcess) -> bool:
    """Send SIGKILL as a stranger would; return whether there was somebody to get it."""
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended
        return False
    return True


class Killer:
    """Kills a random worker again and again, from another thread, while the block runs.

    Not before a row has been begun since the last time: where a crowded machine takes longer to
    start a worker than there is between two kills, there would be no end.
    """

    def __init__(self, batch_env: Any, seconds: float, seed: int = 0) -> None:
        self._batch_env, self._seconds = batch_env, seconds
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._killed: set[int | None] = set()

    def _run(self) -> None:
        seen: set[Any] = set()
        while not self._over.wait(self._seconds):
            busy = [worker for worker in self._batch_env.workers if worker.busy]
            begun = {(worker.process.pid, worker.cursor) for worker in busy}
            if not any(cursor >= 0 for _, cursor in begun - seen):
                continue
            seen = begun
            number = self._random.randrange(len(self._batch_env))
            worker = self._batch_env[number]
            if kill(worker):
                self._killed.add(worker.pid)

    @property
    def kills(self) -> int:
        """How many workers were killed; a dead one gets signals until its end is noticed."""
        return len(self._killed)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Fuses:
    """Harm that each of a given number of workers does once: as many files, taken one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._made = 0

    def lay(self) -> None:
        """Make one more worker do harm."""
        (self._folder / f"{self._made}").touch()
        self._made += 1

    def left(self) -> int:
        """Return how many have not gone off."""
        return len(os.listdir(self._folder))

    def goes_off(self) -> bool:
        """Return whether it is this process's turn to do harm."""
        for name in os.listdir(self._folder):
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()
                return True
        return False


class VerboseSimulator(CounterSimulator):
    """A counter with so much to say of some rows that replies are long."""

    def step(self, action: Any, dt: int) -> Outcome:
        obs, reward, terminated, truncated, info, frames = super().step(action, dt)
        if info["total"] % 8 == 0:
            info["story"] = info["total"].to_bytes(8, "little") * 2500
        return obs, reward, terminated, truncated, info, frames


class VerboseEnv(FamilyEnv):
    """Plans over a `VerboseSimulator`."""

    simulator_class = VerboseSimulator


class Mortal:
    """Makes a `VerboseEnv` that, in workers, dies at the moments that its fuses are laid for."""

    def __init__(self, folder: Path) -> None:
        self.at_start = Fuses(folder / "start")
        self.in_reply = Fuses(folder / "reply")
        self.in_step = Fuses(folder / "step")
        self._owner = os.getpid()

    def __call__(self, name: str, **kwargs: Any) -> PlanEnv:
        if os.getpid() == self._owner:
            return VerboseEnv(name, num_actions=1 << 40, **kwargs)
        if self.at_start.goes_off():
            kill_itself(0)
        worker.Worker._send = self._dying_send()  # type: ignore[method-assign]
        return VerboseEnv(name, num_actions=1 << 40, trap=self._trap, **kwargs)

    def _trap(self, action: int) -> None:
        # Actions count on within a batch, so this comes in the middle of some worker's rows.
        if action % 20 == 7 and self.in_step.goes_off():
            kill_itself(action)

    def _dying_send(self) -> Callable[[worker.Worker, int, int, bytes], None]:
        send, fuses = worker.Worker._send, self.in_reply

        def dying_send(self: worker.Worker, kind: int, request: int, payload: bytes) -> None:
            if len(payload) > LARGE and fuses.goes_off():
                data = b"".join(data for data, _ in outgoing(kind, request, payload))
                self._connection.sendall(data[: len(data) // 2])
                kill_itself(0)
            send(self, kind, request, payload)

        return dying_send


def overflow(action: int) -> None:
    """Run out of stack, in C: the parser of regular expressions calls itself for each bracket."""
    depth, extended = 1_000_000, 1
    text = b"(" * depth + b")" * depth
    ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(1024), text, extended)


def sleep(action: int) -> None:
    """Stay here without a word."""
    time.sleep(600)


def loop(action: int) -> None:
    """Stay here, and keep a core busy."""
    while True:
        pass


def dangerous(harms: list[Callable[[int], None]]) -> Callable[..., PlanEnv]:
    """Return what makes a counter whose last actions do `harms`, in workers only."""
    owner = os.getpid()

    def trap(action: int) -> None:
        if action >= 4096 and os.getpid() != owner:
            harms[action - 4096](action)

    def make(name: str, **kwargs: Any) -> PlanEnv:
        return CounterEnv(name, trap=trap, num_actions=4096 + len(harms), **kwargs)

    return make

"""Environments for lanes to step: quick ones, odd ones, and ones that do harm on request."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from plangym_like.plan_env import PlanEnv
from plangym_like.simulator import Outcome, Simulator
from plangym_like.states import Row
from plangym_like.transitions import BatchInfo

Trap = Callable[[int], None]


class CounterSimulator(Simulator):
    """A number that every action scrambles; row i of a batch is known to a trap by its action.

    Parameters
    ----------
    label : str
        Part of what its states mean.
    trap : callable, optional
        Called with the action before each step, in processes other than the one that made it.
    spaces_of : int
        The number of actions.
    """

    family = "TOYS"
    payload_nbytes = 16

    def __init__(
        self,
        label: str = "counter",
        *,
        trap: Trap | None = None,
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

    def meaning(self) -> Mapping[str, Any]:
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


class CounterEnv(PlanEnv):
    """Plans over a `CounterSimulator`; its name is the simulator's label."""

    simulator_class = CounterSimulator


class OnceThen:
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
        self._harm, self._actions, self._folder = harm, frozenset(actions), folder
        self._owner = os.getpid()

    def __call__(self, action: int) -> None:
        if action in self._actions and os.getpid() != self._owner and self._first(action):
            self._harm(action)

    def _first(self, action: int) -> bool:
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
    ctypes.string_at(0)


def refuse(action: int) -> None:
    """Raise an ordinary exception."""
    raise ArithmeticError(f"action {action} is refused")


class Block:
    """Harm: say in a named pipe who is in here, then stay, in C and holding the GIL."""

    def __init__(self, fifo: Path) -> None:
        self._fifo = str(fifo)

    def __call__(self, action: int) -> None:
        descriptor = os.open(self._fifo, os.O_WRONLY)
        os.write(descriptor, f"{os.getpid():010d}".encode())
        os.close(descriptor)
        ctypes.PyDLL(None).sleep(600)


class Reports:
    """The other end of `Block`'s pipe: waits for workers to come into their rows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "reports"
        os.mkfifo(self.path)
        self._descriptor = os.open(self.path, os.O_RDWR)

    def next_pid(self) -> int:
        """Wait until a worker is stuck in a row, and return its pid."""
        return int(os.read(self._descriptor, 10))

    def close(self) -> None:
        os.close(self._descriptor)


class Diary(gymnasium.Env[Any, Any]):
    """An environment whose observations and actions are nests of all kinds."""

    observation_space = spaces.Dict(
        page=spaces.Box(-1, 1, (2, 3), np.float32),
        date=spaces.Tuple((spaces.Discrete(31), spaces.MultiDiscrete([12, 100]))),
        flags=spaces.MultiBinary(3),
    )
    action_space = spaces.Dict(turn=spaces.Discrete(5), ink=spaces.Box(0, 1, (2,), np.float64))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.day, self.ink = 0, np.zeros(2)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.day += int(action["turn"])
        self.ink = (self.ink + action["ink"]) % 1
        luck = float(self.np_random.random())
        info = {"luck": luck} if self.day % 2 else {}
        return self._observe(), luck + self.day, self.day > 40, luck > 0.9, info

    def _observe(self) -> Any:
        page = np.full((2, 3), self.ink.sum() / 2, np.float32)
        date = (np.int64(self.day % 31), np.array([self.day % 12, self.day % 100]))
        return {"page": page, "date": date, "flags": np.array([self.day & 1, 1, 0], np.int8)}


class Pair(Diary):
    """One whose observations are a tuple of arrays."""

    observation_space = spaces.Tuple(
        (spaces.Box(-1, 1, (2, 3), np.float32), spaces.Dict(day=spaces.Discrete(31)))
    )

    def _observe(self) -> Any:
        return np.full((2, 3), self.ink.sum() / 2, np.float32), {"day": self.day % 31}


class Letter(Diary):
    """One whose observations are text, and whose actions are sequences."""

    observation_space = spaces.Text(20)
    action_space = spaces.Sequence(spaces.Discrete(6))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.day += sum(map(int, action))
        return self._observe(), self.day / 4, self.day > 60, False, {}

    def _observe(self) -> Any:
        return "abcdefghij"[: self.day % 10 + 1]


class Parcel(Letter):
    """One whose observations hold text beside numbers."""

    observation_space = spaces.Dict(
        label=spaces.Text(20), contents=spaces.Sequence(spaces.Box(0, 1, (2,), np.float32))
    )
    action_space = spaces.Tuple((spaces.Discrete(6), spaces.Discrete(3)))

    def _observe(self) -> Any:
        contents = tuple(np.full(2, k / 9, np.float32) for k in range(self.day % 4))
        return {"label": "abcdefghij"[: self.day % 10 + 1], "contents": contents}


def batch_bytes(result: Any) -> list[Any]:
    """Return all that a batch's result holds, in a form that ``==`` compares bit by bit."""
    if result is None or isinstance(result, (str, int, float, bool)):
        return [result]
    if isinstance(result, np.ndarray):
        if result.dtype == object:
            return [batch_bytes(item) for item in result]
        return [result.dtype.str, result.shape, result.tobytes()]
    if isinstance(result, np.generic):
        return [result.dtype.str, result.tobytes()]
    if isinstance(result, BatchInfo):
        keys = sorted(result.keys())
        return [(key, batch_bytes(result[key]), batch_bytes(result.mask(key))) for key in keys] + [
            batch_bytes(dict(sorted(row.items()))) for row in result
        ]
    if isinstance(result, Mapping):
        return [(key, batch_bytes(value)) for key, value in result.items()]
    return [batch_bytes(item) for item in result]

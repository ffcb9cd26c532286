"""Measure what it costs to step an environment from a state, beside its own step.

Run it from anywhere::

    python benchmarks/saving.py           # writes docs/figures/saving.*
    python benchmarks/saving.py --quick   # a rough look, writes nothing

Figures are medians in microseconds of CPU time, of slices that are measured in turn; see
`plangym_like.cli.saving`. ``plangym-like bench`` shows them for any environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from harness import machine, measured_on, parser, report, table

import plangym_like
from plangym_like.cli import saving


class Game2048(gymnasium.Env[Any, Any]):
    """2048 in plain Python, as one writes it for oneself."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Box(0, 17, (4, 4), np.int8)

    def __init__(self) -> None:
        self.board = np.zeros((4, 4), np.int8)
        self.score = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.board = np.zeros((4, 4), np.int8)
        self.score = 0
        self._add_tile()
        self._add_tile()
        return self.board.copy(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        turned = np.rot90(self.board, action)
        moved, gained = [], 0
        for row in turned.tolist():
            tiles = [tile for tile in row if tile]
            merged = []
            while tiles:
                tile = tiles.pop(0)
                if tiles and tiles[0] == tile:
                    tiles.pop(0)
                    tile += 1
                    gained += 1 << tile
                merged.append(tile)
            moved.append(merged + [0] * (4 - len(merged)))
        board = np.rot90(np.array(moved, np.int8), -action)
        if not np.array_equal(board, self.board):
            self.board = np.ascontiguousarray(board)
            self.score += gained
            self._add_tile()
        over = bool(self.board.all()) and not self._can_merge()
        return self.board.copy(), float(gained), over, False, {"score": self.score}

    def _can_merge(self) -> bool:
        across, down = self.board[:, 1:] == self.board[:, :-1], self.board[1:] == self.board[:-1]
        return bool(across.any() or down.any())

    def _add_tile(self) -> None:
        free = np.argwhere(self.board == 0)
        if len(free):
            at = free[self.np_random.integers(len(free))]
            self.board[tuple(at)] = 1 if self.np_random.random() < 0.9 else 2


_JOBS: dict[str, Any] = {
    "an own 2048 in Python": Game2048,
    "MiniGrid-DoorKey-8x8-v0": "minigrid:MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-FourRooms-v0": "minigrid:MiniGrid-FourRooms-v0",
    "LunarLander-v3": "LunarLander-v3",
    "FrozenLake-v1": "FrozenLake-v1",
}


def main() -> None:
    """Measure, print a table, and write it unless ``--quick`` is given."""
    chosen, here = parser(__doc__).parse_args(), machine()
    found: dict[str, Any] = {}
    for name, source in _JOBS.items():
        with plangym_like.make(source, audit="off") as env:
            calls = saving.calls_of(env, source)
            figures = saving.measure(calls, 2.0 if chosen.quick else 10.0)
            way = env.snapshot
        found[name] = {"way": way, **figures}
        told = "  ".join("-" if each is None else f"{each:.1f}" for each in figures.values())
        print(f"{name:28s} {way:8s} {told}", flush=True)
    lines = [
        [
            name,
            *("" if each[key] is None else f"{each[key]:.0f}" for key in saving.COLUMNS),
            each["way"],
        ]
        for name, each in found.items()
    ]
    head = "Medians, in microseconds of CPU time; slices interleaved; without audits."
    rows = table(["environment", *saving.COLUMNS, "saved by"], lines)
    shown = "\n".join([f"{measured_on(here)}. {head}", "", *rows])
    report("saving", {"machine": here, "microseconds": found}, shown, quick=chosen.quick)


if __name__ == "__main__":
    main()

"""A small Go-Explore: remember every place that was reached, go back to one, explore from there.

    python examples/go_explore.py ALE/MontezumaRevenge-v5 --seconds 60

A place is a *cell*: the screen, shrunk to a few grey pixels of a few shades, so that what looks
alike is one cell. The archive holds, for each cell, the state row of the best visit. Going back is
no journey then: the row is simply stepped from. Cells that were chosen seldom are chosen more
often. (A. Ecoffet et al., "First return, then explore", Nature 590, 2021.)
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

import plangym_like


@dataclass
class Cell:
    """The best visit to a place: its state, the score there, the steps that it took."""

    state: np.ndarray
    score: float
    steps: int
    chosen: int = 0


def places(screens: np.ndarray, rows: int, columns: int, shades: int) -> list[bytes]:
    """Return the cell that each of `screens` ``(N, height, width)`` belongs to."""
    count, height, width = screens.shape
    tall, wide = height // rows, width // columns
    blocks = screens[:, : rows * tall, : columns * wide].reshape(count, rows, tall, columns, wide)
    small = blocks.mean(axis=(2, 4)) * shades // 256
    return [row.tobytes() for row in small.astype(np.uint8)]


def main() -> None:
    """Explore for a while, and report how much was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="ALE/MontezumaRevenge-v5", help="an Atari game")
    parser.add_argument("--seconds", type=float, default=60.0, help="explore for so long")
    parser.add_argument("--steps", type=int, default=25, help="actions from a cell on")
    parser.add_argument("--batch", type=int, default=64, help="cells explored side by side")
    parser.add_argument("--hold", type=int, default=6, help="longest hold of one action, in steps")
    parser.add_argument("--grid", type=int, nargs=3, default=(11, 8, 8), help="rows columns shades")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)

    with plangym_like.make(args.env, n_workers=os.cpu_count(), obs_type="grayscale") as env:
        state, screen, info = env.reset(seed=args.seed)
        archive = {places(screen[None], *args.grid)[0]: Cell(state, 0.0, 0)}
        best, lives, transitions = 0.0, info["lives"], 0
        rooms = {info["room"]} if "room" in info else set()
        begin = now = time.perf_counter()
        layout = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s{postfix}"
        with tqdm(total=args.seconds, bar_format=layout, mininterval=0.5) as bar:
            while now - begin < args.seconds:
                # Go: the row of a cell is all that it takes to be there.
                cells = list(archive.values())
                weights = np.array([1 / np.sqrt(1 + cell.chosen) for cell in cells])
                chosen = rng.choice(len(cells), args.batch, p=weights / weights.sum())
                for index in chosen:
                    cells[index].chosen += 1
                states = np.stack([cells[index].state for index in chosen])
                scores = np.array([cells[index].score for index in chosen])
                steps = np.array([cells[index].steps for index in chosen])
                # Explore, and remember what is new, or better than it was, or as good but earlier.
                for _ in range(args.steps):
                    actions = rng.integers(env.action_space.n, size=len(states))
                    dt = rng.integers(1, args.hold + 1, len(states))
                    step = env.step_batch(actions, states, dt=dt)
                    transitions += len(states)
                    scores, steps = scores + step.rewards, steps + dt
                    # Whoever lost a life is let go: the archive holds lives worth living.
                    alive = ~(step.terminateds | step.truncateds | (step.infos["lives"] < lives))
                    states, scores, steps = step.states[alive], scores[alive], steps[alive]
                    if not len(states):
                        break
                    found = places(step.obs[alive], *args.grid)
                    for place, *visit in zip(found, states, scores, steps, strict=True):
                        cell = archive.get(place)
                        if cell is None or (visit[1], -visit[2]) > (cell.score, -cell.steps):
                            archive[place] = Cell(visit[0].copy(), float(visit[1]), int(visit[2]))
                    best = max(best, float(scores.max()))
                    if rooms:
                        rooms.update(step.infos["room"][alive].tolist())
                before, now = now, time.perf_counter()
                rate = transitions / (now - begin)
                bar.set_postfix_str(
                    f"{len(archive):,} cells, best score {best:,.0f}, {rate:,.0f} transitions/s",
                    refresh=False,
                )
                bar.update(min(now - before, args.seconds - bar.n))
    print(f"cells:      {len(archive):,}")
    print(f"best score: {best:,.0f}")
    if rooms:
        print(f"rooms:      {', '.join(map(str, sorted(rooms)))}")


if __name__ == "__main__":
    main()

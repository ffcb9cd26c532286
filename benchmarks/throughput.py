"""Transitions per second of all contenders, on the same jobs, in one interleaved run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interleave import Contest, Entry, Figure

CORES = len(os.sched_getaffinity(0))
MS_PACMAN = "ALE/MsPacman-v5"
CART_POLE = "CartPole-v1"


@dataclass(frozen=True)
class Task:
    """One job with the title that tables and chart give it."""

    key: str
    title: str
    job: Mapping[str, Any]


TASKS = (
    Task(
        "mspacman_rgb",
        "MsPacman RGB, 1 frame a transition, 256 states",
        {"env_id": MS_PACMAN, "obs_type": "rgb", "count": 256},
    ),
    Task(
        "mspacman_ram",
        "MsPacman RAM, 1 frame a transition, 256 states",
        {"env_id": MS_PACMAN, "obs_type": "ram", "count": 256},
    ),
    Task(
        "cartpole",
        "CartPole, 1,024 states",
        {"env_id": CART_POLE, "obs_type": None, "count": 1024},
    ),
)


def entries(task: Task, *, quick: bool = False) -> list[Entry]:
    """Return who takes part; rivals enter in several ways, of which the best counts.

    ``quick`` leaves out the ways that are rarely the best.
    """
    atari = task.job["obs_type"] is not None
    found = [
        Entry("ours", f"plangym_like, {CORES} workers", "ours", "ours", {"n_workers": CORES}),
        Entry("ours_serial", "plangym_like, serial", "ours", "ours", {"n_workers": None}),
        Entry("raw", f"{CORES} raw loops at once", "raw", "raw", {"processes": CORES}),
        Entry("raw_one", "one raw loop", "raw", "raw", {"processes": 1}),
    ]
    if atari:
        label = f"{CORES} raw loops that keep results"
        found.append(Entry("raw_keep", label, "raw", "raw", {"processes": CORES, "keep": True}))
    for n_workers in (None, CORES) if quick else (None, CORES, 2 * CORES):
        name = "serial" if n_workers is None else f"{n_workers} workers"
        key = f"plangym_{n_workers or 'serial'}"
        options = {"n_workers": n_workers}
        found.append(Entry(key, f"plangym, {name}", "plangym", "states", options))
    num_sync = 16 if atari else 256
    num_processes = (8,) if quick else (CORES, 8)
    for kind, sizes in (("SyncVectorEnv", (num_sync,)), ("AsyncVectorEnv", num_processes)):
        for num_envs in sizes:
            found.append(
                Entry(
                    f"{kind}_{num_envs}",
                    f"Gymnasium {kind}, {num_envs} envs",
                    "gymnasium",
                    "forward",
                    {"kind": kind, "num_envs": num_envs},
                )
            )
    for num_envs in num_processes:
        found.append(
            Entry(
                f"SubprocVecEnv_{num_envs}",
                f"SB3 SubprocVecEnv, {num_envs} envs",
                "stable_baselines3",
                "forward",
                {"num_envs": num_envs},
            )
        )
    # More emulators in a pool make it no faster here, only slow to open.
    num_pooled = 64 if atari else 256
    for num_threads in (CORES,) if quick else (1, CORES):
        threads = f"{num_threads} thread{'s' * (num_threads > 1)}"
        found.append(
            Entry(
                f"envpool_{num_threads}",
                f"EnvPool, {num_pooled} envs, {threads}",
                "envpool",
                "forward",
                {"num_envs": num_pooled, "num_threads": num_threads},
            )
        )
    # On one core, two of the ways above are the same.
    return list({entry.key: entry for entry in found}.values())


def measure(
    task: Task,
    *,
    rounds: int,
    seconds: float,
    interpreters: Mapping[str, str],
    versions: dict[str, dict[str, str]],
    quick: bool = False,
) -> dict[str, Figure]:
    """Return the figures of one task, by the entries' keys."""
    contenders = entries(task, quick=quick)
    with Contest(contenders, task.job, interpreters=interpreters, versions=versions) as contest:
        contest.run(rounds=rounds, seconds=seconds)
    return contest.figures


def best(figures: Mapping[str, Figure], prefix: str) -> Figure | None:
    """Return the fastest of the figures whose key starts with ``prefix``."""
    candidates = [
        figure for key, figure in figures.items() if key.startswith(prefix) and figure.rates
    ]
    return max(candidates, key=lambda figure: figure.median or 0.0, default=None)


def same_work(figures: Mapping[str, Figure]) -> bool | None:
    """Say whether all who start from the given states found the same observations and rewards.

    ``None`` where fewer than two of them took part.
    """
    found = [figure.evidence for figure in figures.values() if figure.evidence]
    return None if len(found) < 2 else all(evidence == found[0] for evidence in found)

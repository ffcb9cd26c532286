"""MuJoCo and dm_control tasks, played by CEM, iCEM and MPPI; see `results.py`.

An episode is played in closed loop: each action is the first one of a new plan, and is held for
`dt` steps of the environment. Wall times include everything but opening the environment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import plangym_like
from plangym_like.planners import CEM, ICEM, MPPI, Planner, play

PLANNERS: dict[str, type[Planner]] = {"CEM": CEM, "ICEM": ICEM, "MPPI": MPPI}
STEPS = 1000


@dataclass(frozen=True)
class Task:
    """A task, the planner that plays it, and a return to reach in 1,000 steps, or None."""

    env_id: str
    planner: str
    plans: int
    options: dict[str, Any] = field(default_factory=dict)
    aim: float | None = None


_SHORT = {"horizon": 12, "batch": 30, "elites": 4, "beta": 1.0, "dt": 5}
TASKS = {
    task.env_id: task
    for task in (
        Task(
            "HalfCheetah-v5",
            "ICEM",
            100,
            {"horizon": 15, "batch": 40, "elites": 5, "beta": 0.25, "dt": 2},
            6000,
        ),
        Task("walker-walk", "MPPI", 24, {"horizon": 10, "batch": 24, "dt": 4}, 800),
        Task(
            "cartpole-swingup",
            "ICEM",
            100,
            {"horizon": 12, "batch": 30, "elites": 4, "beta": 1.0, "dt": 10},
            800,
        ),
        Task(
            "cheetah-run",
            "ICEM",
            150,
            {"horizon": 12, "batch": 50, "elites": 5, "beta": 1.0, "dt": 5},
            600,
        ),
        Task("finger-spin", "ICEM", 60, _SHORT),
        Task("reacher-easy", "ICEM", 60, _SHORT),
        Task("ball_in_cup-catch", "ICEM", 60, _SHORT),
        Task("Swimmer-v5", "ICEM", 60, {**_SHORT, "horizon": 20}),
    )
}


def play_task(task: Task, steps: int, n_workers: int | None, seed: int) -> dict[str, Any]:
    """Play one episode, and return its figures."""
    with plangym_like.make(task.env_id, n_workers=n_workers) as env:
        state = env.reset(seed=seed).state
        planner: Any = PLANNERS[task.planner](env, **task.options)
        budget = (task.plans + 1) * planner.horizon
        begun = time.perf_counter()
        episode = play(planner, steps // planner.dt, state, budget=budget, seed=seed, progress=True)
        wall = time.perf_counter() - begun
    spent = episode.spent
    return {
        "task": task.env_id,
        "planner": task.planner,
        "options": task.options,
        "plans": task.plans,
        "steps": len(episode) * planner.dt,
        "seed": seed,
        "return": round(episode.score, 1),
        "aim": task.aim if steps == STEPS else None,
        "seconds": round(wall, 2),
        "plans_per_second": round(len(episode) / wall, 2),
        "transitions_per_second": round(spent.transitions / wall),
        "frames_per_second": round(spent.frames / wall),
        "outside_env": round(1 - spent.seconds_in_env / spent.seconds, 4),
    }

"""Measure what fraction of a search each planner spends outside the environment.

    python benchmarks/planner_time.py           # all; writes docs/figures/planner_time.json and .md
    python benchmarks/planner_time.py --quick UCT IW    # a rough look; writes nothing

Each environment has two workers, and each planner plans for the same time, with the options in
``PLANNERS``. The time outside the environment is `plan.spent.seconds` minus
`plan.spent.seconds_in_env`, the time in `step_batch` and `rollout_batch`.
"""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Any

from harness import parser, publish, table

import plangym_like
from plangym_like import planners

ENVS: dict[str, dict[str, Any]] = {
    "ALE/MsPacman-v5": {"obs_type": "ram"},
    "HalfCheetah-v5": {},
}
# Environment -> planner -> options.
PLANNERS: dict[str, dict[str, dict[str, Any]]] = {
    "ALE/MsPacman-v5": {
        "RandomShooting": {"horizon": 10, "dt": 4},
        "BeamSearch": {"dt": 4},
        "IW": {"dt": 4},
        "RolloutIW": {"dt": 4},
        "UCT": {"rollout": 10, "dt": 4},
        "OpenLoopMCTS": {"horizon": 10, "dt": 4},
        "PUCT": {"rollout": 10, "dt": 4},
        "FractalMonteCarlo": {},
        "GoExplore": {"dt": 4},
    },
    "HalfCheetah-v5": {
        "RandomShooting": {"horizon": 15},
        "FractalMonteCarlo": {},
        "CEM": {"horizon": 15},
        "ICEM": {"horizon": 15},
        "MPPI": {"horizon": 15},
    },
}
TITLES = ("environment", "planner", "transitions/s", "outside the environment", "most of it in")


def measure(env_id: str, name: str, seconds: float) -> dict[str, Any]:
    """Return what a planner did in `seconds`, and which function outside took longest."""
    options = dict(ENVS[env_id])
    if name == "GoExplore":
        options["obs_type"] = "grayscale"
    with plangym_like.make(env_id, n_workers=2, **options) as env:
        state = env.reset(seed=0).state
        make: Any = getattr(planners, name)
        planner = make(env, **PLANNERS[env_id][name])
        planner.plan(state, seconds=1.0, seed=1)  # until the workers are ready
        spent = planner.plan(state, seconds=seconds, seed=0).spent
        profile = cProfile.Profile()
        profile.runcall(planner.plan, state, seconds=seconds / 4, seed=0)
    return {
        "transitions_per_second": round(spent.transitions / spent.seconds),
        "outside": round(1 - spent.seconds_in_env / spent.seconds, 4),
        "most_in": _longest(profile),
    }


def _longest(profile: cProfile.Profile) -> str:
    """Return the function of the planners that took the most time without what it called."""
    stats: Any = pstats.Stats(profile)
    found = [
        (seconds, f"{Path(file).name}, {function}")
        for (file, _, function), (_, _, seconds, _, _) in stats.stats.items()
        if Path(file).parent.name == "planners"
    ]
    return max(found)[1]


def page(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the figures as a table in Markdown."""
    lines = []
    for env_id, rows in found.items():
        for name, row in rows.items():
            speed, part = f"{row['transitions_per_second']:,}", f"{row['outside']:.1%}"
            lines.append((env_id, name, speed, part, f"`{row['most_in']}`"))
    return "\n".join(table(TITLES, lines))


def main() -> None:
    """Measure, print, and write the figures if all planners were measured."""
    options = parser(__doc__)
    options.add_argument("planners", nargs="*", metavar="PLANNER")
    chosen = options.parse_args()
    seconds = 1.0 if chosen.quick else 8.0
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for env_id, wanted in PLANNERS.items():
        names = [name for name in wanted if not chosen.planners or name in chosen.planners]
        found[env_id] = {name: measure(env_id, name, seconds) for name in names}
    print(page(found))
    if not chosen.quick and not chosen.planners:
        publish("planner_time", found, page(found))


if __name__ == "__main__":
    main()

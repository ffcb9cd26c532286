"""How long a step of n environments takes: ours, Gymnasium's, and Stable-Baselines3's if installed.

Run it from anywhere::

    python benchmarks/vector.py                 # all jobs, writes docs/figures/vector.json
    python benchmarks/vector.py --quick cartpole half_cheetah

All contenders are stepped in turn in this process, slice by slice, with the same actions. A figure
is the median over slices, in microseconds for one step of one environment. The ratio is that of the
fastest of the others to ours, the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from plangym_like import make_vec

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
GAME = {"repeat_action_probability": 0.0}
COUNTS = (1, 2, 4, 8, 16, 64)
Stepper = Callable[[], object]


def preprocessed() -> gymnasium.Env[Any, Any]:
    """Return MsPacman in grey, 84 by 84 pixels, four frames at a time."""
    game = gymnasium.make("ALE/MsPacman-v5", frameskip=1, **GAME)
    return FrameStackObservation(AtariPreprocessing(game), 4)


JOBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", {}),
    "half_cheetah": ("HalfCheetah-v5", {}),
    "mspacman_ram": ("ALE/MsPacman-v5", {"obs_type": "ram", **GAME}),
    "mspacman_rgb": ("ALE/MsPacman-v5", {"obs_type": "rgb", **GAME}),
    "mspacman_84": (preprocessed, {}),
}


def contenders(source: Any, options: dict[str, Any], count: int) -> dict[str, Any]:
    """Return what is measured, made and reset."""
    make = partial(gymnasium.make, source, **options) if isinstance(source, str) else source
    made = {
        "ours": make_vec(source, count, **options),
        "ours, 2 workers": make_vec(source, count, 2, **options),
        "sync": SyncVectorEnv([make] * count),
        "async": AsyncVectorEnv([make] * count),
    }
    for envs in made.values():
        envs.reset(seed=0)
    try:
        from stable_baselines3.common.vec_env import SubprocVecEnv
    except ImportError:
        return made
    made["sb3 subproc"] = SubprocVecEnv([make] * count)
    made["sb3 subproc"].reset()
    return made


def measure(source: Any, options: dict[str, Any], count: int, rounds: int) -> dict[str, float]:
    """Return microseconds for one step of one environment, by contender, and the ratio."""
    made = contenders(source, options, count)
    actions = made["sync"].action_space.sample()
    taken: dict[str, list[float]] = {name: [] for name in made}
    steps = 4
    try:
        while _seconds(partial(made["sync"].step, actions), steps) < 0.02:
            steps *= 2
        for number in range(rounds):
            names = list(made) if number % 2 else list(made)[::-1]
            for name in names:
                seconds = _seconds(partial(made[name].step, actions), steps)
                taken[name].append(seconds / steps / count * 1e6)
    finally:
        for envs in made.values():
            envs.close()
    figures = {name: round(statistics.median(values), 2) for name, values in taken.items()}
    ours = [min(pair) for pair in zip(taken["ours"], taken["ours, 2 workers"], strict=True)]
    others = [values for name, values in taken.items() if not name.startswith("ours")]
    ratios = [min(rivals) / own for own, *rivals in zip(ours, *others, strict=True)]
    return {**figures, "ratio": round(statistics.median(ratios), 3)}


def _seconds(step: Stepper, count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - begun


def main() -> None:
    """Measure, print, and write the figures unless it is a quick look."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"some of {', '.join(JOBS)}")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, write nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.jobs) - set(JOBS):
        parser.error(f"no such job: {', '.join(sorted(unknown))}")
    if any(job.startswith("mspacman") for job in arguments.jobs or JOBS):
        import ale_py

        gymnasium.register_envs(ale_py)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for job in arguments.jobs or JOBS:
        found[job] = {}
        for count in arguments.counts:
            figures = measure(*JOBS[job], count, 5 if arguments.quick else 15)
            found[job][str(count)] = figures
            told = ", ".join(f"{name} {value:g}" for name, value in figures.items())
            print(f"{job:<14} {count:>3}  {told}", flush=True)
    if not arguments.quick and not arguments.jobs:
        FIGURES.joinpath("vector.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

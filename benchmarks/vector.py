"""How long a step of n environments takes: ours, Gymnasium's, and others that are installed.

Run it from anywhere::

    python benchmarks/vector.py                 # all jobs, writes docs/figures/vector.json and .md
    python benchmarks/vector.py --quick cartpole half_cheetah

The others are Stable-Baselines3, EnvPool and, on Atari, ale-py's own vector environment, the last
two with two threads. All are stepped in turn in this process, slice by slice, with the same
actions. A figure is the median over slices, in microseconds for one step of one environment.
"ratio" is the time of the fastest of Gymnasium's and Stable-Baselines3's, divided by ours, and
"ratio to C++" that of the fastest of EnvPool's and ale-py's. Both are medians over rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from harness import calls_within, in_turn, medians, parser, ratio, report, seconds_of, table

from plangym_like import make_vec

GAME = {"repeat_action_probability": 0.0}
COUNTS = (1, 2, 4, 8, 16, 64)
# The first steps of a slice take longer, because processes wake up and caches are cold.
SLICE_SECONDS = 0.2
RIVALS = {"ratio": ("sync", "async", "sb3 subproc"), "ratio to C++": ("envpool", "ale-py")}


def made(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return ``gymnasium.make(name, **options)`` in a process that may not know Atari's ids yet."""
    if name.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    return gymnasium.make(name, **options)


def preprocessed() -> gymnasium.Env[Any, Any]:
    """Return MsPacman in grey, 84 by 84 pixels, four frames at a time."""
    game = made("ALE/MsPacman-v5", frameskip=1, **GAME)
    return FrameStackObservation(AtariPreprocessing(game), 4)


class Job(NamedTuple):
    """An id or a factory, its arguments, and on Atari the screen, as EnvPool and ale-py name it."""

    source: Any
    options: Mapping[str, Any] = MappingProxyType({})
    screen: dict[str, Any] | None = None


JOBS: dict[str, Job] = {
    "cartpole": Job("CartPole-v1"),
    "pendulum": Job("Pendulum-v1"),
    "frozen_lake": Job("FrozenLake-v1"),
    "half_cheetah": Job("HalfCheetah-v5"),
    "mspacman_ram": Job("ALE/MsPacman-v5", {"obs_type": "ram", **GAME}),
    "mspacman_rgb": Job(
        "ALE/MsPacman-v5",
        {"obs_type": "rgb", **GAME},
        {"img_height": 210, "img_width": 160, "stack_num": 1, "noop_max": 1},
    ),
    "mspacman_84": Job(preprocessed, {}, {"img_height": 84, "img_width": 84, "stack_num": 4}),
}


def contenders(job: Job, count: int) -> dict[str, Any]:
    """Return what is measured, made and reset."""
    source, options, _ = job
    make = partial(made, source, **options) if isinstance(source, str) else source
    found = {
        "ours": make_vec(source, count, **options),
        "ours, 2 workers": make_vec(source, count, 2, **options),
        "sync": SyncVectorEnv([make] * count),
        "async": AsyncVectorEnv([make] * count),
    }
    for envs in found.values():
        envs.reset(seed=0)
    with contextlib.suppress(ImportError):
        from stable_baselines3.common.vec_env import SubprocVecEnv

        found["sb3 subproc"] = SubprocVecEnv([make] * count)
        found["sb3 subproc"].reset()
    for name, envs in _compiled(job, count).items():
        found[name] = envs
        envs.reset()
    return found


def _compiled(job: Job, count: int) -> dict[str, Any]:
    """Return the vector environments in C++ that have what this job asks for."""
    compiled: dict[str, Any] = {}
    name, screen, more = job.source, job.screen, {}
    if screen is not None:
        from ale_py.vector_env import AtariVectorEnv

        grey = screen["stack_num"] > 1
        plain = {"use_fire_reset": False, "repeat_action_probability": 0.0}
        threads = {"num_envs": count, "num_threads": min(count, 2)}
        compiled["ale-py"] = AtariVectorEnv(
            "ms_pacman",
            grayscale=grey,
            maxpool=grey,
            reward_clipping=False,
            **threads,
            **screen,
            **plain,
        )
        name, more = "MsPacman-v5", {"gray_scale": grey, **screen, **plain}
    if job.options.get("obs_type") != "ram":
        with contextlib.suppress(ImportError):
            import envpool

            compiled["envpool"] = envpool.make_gymnasium(
                name, num_envs=count, num_threads=min(count, 2), **more
            )
    return compiled


def measure(job: Job, count: int, rounds: int) -> dict[str, float]:
    """Return microseconds for one step of one environment, by contender, and the ratios."""
    made = contenders(job, count)
    sampled = made["sync"].action_space.sample()
    actions = {
        name: sampled.astype(np.int32)
        if name == "envpool" and sampled.dtype.kind == "i"
        else sampled
        for name in made
    }

    def timed(name: str) -> Any:
        step = partial(made[name].step, actions[name])
        steps = calls_within(step, SLICE_SECONDS)
        return lambda: seconds_of(step, steps) / steps / count * 1e6

    try:
        taken = in_turn({name: timed(name) for name in made}, rounds)
    finally:
        for envs in made.values():
            envs.close()
    figures = medians(taken)
    ours = [min(pair) for pair in zip(taken["ours"], taken["ours, 2 workers"], strict=True)]
    for name, rivals in RIVALS.items():
        others = [taken[rival] for rival in rivals if rival in taken]
        found = ratio([min(each) for each in zip(*others, strict=True)], ours)
        figures |= {} if found is None else {name: found}
    return figures


def page(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the figures as a table in Markdown."""
    others = (name for rivals in RIVALS.values() for name in rivals)
    names = ("ours", "ours, 2 workers", *others, *RIVALS)
    rows = [
        (job, count, *(f"{figures[name]:.3g}" if name in figures else "" for name in names))
        for job, counts in found.items()
        for count, figures in counts.items()
    ]
    return "\n".join(table(("job", "environments", *names), rows))


def main() -> None:
    """Measure, print, and write the figures unless it is a quick look."""
    options = parser(__doc__)
    options.add_argument("jobs", nargs="*", metavar="JOB", help=f"some of {', '.join(JOBS)}")
    chosen = options.parse_args()
    if unknown := set(chosen.jobs) - set(JOBS):
        options.error(f"no such job: {', '.join(sorted(unknown))}")
    found: dict[str, dict[str, dict[str, float]]] = {}
    for job in chosen.jobs or JOBS:
        found[job] = {}
        for count in COUNTS:
            figures = measure(JOBS[job], count, 3 if chosen.quick else 11)
            found[job][str(count)] = figures
            told = ", ".join(f"{name} {value:g}" for name, value in figures.items())
            print(f"{job:<14} {count:>3}  {told}", flush=True)
    report("vector", found, page(found), quick=chosen.quick or bool(chosen.jobs))


if __name__ == "__main__":
    main()

"""`make_vec` and Gymnasium's `SyncVectorEnv`, in one process, for every id that is installed.

Run it from anywhere::

    python benchmarks/vector_ids.py              # all
    python benchmarks/vector_ids.py FrozenLake   # ids with this in their name
    python benchmarks/vector_ids.py --null Taxi  # Gymnasium's beside itself: how precise this is

Both step 8 environments, with the same seeds and the same random actions, so they play the same
episodes, except that Atari's sticky actions are drawn from other generators. They are stepped in
turn, slice by slice. A figure is the median over the slices of the processor time of Gymnasium's
slice, divided by that of ours. Figures below 1 are measured again three times, for longer. Those
that stay below 0.98 are printed at the end.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
import warnings
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv
from harness import calls_within, in_turn, ratio, seconds_of

from plangym_like import make_vec

COUNT, ROUNDS, SLICE_SECONDS = 8, 7, 0.02
BOUND = 0.98
# The first measurement may be 0.02 off, up or down. So ratios up to that far above the bound are
# measured again too, with more rounds.
CLEAR, REPEATS, MORE_ROUNDS = 1.0, 3, 21
PACKAGES = ("ale_py", "minigrid")


def ids() -> list[str]:
    """Return all registered ids, with those of Atari and MiniGrid if these are installed."""
    for package in PACKAGES:
        try:
            gymnasium.register_envs(__import__(package))
        except ImportError:
            continue
    return sorted(gymnasium.registry)


def theirs(name: str) -> Any:
    """Return Gymnasium's vector environment of an id."""
    return SyncVectorEnv([partial(gymnasium.make, name)] * COUNT)


def measure(name: str, *, null: bool = False) -> tuple[float, float]:
    """Return the ratio, and the microseconds of our step of one environment.

    A ratio that is not clear is measured again, and the median of the repeats is returned. With
    `null`, a second one of Gymnasium's takes the place of ours.
    """
    both = {"theirs": theirs(name)}
    both["ours"] = theirs(name) if null else make_vec(name, COUNT)
    try:
        both["theirs"].action_space.seed(0)
        actions = [both["theirs"].action_space.sample() for _ in range(500)]

        def stepper(envs: Any) -> Any:
            envs.reset(seed=0)
            turns = itertools.cycle(actions)
            return lambda: envs.step(next(turns))

        tried = [stepper(envs) for envs in both.values()]
        count = min(calls_within(step, SLICE_SECONDS, time.process_time) for step in tried)
        # Begun again, so that slice i of both has the same steps and resets.
        steps = {key: stepper(envs) for key, envs in both.items()}
        gc.collect()
        gc.freeze()
        slices = {
            key: partial(seconds_of, step, count, time.process_time) for key, step in steps.items()
        }
        found = in_turn(slices, ROUNDS)
        ratios = [ratio(found["theirs"], found["ours"]) or 0.0]
        while ratios[0] < CLEAR and len(ratios) <= REPEATS:
            found = in_turn(slices, MORE_ROUNDS)
            ratios.append(ratio(found["theirs"], found["ours"]) or 0.0)
    finally:
        for envs in both.values():
            envs.close()
    own = statistics.median(found["ours"]) / count / COUNT * 1e6
    return statistics.median(ratios[1:] or ratios), round(own, 2)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("names", nargs="*", help="measure ids with one of these in their name")
    options.add_argument("--null", action="store_true", help="measure Gymnasium's beside itself")
    chosen = options.parse_args()
    warnings.filterwarnings("ignore")
    found: dict[str, tuple[float, float]] = {}
    for name in ids():
        if chosen.names and not any(part in name for part in chosen.names):
            continue
        try:
            found[name] = measure(name, null=chosen.null)
        except Exception as error:  # ids of missing extras, or that need arguments
            print(f"{name}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
            continue
        told = f"{name:<40} {found[name][0]:6.3f} {found[name][1]:9.2f} us"
        print(told, "BELOW" if found[name][0] < BOUND else "", flush=True)
    below = sorted(name for name, (value, _) in found.items() if value < BOUND)
    middle = statistics.median([value for value, _ in found.values()] or [0.0])
    print(f"{len(found)} ids, median {middle:.2f}, {len(below)} below {BOUND}:", *below)


if __name__ == "__main__":
    main()

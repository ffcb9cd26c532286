"""How long one step of n lanes takes: as rows, vectorised, one by one, and Gymnasium's own.

Prints microseconds of CPU time per lane, the best of several interleaved repeats::

    python benchmarks/lanes.py [ID ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import gymnasium
import numpy as np

from plangym_like.vector.lanes import Lanes
from plangym_like.vector.make_lanes import lanes_from, make_envs, make_lanes
from plangym_like.vector.row_lanes import RowLanes
from plangym_like.vector.step_arrays import StepArrays

_NAMES = ("HalfCheetah-v5", "Hopper-v5")
_REPEATS, _STEPS = 6, 20


def stepper(lanes: Lanes) -> Callable[[], None]:
    """Return what steps all of `lanes` once, by actions of 0."""
    count = lanes.num_lanes
    obs = lanes.start(list(range(count)))
    actions = np.zeros((count, *lanes.action_space.shape), lanes.action_space.dtype)  # type: ignore[misc]
    results = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
    return partial(lanes.step, actions, StepArrays(obs, *results))


def seconds(step: Callable[[], None]) -> float:
    """Return the CPU time of one step."""
    begun = time.process_time()
    for _ in range(_STEPS):
        step()
    return (time.process_time() - begun) / _STEPS


def main(names: tuple[str, ...]) -> None:
    """Print one line for each id and number of lanes."""
    for name in names:
        for count in (2, 4, 8, 64, 256):
            (env,) = make_envs(name, 1)
            steps = {
                "rows": stepper(RowLanes(env, count)),
                "vectorised": stepper(make_lanes(make_envs(name, count))),
                "one by one": stepper(lanes_from(name, count, vectorise=False)),
                "gymnasium": stepper(
                    lanes_from(partial(gymnasium.make, name), count, vectorise=False)
                ),
            }
            best = dict.fromkeys(steps, float("inf"))
            for _ in range(_REPEATS):
                for form, step in steps.items():
                    best[form] = min(best[form], seconds(step))
            told = ", ".join(f"{form} {1e6 * s / count:.1f}" for form, s in best.items())
            print(f"{name}, {count} lanes: {told} us per lane", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or _NAMES)

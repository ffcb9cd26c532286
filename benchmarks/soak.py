"""Restore Box2D environments in random order, and compare every step with an episode.

    python benchmarks/soak.py                    # ten million restores: about an hour of one core
    python benchmarks/soak.py --restores 100000

Images of a Box2D world's memory are restored instead of replaying the episode; see
docs/families/box2d.md. Episodes of Gymnasium's own environments give the observations, rewards and
ends of episodes that every restored step must have, byte for byte. The environment is also reset
now and then, which destroys the bodies of its world and makes others. The script ends with status 1
at the first difference; a crash of the interpreter is a failure, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import gymnasium
import numpy as np

import plangym_like

# The part of all restores, and the length and number of the episodes: CarRacing's steps are slow.
KINDS: dict[str, tuple[float, int, int]] = {
    "LunarLander-v3": (0.35, 300, 20),
    "LunarLanderContinuous-v3": (0.35, 300, 20),
    "BipedalWalker-v3": (0.145, 300, 8),
    "BipedalWalkerHardcore-v3": (0.145, 300, 8),
    "CarRacing-v3": (0.01, 60, 3),
}
ROWS, BATCHES_BETWEEN_RESETS = 64, 16


class Episodes:
    """The states, actions and results of episodes, as arrays with a row for each step."""

    def __init__(self, name: str, env: Any, steps: int, count: int) -> None:
        """Play `count` episodes of at most `steps` steps, here and in Gymnasium's environment."""
        space = env.action_space
        space.seed(0)
        rows: list[tuple[Any, ...]] = []
        for seed in range(count):
            # A new one for each episode: in an old world, bodies may be in another order.
            straight = gymnasium.make(name)
            straight.reset(seed=seed)
            state = env.reset(seed=seed).state
            for _ in range(steps):
                action = space.sample()
                result = straight.step(action)[:4]
                following = env.step(action, state=state).state
                rows.append((state, following, action, *result))
                state = following
                if result[2] or result[3]:
                    break
            straight.close()
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        self.states, self.following, self.actions, *self.results = columns

    def check(self, env: Any, rows: Any) -> None:
        """Step `rows` as a batch; raise `AssertionError` if a result is not that of the episode."""
        found = env.step_batch(self.actions[rows], self.states[rows])
        assert np.array_equal(found.states, self.following[rows])
        ours = (found.obs, found.rewards, found.terminateds, found.truncateds)
        for one, other in zip(ours, self.results, strict=True):
            assert one.tobytes() == other[rows].astype(one.dtype).tobytes()


def soak(name: str, restores: int, steps: int, count: int, rng: np.random.Generator) -> None:
    """Restore random states of one environment `restores` times."""
    begun = time.perf_counter()
    with plangym_like.make(name, autoreset=False, audit="off") as env:
        episodes = Episodes(name, env, steps, count)
        for batch in range(-(-restores // ROWS)):
            if batch % BATCHES_BETWEEN_RESETS == 0:
                env.reset(seed=int(rng.integers(1 << 30)))
                for _ in range(int(rng.integers(4))):
                    env.step(env.action_space.sample())
            episodes.check(env, rng.integers(len(episodes.states), size=ROWS))
        replayed = env.simulator.replayed
    seconds = time.perf_counter() - begun
    print(
        f"{name}: {restores:,} restores of {len(episodes.states):,} states are exact, "
        f"{replayed:,} of them by a replay, {seconds:.0f} s",
        flush=True,
    )


def main() -> int:
    """Soak each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--restores", type=int, default=10_000_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for name, (part, steps, count) in KINDS.items():
        soak(name, round(part * options.restores), steps, count, rng)
    return 0


if __name__ == "__main__":
    sys.exit(main())

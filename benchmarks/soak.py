"""Step many kinds of batches while workers are killed; check all results and the memory in use.

``python benchmarks/soak.py --minutes 30`` plays games and a classic control task in batches of all
kinds and sizes on isolated workers, while a worker is killed every half second or so. Results are
compared with a serial environment's, byte for byte. The script prints a line every ten seconds, and
ends with status 1 at the first difference, or if memory has grown. With ``--ray``, one of the two
workers is on another node of a local Ray cluster, and its actor is killed every two seconds or so.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from contenders.ours import start_far_node

import plangym_like

GAMES: list[tuple[str, dict[str, Any]]] = [
    ("ALE/MsPacman-v5", {"obs_type": "ram", "frameskip": 1}),
    ("ALE/Breakout-v5", {"obs_type": "rgb", "frameskip": 1}),
    ("CartPole-v1", {}),
]
MOST_GROWTH = 48 << 20
KILL_SECONDS, KILL_ACTOR_SECONDS = 0.5, 2.0
WARM_UP_ROUNDS = 60


def private_nbytes() -> int:
    """Return how much memory this process has to itself."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    words = [line.split() for line in lines]
    return sum(int(word[1]) << 10 for word in words if word[0].startswith("Private_"))


class Pair:
    """One environment in this process and in worker processes, or on a cluster."""

    def __init__(self, name: str, kwargs: dict[str, Any], *, ray: bool) -> None:
        self.ray = ray
        self.serial = plangym_like.make(name, **kwargs)
        where = {"ray": True, "resources": {"num_cpus": 0}} if ray else {}
        self.parallel = plangym_like.make(name, n_workers=2, isolate=True, **where, **kwargs)
        self.state = self.serial.reset(seed=0).state
        self.num_actions = int(self.serial.action_space.n)

    def play(self, rng: np.random.Generator) -> int:
        """Step one random batch on both, and return its rows; `AssertionError` if they differ."""
        count = int(rng.choice([1, 2, 7, 64, 200]))
        actions = rng.integers(0, self.num_actions, count)
        states = self.state if rng.random() < 0.5 else np.stack([self.state] * count)
        if rng.random() < 0.2:
            grid = rng.integers(0, self.num_actions, (count, 4))
            results = [env.rollout_batch(grid, states) for env in (self.serial, self.parallel)]
        elif rng.random() < 0.2:
            future = self.parallel.step_batch(actions, states, blocking=False)
            if rng.random() < 0.3:
                return 0  # its future is dropped
            results = [self.serial.step_batch(actions, states), future()]
        else:
            dt = rng.integers(1, 4, count)
            seeds = rng.integers(0, 1 << 40, count) if rng.random() < 0.3 else None
            results = [
                env.step_batch(actions, states, dt, seeds=seeds)
                for env in (self.serial, self.parallel)
            ]
        one, other = results
        assert one.states.tobytes() == other.states.tobytes(), "states differ"
        assert one.rewards.tobytes() == other.rewards.tobytes(), "rewards differ"
        if not hasattr(one, "observations"):
            assert one.obs.tobytes() == other.obs.tobytes(), "observations differ"
        row = int(rng.integers(count))
        ended = np.any(one.terminateds[row]) or np.any(one.truncateds[row])
        seed = int(rng.integers(1000))
        self.state = self.serial.reset(seed=seed).state if ended else one.states[row].copy()
        return count

    def kill_one(self, chance: random.Random) -> int:
        """Kill a worker, or an actor, as a stranger would; return whether there was one."""
        try:
            if self.ray:
                handles = self.parallel.executor.actors.handles
                pid = next(handle.pid for handle in handles if handle.pid)
                os.kill(pid, signal.SIGKILL)
            else:
                process = self.parallel.batch_env[chance.randrange(2)]
                os.kill(process.pid, signal.SIGKILL)
        except (ProcessLookupError, StopIteration):
            return 0
        return 1

    @property
    def losses(self) -> int:
        """How many of those that were killed it has noticed."""
        stats = self.parallel.stats
        return int(stats.actors_lost if self.ray else stats.deaths)

    def close(self) -> None:
        """Close both."""
        self.parallel.close()
        self.serial.close()


def main() -> None:
    """Run for as long as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", action="store_true", help="on actors of a local Ray")
    arguments = parser.parse_args()
    logging.getLogger("plangym_like").setLevel(logging.ERROR)
    if arguments.ray:
        start_far_node(1, 200 << 20, cores_here=1)
    rng, chance = np.random.default_rng(arguments.seed), random.Random(arguments.seed)
    pairs = [Pair(name, kwargs, ray=arguments.ray) for name, kwargs in GAMES]
    over, kills = threading.Event(), [0]

    def kill() -> None:
        while not over.wait(KILL_ACTOR_SECONDS if arguments.ray else KILL_SECONDS):
            kills[0] += chance.choice(pairs).kill_one(chance)

    killer = threading.Thread(target=kill)
    killer.start()
    begun = said = time.monotonic()
    rows = rounds = before = num_descriptors = 0
    try:
        while (now := time.monotonic()) - begun < 60 * arguments.minutes:
            rows += pairs[rounds % len(pairs)].play(rng)
            rounds += 1
            if rounds == WARM_UP_ROUNDS:
                gc.collect()
                before, num_descriptors = private_nbytes(), len(os.listdir("/proc/self/fd"))
            if now - said > 10:
                said = now
                deaths = sum(pair.losses for pair in pairs)
                print(
                    f"{now - begun:6.0f} s  {rounds} batches, {rows} rows, {kills[0]} kills, "
                    f"{deaths} deaths seen, {private_nbytes() >> 20} MB",
                    flush=True,
                )
    finally:
        over.set()
        killer.join()
    gc.collect()
    growth = private_nbytes() - before
    more = len(os.listdir("/proc/self/fd")) - num_descriptors
    for pair in pairs:
        pair.close()
    print(
        f"every digest right; {growth >> 20} MB and {more} descriptors more than after warming up"
    )
    if growth > MOST_GROWTH or more > 24:
        sys.exit(1)


if __name__ == "__main__":
    main()

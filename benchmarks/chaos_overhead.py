"""What a kill every 200 ms costs: MsPacman on two isolated workers, with and without kills.

Prints seconds for the same transitions, medians of interleaved repeats; results are compared.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import statistics
import threading
import time

import numpy as np

import plangym_like

BATCHES, ROWS, REPEATS, KILL_SECONDS = 40, 500, 3, 0.2


def main() -> None:
    """Measure."""
    logging.getLogger("plangym_like").setLevel(logging.ERROR)
    chance = random.Random(0)
    kwargs = {"obs_type": "ram", "frameskip": 1}
    with plangym_like.make("ALE/MsPacman-v5", n_workers=2, isolate=True, **kwargs) as env:
        start = env.reset(seed=0).state
        actions = np.random.default_rng(0).integers(0, 9, (BATCHES, ROWS))
        env.step_batch(actions[0], start)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        finals, kills = set(), 0
        for _ in range(REPEATS):
            for disturbed in (False, True):
                over = threading.Event()

                def kill(over: threading.Event = over) -> None:
                    nonlocal kills
                    while not over.wait(KILL_SECONDS):
                        process = env.batch_env[chance.randrange(2)]
                        try:
                            os.kill(process.pid, signal.SIGKILL)
                        except ProcessLookupError:
                            continue
                        kills += 1

                killer = threading.Thread(target=kill)
                if disturbed:
                    killer.start()
                begun = time.perf_counter()
                states = np.stack([start] * ROWS)
                for row in actions:
                    states = env.step_batch(row, states).states
                seconds[disturbed].append(time.perf_counter() - begun)
                over.set()
                if disturbed:
                    killer.join()
                finals.add(states.tobytes())
                for process in env.batch_env:
                    process.wait_ready()
        assert len(finals) == 1
    calm, wild = (statistics.median(seconds[disturbed]) for disturbed in (False, True))
    print(
        f"{BATCHES * ROWS} transitions: {calm:.2f} s undisturbed, {wild:.2f} s under "
        f"{kills / REPEATS:.0f} kills, one every {KILL_SECONDS} s: {wild / calm:.2f} times as long"
    )


if __name__ == "__main__":
    main()

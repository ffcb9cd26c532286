"""Compare a `StateArchive` with an array of rows: bytes per node, and microseconds per call.

Run it from anywhere::

    python benchmarks/archive.py            # writes docs/figures/archive.json and .md
    python benchmarks/archive.py --quick    # a rough look, writes nothing

Trees are grown by 256 walkers that act at random. In each step, a tenth of them become copies of
others, as in Fractal Monte Carlo, and walkers that ended an episode continue from a random node.
Times are medians of calls at random nodes, in CPU time, so that other programs do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import parser, publish, seconds_of, table

import plangym_like

_NODES, _QUICK_NODES = 50_000, 5_000
_WALKERS = 256
_CALLS = 2000
_BATCH = 100
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "MsPacman": ("ALE/MsPacman-v5", {"obs_type": "ram"}),
    "MontezumaRevenge": ("ALE/MontezumaRevenge-v5", {"obs_type": "ram"}),
    "HalfCheetah": ("HalfCheetah-v5", {}),
    "MiniGrid": ("minigrid:MiniGrid-DoorKey-8x8-v0", {}),
}


def grow(env: Any, nodes: int) -> tuple[np.ndarray, plangym_like.StateArchive, float]:
    """Return the rows of a tree, an archive of it, and the microseconds that a node was added."""
    rng, add_seconds = np.random.default_rng(0), 0.0
    env.action_space.seed(0)
    archive = plangym_like.StateArchive(env)
    rows = np.empty((nodes, env.state_nbytes), np.uint8)
    rows[0] = env.reset(seed=0).state
    archive.add(rows[0])
    walkers = np.zeros(_WALKERS, np.int64)
    over = np.zeros(nodes, bool)
    while len(archive) < nodes:
        count = min(_WALKERS, nodes - len(archive))
        copied = rng.random(_WALKERS) < 0.1
        walkers = np.where(copied, walkers[rng.integers(0, _WALKERS, _WALKERS)], walkers)
        walkers = np.where(over[walkers], rng.integers(0, len(archive), _WALKERS), walkers)
        parents = np.where(over[walkers], 0, walkers)[:count]
        actions = np.array([env.action_space.sample() for _ in range(count)])
        step = env.step_batch(actions, rows[parents])
        begun = time.thread_time()
        new = archive.add(step.states, parents, actions, rewards=step.rewards)
        add_seconds += time.thread_time() - begun
        rows[new], over[new] = step.states, step.terminateds | step.truncateds
        walkers[:count] = new
    return rows, archive, 1e6 * add_seconds / nodes


def microseconds(call: Callable[[int], Any], nodes: list[int]) -> float:
    """Return the median time of a call."""
    taken = [seconds_of(partial(call, node), clock=time.thread_time) for node in nodes]
    return 1e6 * statistics.median(taken)


def measure(job: str, nodes: int) -> dict[str, float]:
    """Return what an archive of so many nodes takes."""
    name, kwargs = JOBS[job]
    with plangym_like.make(name, audit="off", **kwargs) as env:
        rows, archive, add = grow(env, nodes)
        chosen = np.random.default_rng(1).integers(0, nodes, _CALLS)
        for first in range(0, nodes, 4096):
            part = np.arange(first, min(first + 4096, nodes))
            assert np.array_equal(archive.get(part), rows[part]), "a row has changed"
        archive.find(rows[:1])  # fills the hash table
        batches = chosen.reshape(-1, _BATCH)
        batch = microseconds(lambda i: archive.get(batches[i]), list(range(len(batches))))
        # An array of rows needs the same columns.
        columns = sum(archive[name].nbytes for name in ("parents", "actions", "dt", "rewards"))
        return {
            "nodes": nodes,
            "row_nbytes": rows.shape[1],
            "nbytes_of_node": round(archive.nbytes / nodes, 1),
            "nbytes_of_node_as_row": round((rows.nbytes + columns) / nodes, 1),
            "add_us": round(add, 1),
            "get_us": round(microseconds(archive.get, chosen.tolist()), 1),
            "get_in_batch_us": round(batch / _BATCH, 1),
            "get_as_row_us": round(microseconds(lambda i: rows[i].copy(), chosen.tolist()), 1),
            "find_us": round(microseconds(lambda i: archive.find(rows[i]), chosen.tolist()), 1),
        }


def page(figures: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table in Markdown."""
    rows = []
    for job, found in figures.items():
        times = (found[f"{name}_us"] for name in ("add", "get", "get_in_batch", "find"))
        sizes = (f"{found['row_nbytes']:,.0f}", f"{found['nbytes_of_node']:.0f}")
        rows.append((job, *sizes, *(f"{time:.1f} us" for time in times)))
    head = ("nodes of", "bytes of a row", "bytes of a node", "add", "get", "get in batches", "find")
    return "\n".join(table(head, rows))


def main() -> None:
    """Measure, print, and write the figures."""
    chosen = parser(__doc__).parse_args()
    figures = {job: measure(job, _QUICK_NODES if chosen.quick else _NODES) for job in JOBS}
    print(page(figures))
    if not chosen.quick:
        publish("archive", figures, page(figures))


if __name__ == "__main__":
    main()

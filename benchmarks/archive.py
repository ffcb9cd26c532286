"""Compare a `StateArchive` with an array of rows: bytes per node, and microseconds per call.

Run it from anywhere::

    python benchmarks/archive.py                          # writes docs/figures/archive.json and .md
    python benchmarks/archive.py --nodes 5000             # a rough look, writes nothing
    python benchmarks/archive.py --scale 10000000         # repeat MsPacman's rows: this many nodes

Trees are grown by 256 walkers that act at random. In each step, a tenth of them become copies of
others, as in Fractal Monte Carlo, and walkers that ended an episode continue from a random node.
Times are medians of calls at random nodes, in CPU time, so that other programs do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import plangym_like

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
_NODES = 50_000
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
    taken = []
    for node in nodes:
        begun = time.thread_time()
        call(node)
        taken.append(time.thread_time() - begun)
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


def measure_scale(nodes: int) -> dict[str, float]:
    """Return what so many nodes take, made of fewer rows of MsPacman.

    Each copy of a row gets another number in its last bytes, which the game never uses, so that all
    of them are different.
    """
    name, kwargs = JOBS["MsPacman"]
    with plangym_like.make(name, audit="off", **kwargs) as env:
        rows, _, _ = grow(env, min(nodes, _NODES))
        before, begun = _resident_nbytes(), time.thread_time()
        archive = plangym_like.StateArchive(env)
        while len(archive) < nodes:
            first = len(archive) % len(rows)
            part = rows[first : first + min(_WALKERS, nodes - len(archive))].copy()
            numbers = part[:, -8:].view(np.int64)[:, 0]
            numbers += np.arange(len(archive), len(archive) + len(part))
            parent = len(archive) - 1
            archive.add(part, parent, 0 if parent >= 0 else None)
        added = time.thread_time() - begun
        begun = time.thread_time()
        archive.find(rows[:1])
        indexed = time.thread_time() - begun
        chosen = np.random.default_rng(1).integers(0, nodes, _CALLS).tolist()
        return {
            "nodes": nodes,
            "nbytes": archive.nbytes,
            "resident_nbytes": _resident_nbytes() - before,
            "add_seconds": round(added, 1),
            "index_seconds": round(indexed, 1),
            "get_us": round(microseconds(archive.get, chosen), 1),
        }


def table(figures: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| nodes of | bytes of a row | bytes of a node | add | get | get in batches | find |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for job, found in figures.items():
        if job in JOBS:
            times = [found[f"{name}_us"] for name in ("add", "get", "get_in_batch", "find")]
            cells = [job, f"{found['row_nbytes']:,.0f}", f"{found['nbytes_of_node']:.0f}"]
            lines.append(f"| {' | '.join([*cells, *(f'{time:.1f} us' for time in times)])} |")
    if "scale" in figures:
        scale = figures["scale"]
        gigabytes = scale["resident_nbytes"] / 1e9
        lines.append(
            f"\n{scale['nodes']:,} nodes of MsPacman (the rows of that tree again and again, "
            f"each copy with another number in it) took {gigabytes:.2f} GB of memory, and "
            f"{scale['get_us']:.0f} us to get one."
        )
    return "\n".join(lines) + "\n"


def _resident_nbytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=_NODES)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--scale", type=int, help="measure only this many nodes of MsPacman")
    chosen = parser.parse_args()
    path = FIGURES / "archive.json"
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if chosen.scale is not None:
        figures["scale"] = measure_scale(chosen.scale)
        print(json.dumps(figures["scale"]), flush=True)
    else:
        for job in chosen.jobs:
            figures[job] = measure(job, chosen.nodes)
            print(f"{job:17s} {json.dumps(figures[job])}", flush=True)
    if chosen.nodes >= _NODES:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        (FIGURES / "archive.md").write_text(table(figures), encoding="utf-8")


if __name__ == "__main__":
    main()

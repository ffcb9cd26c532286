"""Measure batches on Ray against batches on this machine's processes, and what a message costs.

Run it from anywhere::

    python benchmarks/ray_bench.py                    # writes docs/figures/ray.json and ray.md
    python benchmarks/ray_bench.py --quick            # a rough look, writes nothing
    python benchmarks/ray_bench.py --python plangym=/path/to/python

Each contender starts its own Ray with this machine's cores; their slices are interleaved.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from contenders.ours import start_far_node
from harness import CORES, machine, publish, table
from interleave import (
    Contest,
    Entry,
    contest_parser,
    interpreters,
    method,
    paired_ratio,
    shown,
)

import plangym_like

GAME = "ALE/MsPacman-v5"
JOB = {"env_id": GAME, "obs_type": "ram", "count": 256}
STORE_NBYTES = 200 << 20
_HERE = {"n_workers": CORES}
_RAY = {**_HERE, "ray": True, "object_store_memory": STORE_NBYTES}
ENTRIES = (
    Entry("parallel", f"ParallelEnv, {CORES} workers", "ours", "ours", _HERE),
    Entry("ray", f"RayEnv, one node, {CORES} workers", "ours", "ours", _RAY),
    Entry(
        "ray_far",
        f"RayEnv, {CORES} workers, all on another node",
        "ours",
        "ours",
        {**_RAY, "far": True},
    ),
    Entry("raw", f"{CORES} raw loops at once", "raw", "raw", {"processes": CORES}),
    Entry(
        "plangym_ray",
        f"plangym's RayEnv, {CORES} workers",
        "plangym",
        "states",
        {**_HERE, "ray": True},
    ),
    Entry(
        "plangym_parallel", f"plangym's ParallelEnv, {CORES} workers", "plangym", "states", _HERE
    ),
)
# What is measured of batches: kind of observation, frames (steps of a rollout) of a row, and rows.
KINDS = (("ram", 1, 1), ("ram", 1, 256), ("rgb", 1, 256), ("ram", 100, 256))


def throughput(rounds: int, seconds: float, results: dict[str, Any], python: list[str]) -> None:
    """Add the rates of all contenders in transitions/s, and the ratios between them."""
    shared: Any = {"interpreters": interpreters(python), "versions": results["versions"]}
    with Contest(ENTRIES, JOB, **shared) as contest:
        contest.run(rounds=rounds, seconds=seconds)
    ray = contest.figures["ray"]
    results["rows"] = [
        {**figure.record(), "ray_over": None if figure is ray else paired_ratio(ray, figure)}
        for figure in contest.figures.values()
    ]


def costs(obs_type: str, horizon: int, rows: int, seconds: float) -> dict[str, Any]:
    """Return what a batch of `rows` costs the driver, whose actors are all on another node."""
    with plangym_like.make(
        GAME,
        obs_type=obs_type,
        frameskip=1,
        ray=True,
        n_workers=CORES,
        resources={"num_cpus": 0},  # several environments share the cores, so they claim none
        isolate=True,
        audit="off",
    ) as env:
        env.wait_ready(60)
        plan = np.random.default_rng(0).integers(0, env.action_space.n, (rows, 240))
        roots = env.rollout_batch(plan, env.reset(seed=0).state).states
        call = env.step_batch if horizon == 1 else env.rollout_batch
        actions = plan[:, 0] if horizon == 1 else plan[:, :horizon]
        call(actions, roots)
        before = env.stats
        sent, received, chunks = before.bytes_sent, before.bytes_received, before.chunks
        begun, cpu, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - begun < seconds or count < 5:
            call(actions, roots)
            count += 1
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
        after, stepped = env.stats, rows * count
        return {
            "what": f"{rows} of {obs_type.upper()}, {horizon} frame{'s' if horizon > 1 else ''}",
            "milliseconds": wall / count * 1e3,
            "bytes_sent": (after.bytes_sent - sent) / stepped,
            "bytes_received": (after.bytes_received - received) / stepped,
            "rows_a_chunk": stepped / (after.chunks - chunks),
            "driver_cpu_us": cpu / stepped * 1e6,
        }


def page(results: dict[str, Any]) -> str:
    """Return the tables."""
    rows = [
        (row["label"], shown(row), "" if row["ray_over"] is None else f"{row['ray_over']:.2f}")
        for row in results["rows"]
    ]
    batches = [
        (
            row["what"],
            f"{row['milliseconds']:.2f}",
            f"{row['bytes_sent']:,.0f}",
            f"{row['bytes_received']:,.0f}",
            f"{row['rows_a_chunk']:.0f}",
            f"{row['driver_cpu_us']:.1f} us",
        )
        for row in results["costs"]
    ]
    head = ("rows of MsPacman", "batch, ms", "bytes sent", "received", "rows a chunk")
    return "\n".join(
        [
            method(results),
            "MsPacman RAM, 1 frame a transition, 256 states:",
            "",
            *table(("contender", "transitions/s", "RayEnv divided by it"), rows),
            "A row costs the driver, whose actors are all on another node:",
            "",
            *table((*head, "the driver's CPU"), batches),
        ]
    )


def main() -> None:
    """Measure, print, write."""
    options = contest_parser(__doc__).parse_args()
    rounds, seconds = (3, 0.3) if options.quick else (11, 0.5)
    results: dict[str, Any] = {"machine": machine(), "rounds": rounds, "versions": {}}
    throughput(rounds, seconds, results, options.python)
    start_far_node(CORES, STORE_NBYTES)
    results["costs"] = [costs(*kind, 3 * seconds) for kind in KINDS]
    print(page(results))
    if not options.quick:
        publish("ray", results, page(results))


if __name__ == "__main__":
    main()

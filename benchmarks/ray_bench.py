"""Measure batches on Ray against batches on this machine's processes, and what a chunk costs.

Run it from anywhere::

    python benchmarks/ray_bench.py                    # writes docs/figures/ray.json and ray.md
    python benchmarks/ray_bench.py --quick            # a rough look, writes nothing
    python benchmarks/ray_bench.py --python plangym=/path/to/python

One local Ray of this machine's cores for each contender; everybody's slices are interleaved. The
projection to many nodes is computed here, from the measured figures and the assumptions that stand
beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench import machine
from interleave import Contest, Entry, paired_ratio
from throughput import CORES, MS_PACMAN

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
STORE_NBYTES = 200 << 20
JOB = {"env_id": MS_PACMAN, "obs_type": "ram", "count": 256}
ENTRIES = (
    Entry("parallel", f"ParallelEnv, {CORES} workers", "ours", "ours", {"n_workers": CORES}),
    Entry(
        "ray",
        f"RayEnv, one node, {CORES} workers",
        "ours",
        "ours",
        {"n_workers": CORES, "ray": True, "object_store_memory": STORE_NBYTES},
    ),
    Entry("raw", f"{CORES} raw loops at once", "raw", "raw", {"processes": CORES}),
    Entry(
        "plangym_ray",
        f"plangym's RayEnv, {CORES} workers",
        "plangym",
        "states",
        {"n_workers": CORES, "ray": True},
    ),
    Entry(
        "plangym_parallel",
        f"plangym's ParallelEnv, {CORES} workers",
        "plangym",
        "states",
        {"n_workers": CORES},
    ),
)
OPEN_CHUNKS = 2000
HORIZONS = (1, 10, 100, 1000)
# What the projection takes for granted.
NODE_CORES, NODES, NIC_BYTES = 32, 1000, 25e9 / 8


def throughput(rounds: int, seconds: float, interpreters: dict[str, str]) -> dict[str, Any]:
    """Return everybody's rates in transitions/s and the ratio that is promised."""
    versions: dict[str, dict[str, str]] = {}
    with Contest(ENTRIES, JOB, interpreters=interpreters, versions=versions) as contest:
        contest.run(rounds=rounds, seconds=seconds)
        figures = contest.figures
    rows = [
        {
            "key": key,
            "label": figure.entry.label,
            "rate": figure.median and round(figure.median),
            "rates": [round(rate) for rate in figure.rates],
            "absent": figure.absent,
            "reason": figure.reason,
        }
        for key, figure in figures.items()
    ]
    ratio = {
        f"ray_over_{key}": paired_ratio(figures["ray"], figures[key])
        for key in figures
        if key != "ray"
    }
    return {"rows": rows, "ratios": ratio, "versions": versions}


def costs(seconds: float) -> dict[str, Any]:
    """Return what a chunk, a row and a byte cost the process that deals them out."""
    import numpy as np

    import plangym_like

    options: dict[str, Any] = {
        "ray": True,
        "n_workers": CORES,
        "isolate": True,
        "object_store_memory": STORE_NBYTES,
    }
    found: dict[str, Any] = {}
    with plangym_like.make("CartPole-v1", **options) as env:
        env.wait_ready(60)
        state = env.reset(seed=0).state
        wall, cpu, _ = _repeat(lambda: env.step_batch([1], state), seconds)
        found["chunk"] = {"round_trip_seconds": wall, "driver_cpu_seconds": cpu}
        found["open_chunks"] = {"count": OPEN_CHUNKS, "wait_seconds": _wait_among_many()}
        with plangym_like.make(MS_PACMAN, obs_type="ram", frameskip=1, **options) as game:
            game.wait_ready(60)
            found["rows"] = {}
            start = game.reset(seed=0).state
            rng = np.random.default_rng(0)
            plan = rng.integers(0, game.action_space.n, (256, 240))
            roots = game.rollout_batch(plan, start).states
            for horizon in (1, 100):
                actions = plan[:, :horizon]
                found["rows"][str(horizon)] = _row_costs(game, actions, roots, seconds)
    return found


def _row_costs(env: Any, actions: Any, roots: Any, seconds: float) -> dict[str, float]:
    count, horizon = actions.shape
    if horizon == 1:
        actions = actions[:, 0]
    call = env.step_batch if horizon == 1 else env.rollout_batch
    call(actions, roots)
    before = env.stats.bytes_sent, env.stats.bytes_received, env.stats.chunks
    wall, cpu, times = _repeat(lambda: call(actions, roots), seconds)
    after = env.stats.bytes_sent, env.stats.bytes_received, env.stats.chunks
    sent, received, chunks = (
        (late - early) / times for late, early in zip(after, before, strict=True)
    )
    return {
        "bytes_sent": sent / count,
        "bytes_received": received / count,
        "chunks_a_batch": chunks,
        "driver_cpu_seconds": cpu / count,
        "wall_seconds": wall / count,
    }


def _repeat(call: Any, seconds: float) -> tuple[float, float, int]:
    """Return median wall time, mean CPU time of this process, and how often it was done."""
    call()
    walls: list[float] = []
    begun, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds or len(walls) < 5:
        start = time.perf_counter()
        call()
        walls.append(time.perf_counter() - start)
    return statistics.median(walls), (time.process_time() - cpu) / len(walls), len(walls)


def _wait_among_many() -> float:
    """Return how long it takes to look for an answer among very many open chunks."""
    import ray

    class Sleeper:
        def sleep(self) -> None:
            time.sleep(60)

    actor = ray.remote(Sleeper).options(num_cpus=0).remote()
    refs = [actor.sleep.remote() for _ in range(OPEN_CHUNKS)]
    wall, _, _ = _repeat(lambda: ray.wait(refs, num_returns=1, timeout=0), 0.5)
    ray.kill(actor)
    return wall


def projection(found: dict[str, Any], rate: float) -> list[dict[str, Any]]:
    """Return, for plans of T frames a row, how many nodes one driver keeps busy, and what limits.

    `rate` is frames per second of this machine's cores together.
    """
    one, many = found["rows"]["1"], found["rows"]["100"]
    frames = rate / CORES * NODE_CORES
    chunk = found["chunk"]["driver_cpu_seconds"]
    rows_a_chunk = 256 / many["chunks_a_batch"]
    # What a row costs beyond its share of a chunk, which in larger batches is shared by more rows.
    cpu_row = max(0.0, one["driver_cpu_seconds"] - one["chunks_a_batch"] * chunk / 256)
    nbytes_frame = (many["bytes_received"] - one["bytes_received"]) / 99
    sent_frame = (many["bytes_sent"] - one["bytes_sent"]) / 99
    table = []
    for horizon in HORIZONS:
        rows_a_node = frames / horizon
        received = one["bytes_received"] + nbytes_frame * (horizon - 1)
        sent = one["bytes_sent"] + sent_frame * (horizon - 1)
        cpu = cpu_row * (received + sent) / (one["bytes_received"] + one["bytes_sent"])
        limits = {
            "driver's CPU": 1 / (cpu + chunk / rows_a_chunk) / rows_a_node,
            "driver's network": NIC_BYTES / max(received, sent) / rows_a_node,
        }
        limit = min(limits, key=lambda name: limits[name])
        nodes = limits[limit]
        table.append(
            {
                "horizon": horizon,
                "bytes_sent": round(sent),
                "bytes_received": round(received),
                "nodes": round(nodes, 1),
                "limit": limit,
                "frames_a_second": round(min(nodes, NODES) * frames),
                "drivers_for_all": max(1, -(-NODES // max(1, int(nodes)))),
            }
        )
    return table


def markdown(results: dict[str, Any]) -> str:
    """Return the page's tables, made of the very object that the JSON file holds."""
    about = results["machine"]
    lines = [
        (
            f"Measured on {about['cores']} cores ({about['cpu']}), load {about['load_at_start']} "
            f"at the start; slices interleaved, medians of {results['settings']['rounds']} rounds. "
            "MsPacman RAM, 1 frame a transition, 256 states."
        ),
        "",
        "| contender | transitions/s | RayEnv divided by it |",
        "| --- | --- | --- |",
    ]
    for row in results["throughput"]["rows"]:
        if row["absent"]:
            lines.append(f"| {row['label']} | {row['absent']}: {row['reason']} | |")
            continue
        ratio = results["throughput"]["ratios"].get(f"ray_over_{row['key']}")
        lines.append(
            f"| {row['label']} | {row['rate']:,} | {'' if not ratio else f'{ratio:.2f}'} |"
        )
    found = results["costs"]
    chunk, rows = found["chunk"], found["rows"]
    lines += ["", "| what | measured |", "| --- | --- |"]
    lines.append(
        f"| a chunk of one row, there and back | {chunk['round_trip_seconds'] * 1e3:.2f} ms |"
    )
    lines.append(f"| the driver's CPU for it | {chunk['driver_cpu_seconds'] * 1e3:.2f} ms |")
    for horizon, cost in rows.items():
        what = f"a row of {horizon} frame{'s' if horizon != '1' else ''}"
        lines.append(f"| {what}: bytes sent | {cost['bytes_sent']:,.0f} |")
        lines.append(f"| {what}: bytes received | {cost['bytes_received']:,.0f} |")
        lines.append(f"| {what}: the driver's CPU | {cost['driver_cpu_seconds'] * 1e6:.1f} us |")
    many = found["open_chunks"]
    lines.append(
        f"| looking for an answer among {many['count']:,} open chunks "
        f"| {many['wait_seconds'] * 1e3:.1f} ms |"
    )
    lines += [
        "",
        (
            "| frames a row | bytes sent | received | nodes that one driver keeps busy | limited "
            f"by | drivers for {NODES:,} nodes |"
        ),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["projection"]:
        lines.append(
            f"| {row['horizon']:,} | {row['bytes_sent']:,} | {row['bytes_received']:,} "
            f"| {row['nodes']:,} | {row['limit']} | {row['drivers_for_all']:,} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a rough look, writes nothing")
    parser.add_argument("--output", type=Path, default=FIGURES, help="folder of ray.json, ray.md")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    arguments = parser.parse_args()
    pairs = [pair.partition("=") for pair in arguments.python]
    interpreters = {name: os.path.abspath(path) for name, _, path in pairs}
    rounds, seconds = (3, 0.3) if arguments.quick else (11, 0.5)
    results: dict[str, Any] = {
        "machine": machine(),
        "settings": {"rounds": rounds, "slice_seconds": seconds},
    }
    results["throughput"] = throughput(rounds, seconds, interpreters)
    results["costs"] = costs(3 * seconds)
    rates = {row["key"]: row["rate"] for row in results["throughput"]["rows"]}
    results["assumptions"] = {
        "nodes": NODES,
        "cores_a_node": NODE_CORES,
        "network_bytes_a_second": NIC_BYTES,
        "rows_a_chunk": "as many as in the measured batches",
    }
    results["projection"] = projection(results["costs"], rates["parallel"])
    text = markdown(results)
    print(text)
    if not arguments.quick:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "ray.json").write_text(json.dumps(results, indent=1) + "\n")
        (arguments.output / "ray.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

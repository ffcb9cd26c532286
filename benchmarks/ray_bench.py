"""Measure batches on Ray against batches on this machine's processes, and what a chunk costs.

Run it from anywhere::

    python benchmarks/ray_bench.py                    # writes docs/figures/ray.json and ray.md
    python benchmarks/ray_bench.py --quick            # a rough look, writes nothing
    python benchmarks/ray_bench.py --python plangym=/path/to/python

Each contender starts its own Ray with this machine's cores; their slices are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import far_node
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
    Entry(
        "ray_far",
        f"RayEnv, {CORES} workers, all on another node",
        "ours",
        "ours",
        {"n_workers": CORES, "ray": True, "object_store_memory": STORE_NBYTES, "far": True},
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
ROWS = 256
# What is measured of rows: kind of observation and frames (steps of a rollout) in each.
KINDS = (("ram", 1), ("rgb", 1), ("ram", 100))


def throughput(rounds: int, seconds: float, interpreters: dict[str, str]) -> dict[str, Any]:
    """Return the rates of all contenders in transitions/s, and the ratios between them."""
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
    """Return what a chunk, a row and a byte cost the driver, whose actors are all elsewhere."""
    far_node.start(CORES, STORE_NBYTES)
    found: dict[str, Any] = {"rows": []}
    with _far("CartPole-v1") as env:
        state = env.reset(seed=0).state
        wall, cpu, _ = _repeat(lambda: env.step_batch([1], state), seconds)
        found["chunk"] = {"round_trip_seconds": wall, "driver_cpu_seconds": cpu}
        found["chunk"]["message_bytes"] = _message_bytes(env, state)
        found["open_chunks"] = {"count": OPEN_CHUNKS, "wait_seconds": _wait_among_many()}
        for obs_type, horizon in KINDS:
            found["rows"].append(_row_costs(obs_type, horizon, seconds))
    return found


def _far(name: str, **kwargs: Any) -> Any:
    """Make an environment whose batches all go through Ray to another node."""
    import plangym_like

    # Several of them share the cores, so they claim none.
    where: dict[str, Any] = {"ray": True, "n_workers": CORES, "resources": {"num_cpus": 0}}
    env = plangym_like.make(name, isolate=True, audit="off", **where, **kwargs)
    env.wait_ready(60)
    return env


def _message_bytes(env: Any, state: Any) -> int:
    """Return the bytes of a chunk's messages, both ways, beyond its arrays."""
    import numpy as np

    from plangym_like.batch.arrays import SubmitOptions
    from plangym_like.cluster.node_actor import ChunkResult

    layout = env.layout
    rows = layout.allocate(layout.check([1], state, 1, None))
    request = rows.inputs, SubmitOptions()
    answer = ChunkResult(env.step_batch([1], state), counts={"seconds_on_workers": 0.1})
    arrays = rows.inputs.actions.nbytes + state.nbytes
    arrays += layout.put_result(rows, np.arange(1), answer.result)
    return len(pickle.dumps(request, 5)) + len(pickle.dumps(answer, 5)) - int(arrays)


def _row_costs(obs_type: str, horizon: int, seconds: float) -> dict[str, Any]:
    import numpy as np

    with _far(MS_PACMAN, obs_type=obs_type, frameskip=1) as env:
        rng = np.random.default_rng(0)
        plan = rng.integers(0, env.action_space.n, (ROWS, 240))
        roots = env.rollout_batch(plan, env.reset(seed=0).state).states
        call = env.step_batch if horizon == 1 else env.rollout_batch
        actions = plan[:, 0] if horizon == 1 else plan[:, :horizon]
        names = "bytes_sent", "bytes_received", "chunks"
        call(actions, roots)
        before = [getattr(env.stats, name) for name in names]
        wall, cpu, times = _repeat(lambda: call(actions, roots), seconds)
        # One more went before those that were timed.
        after = [getattr(env.stats, name) for name in names]
        sent, received, chunks = (
            (late - early) / (times + 1) for late, early in zip(after, before, strict=True)
        )
    return {
        "obs_type": obs_type,
        "horizon": horizon,
        "bytes_sent": sent / ROWS,
        "bytes_received": received / ROWS,
        "rows_a_chunk": ROWS / chunks,
        "driver_cpu_seconds": cpu / ROWS,
        "wall_seconds": wall / ROWS,
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
    chunk, many = found["chunk"], found["open_chunks"]
    lines += [
        "",
        "| a chunk | measured |",
        "| --- | --- |",
        f"| of one row, there and back | {chunk['round_trip_seconds'] * 1e3:.2f} ms |",
        f"| the driver's CPU for it | {chunk['driver_cpu_seconds'] * 1e3:.2f} ms |",
        f"| bytes of its messages beyond the arrays | {chunk['message_bytes']:,} |",
        (
            f"| looking for an answer among {many['count']:,} open chunks "
            f"| {many['wait_seconds'] * 1e3:.1f} ms |"
        ),
        "",
        "| a row of MsPacman | bytes sent | received | rows a chunk | the driver's CPU |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        frames = f"{row['horizon']} frame{'s' if row['horizon'] > 1 else ''}"
        lines.append(
            f"| {row['obs_type'].upper()}, {frames} | {row['bytes_sent']:,.0f} "
            f"| {row['bytes_received']:,.0f} | {row['rows_a_chunk']:.0f} "
            f"| {row['driver_cpu_seconds'] * 1e6:.1f} us |"
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
    text = markdown(results)
    print(text)
    if not arguments.quick:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "ray.json").write_text(json.dumps(results, indent=1) + "\n")
        (arguments.output / "ray.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

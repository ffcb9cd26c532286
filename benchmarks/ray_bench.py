"""Measure batches on Ray against batches on this machine's processes.

Run it from anywhere::

    python benchmarks/ray_bench.py                    # writes docs/figures/ray.json and ray.md
    python benchmarks/ray_bench.py --quick            # a rough look, writes nothing
    python benchmarks/ray_bench.py --python plangym=/path/to/python

Each contender starts its own Ray with this machine's cores; their slices are interleaved.
"""

from __future__ import annotations

from typing import Any

from harness import CORES, publish, table
from interleave import Contest, Entry, begun, contest_parser, method, paired_ratio, shown

JOB = {"env_id": "ALE/MsPacman-v5", "obs_type": "ram", "count": 256}
STORE_NBYTES = 200 << 20
_HERE = {"n_workers": CORES}
_RAY = {**_HERE, "ray": True, "object_store_memory": STORE_NBYTES}
_W = f"{CORES} workers"
ENTRIES = (
    Entry("parallel", f"ParallelEnv, {_W}", "ours", "ours", _HERE),
    Entry("ray", f"RayEnv, one node, {_W}", "ours", "ours", _RAY),
    Entry("ray_far", f"RayEnv, {_W}, all on another node", "ours", "ours", {**_RAY, "far": True}),
    Entry("raw", f"{CORES} raw loops at once", "raw", "raw", {"processes": CORES}),
    Entry("plangym_ray", f"plangym's RayEnv, {_W}", "plangym", "states", {**_HERE, "ray": True}),
    Entry("plangym_parallel", f"plangym's ParallelEnv, {_W}", "plangym", "states", _HERE),
)


def page(results: dict[str, Any]) -> str:
    """Return the tables."""
    rows = [
        (row["label"], shown(row), "" if row["ray_over"] is None else f"{row['ray_over']:.2f}")
        for row in results["rows"]
    ]
    told = "MsPacman RAM, 1 frame a transition, 256 states:"
    head = ("contender", "transitions/s", "RayEnv divided by it")
    return "\n".join([method(results), told, "", *table(head, rows)])


def main() -> None:
    """Measure, print, write."""
    options = contest_parser(__doc__).parse_args()
    rounds, seconds = (3, 0.3) if options.quick else (11, 0.5)
    results, shared = begun(options, rounds)
    with Contest(ENTRIES, JOB, **shared) as contest:
        contest.run(rounds=rounds, seconds=seconds)
    ray = contest.figures["ray"]
    results["rows"] = [
        {**figure.record(), "ray_over": None if figure is ray else paired_ratio(ray, figure)}
        for figure in contest.figures.values()
    ]
    print(page(results))
    if not options.quick:
        publish("ray", results, page(results))


if __name__ == "__main__":
    main()

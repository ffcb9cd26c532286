"""Measure batches on Ray against batches on this machine's processes.

Run it from anywhere::

    python benchmarks/ray_bench.py                    # writes docs/figures/ray.json and ray.md
    python benchmarks/ray_bench.py --quick            # a rough look, writes nothing
    python benchmarks/ray_bench.py --python plangym=/path/to/python

Each contender starts its own Ray with this machine's cores; their slices are interleaved.
"""

from __future__ import annotations

from harness import CORES
from interleave import Entry, compare

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
TITLE = "MsPacman RAM, 1 frame a transition, 256 states"
OVER = {"ray": "RayEnv divided by it"}

if __name__ == "__main__":
    compare(__doc__, "ray", ENTRIES, JOB, TITLE, OVER, seconds=0.5)

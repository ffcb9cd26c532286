"""Measure rollout collection against its rivals and the bare loop, in one interleaved run.

Run it from anywhere::

    python benchmarks/rollout_bench.py            # writes docs/figures/rollouts.*
    python benchmarks/rollout_bench.py --quick    # a rough look, writes nothing
    python benchmarks/rollout_bench.py --python bbrl_rollout=/path/to/python ...

The rivals (``sb3_rollout``, ``bbrl_rollout``, ``torchrl_rollout``) need older versions of this
package's dependencies, so install them in a separate environment: ``pip install torch==2.13.0
torchrl==0.14.1 bbrl==1.0.1 stable-baselines3==2.9.2``. Rivals that are not installed are listed as
missing.
"""

from __future__ import annotations

from interleave import Entry, compare

LANES, WORKERS = 16, 2
ENTRIES = (
    Entry("ours", "plangym_like, multi, 2 workers", "ours_rollout", "ours", {"workers": WORKERS}),
    Entry(
        "ours_critic",
        "plangym_like, the same with a critic",
        "ours_rollout",
        "ours",
        {"workers": WORKERS, "critic": True},
    ),
    Entry("ours_board", "plangym_like, workspaces, 1 process", "workspaces_rollout", "ours"),
    Entry("bare", "the bare loop, 2 processes", "bare_rollout", "raw", {"processes": WORKERS}),
    Entry("sb3", "SB3, DummyVecEnv", "sb3_rollout", "forward"),
    Entry("bbrl", "BBRL, ParallelGymAgent", "bbrl_rollout", "forward"),
    Entry(
        "torchrl",
        "torchrl, MultiSyncCollector, 2 workers",
        "torchrl_rollout",
        "forward",
        {"workers": WORKERS},
    ),
)
TITLE = (
    "CartPole, 16 environments, a policy of 64 units; SB3 has a critic too, the other rivals have "
    "none"
)
JOB = {"env_id": "CartPole-v1", "obs_type": None, "count": LANES}
OVER = {"ours": "ours divided by it", "ours_critic": "ours with a critic divided by it"}

if __name__ == "__main__":
    compare(__doc__, "rollouts", ENTRIES, JOB, TITLE, OVER, seconds=1.0)

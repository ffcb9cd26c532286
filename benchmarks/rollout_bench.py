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

import statistics
from typing import Any

from bench import QUIET_SCALING
from harness import publish, table
from interleave import Contest, Entry, begun, contest_parser, method

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
    # Half of the environments: what one core does alone says how quiet the machine was.
    Entry(
        "bare_one", "the same, 1 process, 8 environments", "bare_rollout", "raw", {"alone": True}
    ),
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
TITLE = "CartPole, 16 environments, a policy of 64 units"
JOB = {"env_id": "CartPole-v1", "obs_type": None, "count": LANES}


def counted(rates: dict[str, list[int]]) -> list[int]:
    """Return the rounds that count: where two bare loops did about twice the work of one.

    In the others something else was using the cores.
    """
    pairs = zip(rates["bare"], rates["bare_one"], strict=True)
    return [i for i, (both, one) in enumerate(pairs) if both >= QUIET_SCALING * WORKERS * one]


def page(results: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    rates = {row["key"]: row["rates"] for row in results["rows"]}
    rounds = counted(rates)

    def ratio(over: str, under: str) -> str:
        if not rates[over] or not rates[under] or not rounds:
            return ""
        return f"{statistics.median(rates[over][i] / rates[under][i] for i in rounds):.2f}"

    rows = []
    for row in results["rows"]:
        found = [row["rates"][i] for i in rounds] if row["rates"] else []
        rate = f"{statistics.median(found):,.0f}" if found else row["reason"] or ""
        ratios = (ratio(over, row["key"]) for over in ("ours", "ours_critic"))
        rows.append((row["label"], rate, *ratios))
    told = (
        f"{TITLE}. {len(rounds)} of {results['rounds']} rounds count: those in which two bare "
        "loops did at least 1.6 times the work of one, so that nothing else was using the cores. "
        "SB3 has a critic besides its policy, the other rivals have none."
    )
    head = ("collector", "steps/s", "ours divided by it", "ours with a critic divided by it")
    return "\n".join([method(results), told, "", *table(head, rows)])


def main() -> None:
    """Measure, print, write."""
    options = contest_parser(__doc__).parse_args()
    rounds, seconds = (3, 0.5) if options.quick else (11, 1.0)
    results, shared = begun(options, rounds)
    with Contest(ENTRIES, JOB, **shared) as contest:
        contest.run(rounds=rounds, seconds=seconds)
    results["rows"] = [figure.record() for figure in contest.figures.values()]
    print(page(results))
    if not options.quick:
        publish("rollouts", results, page(results))


if __name__ == "__main__":
    main()

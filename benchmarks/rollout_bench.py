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
from harness import machine, publish, table
from interleave import Contest, Entry, contest_parser, interpreters, method

LANES, WORKERS = 16, 2
CART_POLE = (
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
TASKS: dict[str, tuple[str, dict[str, Any], tuple[Entry, ...]]] = {
    "cartpole": (
        "CartPole, 16 environments, a policy of 64 units",
        {"env_id": "CartPole-v1", "obs_type": None, "count": LANES},
        CART_POLE,
    ),
    "atari": (
        "Breakout, 16 environments, 4 frames of 84 x 84, random actions",
        {"env_id": "ALE/Breakout-v5", "obs_type": None, "count": LANES},
        tuple(entry for entry in CART_POLE if entry.key in ("ours", "bare")),
    ),
}


def measure(key: str, rounds: int, seconds: float, **shared: Any) -> dict[str, Any]:
    """Return one task's figures as they go into the JSON file."""
    title, job, entries = TASKS[key]
    with Contest(entries, job, **shared) as contest:
        contest.run(rounds=rounds, seconds=seconds)
    rows = [figure.record() for figure in contest.figures.values()]
    return {"key": key, "title": title, "rows": rows}


def counted(record: dict[str, Any]) -> list[int]:
    """Return the rounds that count: where two bare loops did about twice the work of one.

    In the others something else was using the cores.
    """
    rates = {row["key"]: row["rates"] for row in record["rows"]}
    every = list(range(len(rates["ours"])))
    both, one = rates["bare"], rates.get("bare_one")
    if not both or not one:
        return every
    return [i for i in every if both[i] >= QUIET_SCALING * WORKERS * one[i]]


def table_of(record: dict[str, Any]) -> list[str]:
    """Return one task's table in Markdown."""
    rates = {row["key"]: row["rates"] for row in record["rows"]}
    rounds = counted(record)

    def ratio(over: str, under: str) -> str:
        if not rates.get(over) or not rates.get(under) or not rounds:
            return ""
        return f"{statistics.median(rates[over][i] / rates[under][i] for i in rounds):.2f}"

    numerators = {"ours": "ours divided by it", "ours_critic": "ours with a critic divided by it"}
    shown = {key: title for key, title in numerators.items() if key in rates}
    rows = []
    for row in record["rows"]:
        found = [row["rates"][i] for i in rounds] if row["rates"] else []
        rate = f"{statistics.median(found):,.0f}" if found else row["reason"] or ""
        rows.append((row["label"], rate, *(ratio(over, row["key"]) for over in shown)))
    told = f"{len(rounds)} of {len(rates['ours'])} rounds count."
    head = ("collector", "steps/s", *shown.values())
    return [f"**{record['title']}**", "", *table(head, rows), told, ""]


def page(results: dict[str, Any]) -> str:
    """Return the tables."""
    told = (
        "Rounds count if two bare loops did at least 1.6 times the work of one, so that nothing "
        "else was using the cores. SB3 has a critic besides its policy, the other rivals have none."
    )
    tables = [line for record in results["tasks"] for line in table_of(record)]
    return "\n".join([method(results), told, "", *tables])


def main() -> None:
    """Measure, print, write."""
    parser = contest_parser(__doc__)
    parser.add_argument("--only", choices=TASKS, nargs="+", help="only these tasks")
    options = parser.parse_args()
    rounds, seconds = (3, 0.5) if options.quick else (11, 1.0)
    shared: dict[str, Any] = {"interpreters": interpreters(options.python), "versions": {}}
    results: dict[str, Any] = {
        "machine": machine(),
        "rounds": rounds,
        "versions": shared["versions"],
        "tasks": [measure(key, rounds, seconds, **shared) for key in options.only or TASKS],
    }
    print(page(results))
    if not options.quick and not options.only:
        publish("rollouts", results, page(results))


if __name__ == "__main__":
    main()

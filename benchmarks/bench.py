"""Measure plangym_like against its rivals and against the bare simulator, in one interleaved run.

Run it from anywhere::

    python benchmarks/bench.py                      # all jobs, writes docs/figures/bench.*
    python benchmarks/bench.py --quick              # fewer rounds, writes nothing
    python benchmarks/bench.py --python plangym=/path/to/python

Each contender runs in its own process, with this interpreter or the one that ``--python`` gives for
it. Contenders that are not installed are listed as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import CORES, FIGURES, report, table
from interleave import (
    Contest,
    Entry,
    Figure,
    begun,
    contest_parser,
    method,
    paired_ratio,
    shown,
)

STARTS = {"ours": "yes", "raw": "yes", "states": "yes", "forward": "no, forward only"}
# Rounds and seconds of a slice, for batches of many rows and for batches of every size.
FULL, QUICK = (15, 0.25, 21, 0.05), (3, 0.15, 5, 0.03)
# Sizes of batches in which workers are compared with this process alone. From `LARGE` rows on, a
# slice is longer. A ratio below `NEAR` is measured in twice as many further rounds.
SIZES, LARGE, NEAR = (1, 2, 4, 8, 16, 64, 256), 64, 0.98


@dataclass(frozen=True)
class Task:
    """One job with the title that tables and chart give it."""

    key: str
    title: str
    job: Mapping[str, Any]


def _task(key: str, title: str, env_id: str, obs_type: str | None, count: int) -> Task:
    return Task(key, title, {"env_id": env_id, "obs_type": obs_type, "count": count})


_GAME = "1 frame a transition, 256 states"
TASKS = (
    _task("mspacman_rgb", f"MsPacman RGB, {_GAME}", "ALE/MsPacman-v5", "rgb", 256),
    _task("mspacman_ram", f"MsPacman RAM, {_GAME}", "ALE/MsPacman-v5", "ram", 256),
    _task("cartpole", "CartPole, 1,024 states", "CartPole-v1", None, 1024),
)


def entries(task: Task) -> list[Entry]:
    """Return who takes part; rivals enter in several ways, of which the best counts."""
    atari = task.job["obs_type"] is not None
    found = [
        Entry("ours", f"plangym_like, {CORES} workers", "ours", "ours", {"n_workers": CORES}),
        Entry("ours_serial", "plangym_like, serial", "ours", "ours", {"n_workers": None}),
        Entry("raw", f"{CORES} raw loops at once", "raw", "raw", {"processes": CORES}),
        Entry("raw_one", "one raw loop", "raw", "raw", {"processes": 1}),
    ]
    for n_workers in (None, CORES, 2 * CORES):
        label = f"plangym, {'serial' if n_workers is None else f'{n_workers} workers'}"
        options: dict[str, Any] = {"n_workers": n_workers}
        key = f"plangym_{n_workers or 'serial'}"
        found.append(Entry(key, label, "plangym", "states", options))
    for name, counts in (
        ("Gymnasium SyncVectorEnv", (16 if atari else 256,)),
        ("Gymnasium AsyncVectorEnv", (CORES, 8)),
        ("SB3 SubprocVecEnv", (CORES, 8)),
    ):
        kind = name.split()[1]
        for count in counts:
            label, options = f"{name}, {count} envs", {"kind": kind, "num_envs": count}
            found.append(Entry(f"{kind}_{count}", label, "gymnasium", "forward", options))
    # More emulators in a pool make it no faster here, only slow to open.
    pooled = 64 if atari else 256
    for threads in (1, CORES):
        label = f"EnvPool, {pooled} envs, {threads} thread{'s' * (threads > 1)}"
        options = {"num_envs": pooled, "num_threads": threads}
        found.append(Entry(f"envpool_{threads}", label, "envpool", "forward", options))
    # On one core, two of the ways above are the same.
    return list({entry.key: entry for entry in found}.values())


def record_of(task: Task, figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return one task's figures as they go into the JSON file."""
    raw = figures["raw"]
    found = [figure.evidence for figure in figures.values() if figure.evidence]
    return {
        "key": task.key,
        "title": task.title,
        # Whether all who start from the given states found the same observations and rewards.
        "same_work": all(evidence == found[0] for evidence in found),
        "rows": [
            {**figure.record(), "over_raw": paired_ratio(figure, raw)}
            for figure in figures.values()
        ],
    }


def parallel_over_serial(
    library: str, task: Task, rounds: int, seconds: float, **shared: Any
) -> dict[int, float]:
    """Return, by rows in a batch, the rate with workers divided by the rate without.

    The result is empty if the library could not take part.
    """
    pair = [
        Entry("serial", "serial", library, library, {"n_workers": None}),
        Entry("parallel", "parallel", library, library, {"n_workers": CORES}),
    ]
    found: dict[int, float] = {}
    with Contest(pair, {**task.job, "count": max(SIZES)}, **shared) as contest:
        serial, parallel = contest.figures["serial"], contest.figures["parallel"]
        # Not counted: workers are still starting.
        contest.run(rounds=rounds, seconds=seconds, count=1)
        for size in SIZES:
            serial.rates.clear()
            parallel.rates.clear()
            long = seconds * (4 if size >= LARGE else 1)
            contest.run(rounds=rounds, seconds=long, count=size)
            ratio = paired_ratio(parallel, serial)
            if library == "ours" and ratio is not None and ratio < NEAR:
                # The median of all rounds counts, those above included.
                contest.run(rounds=2 * rounds, seconds=long, count=size)
                ratio = paired_ratio(parallel, serial)
            if ratio is None:
                return {}
            found[size] = ratio
    return found


def one_row(task: Task, rounds: int, seconds: float, **shared: Any) -> dict[str, float]:
    """Return the microseconds of a step of one state, by contender."""
    found = [Entry("raw", "raw loop", "raw", "raw", {"processes": 1})]
    for module, name in (("ours", "plangym_like"), ("plangym", "plangym")):
        for call, single in (("step(a, state=s)", True), ("step_batch", False)):
            options = {"n_workers": None, "single": single}
            found.append(Entry(f"{module}, {call}", f"{name}, `{call}`", module, "ours", options))
    with Contest(found, {**task.job, "count": 200}, **shared) as contest:
        contest.run(rounds=rounds, seconds=seconds, count=1)
    figures = contest.figures.values()
    return {each.entry.label: round(1e6 / each.median, 1) for each in figures if each.median}


def rows_of(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of one task's table."""
    found = []
    for row in record["rows"]:
        ratio = "" if row["over_raw"] is None else f"{row['over_raw']:.2f}"
        found.append((row["label"], STARTS[row["group"]], shown(row), ratio))
    return found


def page(results: Mapping[str, Any]) -> str:
    """Return all tables."""
    parts = [method(results)]
    for record in results["throughput"]:
        head = ("contender", "starts from given states", "transitions/s", "of the raw loops")
        parts += [f"**{record['title']}**", "", *table(head, rows_of(record))]
    rows = [
        (library, job, *(f"{ratios[size]:.2f}" if ratios else "" for size in SIZES))
        for library, jobs in results["parallel_over_serial"].items()
        for job, ratios in jobs.items()
    ]
    parts += ["**Parallel divided by serial, by rows in a batch**", ""]
    parts += table(("library", "job", *SIZES), rows)
    singly = results["one_row"]
    labels = dict.fromkeys(label for times in singly.values() for label in times)
    rows = [(label, *(times.get(label, "") for times in singly.values())) for label in labels]
    parts += ["**One state at a time, microseconds of a step**", ""]
    parts += table(("contender", *singly), rows)
    return "\n".join(parts)


def main() -> None:
    """Measure, print, write."""
    options = contest_parser(__doc__).parse_args()
    rounds, seconds, batch_rounds, batch_seconds = QUICK if options.quick else FULL
    results, shared = begun(options, rounds)
    results |= {
        "throughput": [],
        "parallel_over_serial": {"plangym_like": {}, "plangym": {}},
        "one_row": {},
    }
    for task in TASKS:
        with Contest(entries(task), task.job, **shared) as contest:
            contest.run(rounds=rounds, seconds=seconds)
        record = record_of(task, contest.figures)
        results["one_row"][task.key] = one_row(task, batch_rounds, batch_seconds, **shared)
        results["throughput"].append(record)
        print(*rows_of(record), sep="\n", flush=True)
        if not record["same_work"]:
            print("WARNING: not everybody found the same observations and rewards")
        for library, jobs in results["parallel_over_serial"].items():
            # A rival's row is for comparison, it needs no fine ruler.
            ours = library == "plangym_like"
            module, often = ("ours", batch_rounds) if ours else (library, max(3, batch_rounds // 4))
            jobs[task.key] = parallel_over_serial(module, task, often, batch_seconds, **shared)
    report("bench", results, page(results), quick=options.quick)
    if not options.quick:
        import chart

        chart.draw(results, FIGURES / "bench.png")


if __name__ == "__main__":
    main()

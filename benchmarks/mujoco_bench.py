"""Measure MuJoCo: our batches against its ``rollout`` and ``batch``, mjbatch, and plangym.

Run it from anywhere::

    python benchmarks/mujoco_bench.py           # writes docs/figures/mujoco.json and mujoco.md
    python benchmarks/mujoco_bench.py --quick   # a rough look, writes nothing
    python benchmarks/mujoco_bench.py --python mjbatch=/path/to/python

mjbatch 0.1 requires MuJoCo 3.14.0, so it needs a virtual environment of its own, with Gymnasium.
``mujoco.rollout`` is measured with physics alone and, on HalfCheetah, with observations, rewards
and flags calculated from its states; our batches also return states to continue from, and infos.
Each contender runs in its own process, and they are measured in turn, for a second each: the first
batch after a pause takes a third longer, because cores and workers are asleep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness import report, table
from interleave import Contest, Entry, begun, contest_parser, method, paired_ratio, shown

ROWS, HORIZON = 256, 20


@dataclass(frozen=True)
class Task:
    """One table: what is stepped, by whom, and whom the first ratio is over.

    ``also`` are further ratios that are told: a text, and the keys of two entries.
    """

    key: str
    title: str
    env_id: str
    entries: tuple[Entry, ...]
    over: str
    also: tuple[tuple[str, str, str], ...] = ()


def _ours(n_workers: int | None, horizon: int = 0, *, bare: bool = False) -> Entry:
    label = f"plangym_like, {n_workers} workers" if n_workers else "plangym_like, serial"
    key = "ours" if n_workers else "ours_serial"
    options = {"n_workers": n_workers, "horizon": horizon, "bare": bare}
    return Entry(key, label, "ours", "ours", options)


def _rollout(threads: int, horizon: int = 0, *, told: bool = False) -> Entry:
    what = "with observations, rewards, flags" if told else "physics alone"
    label = f"mujoco.rollout, {threads} thread{'s' * (threads > 1)} ({what})"
    options = {"threads": threads, "horizon": horizon, "told": told}
    key = f"told_{threads}" if told else f"rollout_{threads}"
    return Entry(key, label, "mujoco_rollout", "raw", options)


def _batch(threads: int, horizon: int = 0) -> Entry:
    label = f"mujoco.batch, {threads} thread{'s' * (threads > 1)} (physics alone)"
    options = {"threads": threads, "horizon": horizon}
    return Entry(f"batch_{threads}", label, "mujoco_batch", "raw", options)


def _mjbatch(horizon: int = 0) -> Entry:
    options = {"threads": 2, "horizon": horizon}
    return Entry("mjbatch", "mjbatch, 2 threads (physics alone)", "mjbatch", "raw", options)


def _cheetah(horizon: int = 0) -> tuple[Entry, ...]:
    alone = _rollout(2, horizon), _rollout(1, horizon), _batch(2, horizon), _batch(1, horizon)
    others = *alone, _mjbatch(horizon), _rollout(2, horizon, told=True)
    return _ours(2, horizon), _ours(None, horizon), *others


def _plangym(n_workers: int | None) -> Entry:
    label = f"plangym, {n_workers} workers" if n_workers else "plangym, serial"
    key = "plangym" if n_workers else "plangym_serial"
    options = {"n_workers": n_workers, "render_mode": None}
    return Entry(key, label, "plangym", "states", options)


def _robot(name: str) -> Task:
    alone = _rollout(2), _batch(2), _mjbatch()
    everybody = (_ours(2), _ours(None), *alone, _plangym(2), _plangym(None))
    title = f"{name}, {ROWS} states"
    also = (
        ("over mujoco.batch, 2 threads", "ours", "batch_2"),
        ("over plangym as its `make` gives it, serial", "ours", "plangym_serial"),
        ("for comparison, mujoco.rollout over plangym, 2 workers", "rollout_2", "plangym"),
    )
    return Task(name, title, f"{name}-v5", everybody, "plangym_best", also)


_TOLD = (
    ("over the same with its observations, rewards and flags", "ours", "told_2"),
    ("over mujoco.batch, 2 threads", "ours", "batch_2"),
)

TASKS = (
    Task(
        "HalfCheetah",
        f"HalfCheetah, {ROWS} states",
        "HalfCheetah-v5",
        (*_cheetah(), _plangym(2), _plangym(None)),
        "rollout_2",
        _TOLD,
    ),
    Task(
        "HalfCheetah_plans",
        f"HalfCheetah, {ROWS} plans of {HORIZON} steps",
        "HalfCheetah-v5",
        _cheetah(HORIZON),
        "rollout_2",
        _TOLD,
    ),
    Task(
        "model",
        f"HalfCheetah's XML file and a reward of one line, {ROWS} states",
        "HalfCheetah-v5",
        (_ours(2, bare=True), _ours(None, bare=True), _batch(2), _batch(1), _mjbatch()),
        "batch",
    ),
    _robot("Ant"),
    _robot("Humanoid"),
    Task(
        "walker_walk",
        f"dm_control walker-walk, {ROWS} states",
        "walker-walk",
        (_ours(2), _ours(None), _plangym(2), _plangym(None)),
        "plangym_best",
    ),
)


def measure(task: Task, rounds: int, seconds: float, **shared: Any) -> dict[str, Any]:
    """Return the figures of one task."""
    job = {"env_id": task.env_id, "obs_type": None, "count": ROWS}
    with Contest(task.entries, job, **shared) as contest:
        for _ in range(3):
            # Our batches find out first whether to go to the workers.
            contest.run(rounds=1, seconds=seconds)
        for figure in contest.figures.values():
            figure.rates.clear()
        contest.run(rounds=rounds, seconds=seconds)
    figures = contest.figures
    rivals = [figures[key] for key in figures if key.startswith(task.over.split("_best")[0])]
    best = max(rivals, key=lambda figure: figure.median or 0.0)
    return {
        "key": task.key,
        "title": task.title,
        "over": f"plangym_like, 2 workers, over {best.entry.label}",
        "ratio": paired_ratio(figures["ours"], best),
        "also": {
            text: found
            for text, one, other in task.also
            if (found := paired_ratio(figures[one], figures[other])) is not None
        },
        "rows": [figure.record() for figure in figures.values()],
    }


def page(results: dict[str, Any]) -> str:
    """Return the tables."""
    lines = [method(results)]
    for task in results["tasks"]:
        rows = [(row["label"], shown(row)) for row in task["rows"]]
        lines += [f"**{task['title']}**", "", *table(("contender", "transitions/s"), rows)]
        also = "".join(f"; {text}: {found}" for text, found in task["also"].items())
        lines += [f"{task['over']}: **{task['ratio']}**{also}", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure and write."""
    options = contest_parser(__doc__).parse_args()
    rounds, seconds = (3, 0.2) if options.quick else (9, 1.0)
    results, shared = begun(options, rounds)
    results["tasks"] = [measure(task, rounds, seconds, **shared) for task in TASKS]
    report("mujoco", results, page(results), quick=options.quick)


if __name__ == "__main__":
    main()

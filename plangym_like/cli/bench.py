"""``plangym-like bench ID``: measure states per second by batch size and number of workers.

Each figure is the median of several measurements. The columns are measured in turn, under the same
load. Audits are on, as in `make`, unless ``--set audit=off`` is given; the line "audits" says how
many rows they stepped a second time.

The last table is for one state, in microseconds of CPU time, without workers: the environment's own
step, beside which nothing is saved; `copy.deepcopy` of the environment and a step of the copy, if
copies go on as the environment does; ``env.step(action, state=state)``; and one row of a batch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from plangym_like.cli import saving
from plangym_like.cli.arguments import (
    OK,
    UsageError,
    add_env_command,
    add_json,
    add_settings,
    counts,
    duration,
    find,
    make_env,
    whole,
)
from plangym_like.env import PlanEnv
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.planners.action_sets import ActionSampler
from plangym_like.processes.child import platform_has_workers

_POOL = 256  # states to step
_SLICES = 5
# Options of `make` that change no step; the environment itself does not have them.
_OPTIONS = ("audit", "audit_every", "isolate", "snapshot", "start_timeout", "step_timeout")


def add_to(commands: Any) -> None:
    """Add this command to `commands`, the subparsers of the program."""
    parser = add_env_command(
        commands,
        "bench",
        purpose="measure states per second, and where the time goes",
        description=__doc__,
    )
    parser.add_argument(
        "--batches",
        type=counts,
        default=(1, 16, 256),
        help="sizes of batches, separated by commas (1,16,256)",
    )
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--workers",
        type=counts,
        default=(cores,) if platform_has_workers() else (),
        help="numbers of workers, separated by commas, in addition to none "
        f"({cores}, the cores of this machine; none if it has no Linux)",
    )
    parser.add_argument(
        "--seconds", type=duration, default=1.0, help="how long to measure each figure (1)"
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of episodes and actions (0)")
    add_settings(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Measure the rates, and print them as a table or as JSON."""
    if not chosen.batches or min(chosen.batches) < 1:
        raise UsageError("--batches needs numbers of at least 1")
    if not chosen.seconds > 0:
        raise UsageError("--seconds must be greater than 0")
    with contextlib.ExitStack() as stack:
        envs: dict[str, PlanEnv] = {}
        for workers in (None, *chosen.workers):
            name = "serial" if workers is None else f"{workers} worker{'s' * (workers != 1)}"
            env = make_env(chosen.id, workers, **dict(chosen.set))
            envs[name] = stack.enter_context(env)
        rates = _rates(envs, chosen)
        audited = {name: (env.stats.rows_audited, env.stats.rows) for name, env in envs.items()}
        kwargs = {name: value for name, value in chosen.set if name not in _OPTIONS}
        calls = saving.calls_of(envs["serial"], find(chosen.id), **kwargs)
        microseconds = saving.measure(calls, chosen.seconds)
        way = envs["serial"].snapshot
    if chosen.json:
        result = {
            "id": chosen.id,
            "states_per_second": rates,
            "microseconds": microseconds,
            "saved_by": way,
            "rows_audited": {name: count for name, (count, _) in audited.items()},
            "rows": {name: count for name, (_, count) in audited.items()},
        }
        print(json.dumps(result))
        return OK
    _print_table(chosen.id, rates)
    told = (f"{few:,} of {many:,} ({name})" for name, (few, many) in audited.items())
    print(f"audits: rows that were stepped a second time: {', '.join(told)}")
    print("one state, in microseconds of CPU time")
    print("".join(f"{column:>24s}" for column in (*saving.COLUMNS, "saved by")))
    cells = ["-" if value is None else f"{value:,.1f}" for value in microseconds.values()]
    print("".join(f"{cell:>24s}" for cell in (*cells, way)))
    return OK


def _rates(envs: dict[str, PlanEnv], chosen: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the rows stepped per second, by batch size and then by name of the env."""
    rates: dict[str, dict[str, float]] = {}
    states, _, legal = saving.random_states(envs["serial"], chosen.seed, _POOL)
    sample, rng = ActionSampler(envs["serial"], "bench"), np.random.default_rng(chosen.seed)
    for size in chosen.batches:
        drawn = rng.integers(0, _POOL, size)
        rows, actions = states[drawn], sample.among(sample(rng, size), legal[drawn], rng)
        calls = {name: partial(env.step_batch, actions, rows) for name, env in envs.items()}
        for name, call in calls.items():
            _warm_up(envs[name], call, chosen.seconds / _SLICES)
        slices: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(_SLICES):
            for name, call in calls.items():
                slices[name].append(size * _rate(call, chosen.seconds / _SLICES))
        rates[str(size)] = {name: statistics.median(taken) for name, taken in slices.items()}
    return rates


def _warm_up(env: PlanEnv, call: Callable[[], Any], seconds: float) -> None:
    """Wait until all workers are ready; then call `call` repeatedly for `seconds`."""
    if isinstance(env.executor, ProcessExecutor):
        with env.executor.lock:
            env.executor.pool.wait_ready()
    _rate(call, seconds)


def _rate(call: Callable[[], Any], seconds: float) -> float:
    """Call `call` repeatedly for `seconds`; return the number of calls per second."""
    begun, done = time.perf_counter(), 0
    while True:
        call()
        done += 1
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            return done / elapsed


def _print_table(name: str, rates: dict[str, dict[str, float]]) -> None:
    columns = list(next(iter(rates.values())))
    print(f"{name}, states per second (times serial)")
    print("batch  " + "".join(f"{column:>22s}" for column in columns))
    for size, row in rates.items():
        cells = []
        for column in columns:
            ratio = "" if column == "serial" else f" ({row[column] / row['serial']:.2f})"
            cells.append(f"{row[column]:,.0f}{ratio}")
        print(f"{size:7s}" + "".join(f"{cell:>22s}" for cell in cells))

"""``plangym-like bench ID``: measure states per second by batch size and number of workers.

Each figure is the median of several measurements. The columns are measured in turn, under the same
load. The line "gymnasium" is for the environment that gymnasium.make returns, stepped in a plain
loop without saving or restoring states. Audits are on, as in `make`, unless ``--set audit=off`` is
given; the line "audits" says how many rows they stepped a second time. The last lines divide the
CPU time of one state, and of one row of a batch, into parts; both are measured without workers.
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

import gymnasium
import numpy as np

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
from plangym_like.states.rows import Row

_POOL = 256  # states to step
_SLICES = 5
_CALLS = 200


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
        states = pool_of_states(envs["serial"], chosen.seed)
        rates = _rates(envs, states, chosen)
        audited = {name: (env.stats.rows_audited, env.stats.rows) for name, env in envs.items()}
        parts = parts_of(envs["serial"], states)
    raw = _gymnasium_rate(chosen.id, dict(chosen.set), chosen.seconds)
    if chosen.json:
        result = {
            "id": chosen.id,
            "states_per_second": rates,
            "gymnasium_steps_per_second": raw,
            "microseconds": parts,
            "rows_audited": {name: count for name, (count, _) in audited.items()},
            "rows": {name: count for name, (_, count) in audited.items()},
        }
        print(json.dumps(result))
        return OK
    _print_table(chosen.id, rates, raw, parts)
    told = (f"{few:,} of {many:,} ({name})" for name, (few, many) in audited.items())
    print(f"audits: rows that were stepped a second time: {', '.join(told)}")
    return OK


def pool_of_states(env: PlanEnv, seed: int) -> Row:
    """Return 256 states of random episodes, ``(256, state_nbytes)``."""
    sample, rng = ActionSampler(env, "bench"), np.random.default_rng(seed)
    root = state = env.reset(seed=seed).state
    states = []
    for action in sample(rng, _POOL):
        states.append(np.array(state))
        step = env.step_batch(action[None], state[None])
        over = step.terminateds[0] or step.truncateds[0]
        state = root if over else step.states[0]
    return np.stack(states)


def _rates(
    envs: dict[str, PlanEnv], states: Row, chosen: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return the rows stepped per second, by batch size and then by name of the env."""
    rates: dict[str, dict[str, float]] = {}
    rng = np.random.default_rng(chosen.seed)
    for size in chosen.batches:
        rows = states[rng.integers(0, _POOL, size)]
        actions = ActionSampler(envs["serial"], "bench")(rng, size)
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


def parts_of(env: PlanEnv, states: Row) -> dict[str, float]:
    """Return median CPU times in microseconds.

    They are the times of restoring, stepping and saving one state, of one row of a batch, and of
    the simulator's part of that row. CPU time hardly depends on other programs on the machine.
    """
    actions = ActionSampler(env, "bench")(np.random.default_rng(0), len(states))
    taken: dict[str, list[float]] = {"restore": [], "step": [], "save": []}
    for index in range(_CALLS):
        row, action = states[index % len(states)], actions[index % len(states)]
        begun = time.process_time()
        env.set_state(row)
        restored = time.process_time()
        env.step(action)
        stepped = time.process_time()
        env.get_state()
        taken["save"].append(1e6 * (time.process_time() - stepped))
        taken["step"].append(1e6 * (stepped - restored))
        taken["restore"].append(1e6 * (restored - begun))
    parts = {part: statistics.median(each) for part, each in taken.items()}
    rows_us, shares = [], []
    for _ in range(_SLICES + 1):
        inside, begun, used = env.stats.seconds_here, time.perf_counter(), time.process_time()
        env.step_batch(actions, states)
        rows_us.append(1e6 * (time.process_time() - used) / len(states))
        shares.append((env.stats.seconds_here - inside) / (time.perf_counter() - begun))
    parts["row_of_batch"] = statistics.median(rows_us)
    parts["of_it_in_simulator"] = parts["row_of_batch"] * statistics.median(shares)
    return parts


def _gymnasium_rate(name: str, kwargs: dict[str, Any], seconds: float) -> float | None:
    """Return the steps per second of Gymnasium alone; ``None`` if it cannot run the environment."""
    try:
        found = find(name)
        env = found(**kwargs) if callable(found) else gymnasium.make(found, **kwargs)
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(_POOL)]
        index = 0

        def step() -> None:
            nonlocal index
            index += 1
            _, _, terminated, truncated, _ = env.step(actions[index % _POOL])
            if terminated or truncated:
                env.reset()

        rate = statistics.median(_rate(step, seconds / _SLICES) for _ in range(_SLICES))
        env.close()
    except Exception:  # ids of this package alone, and arguments of `make` that Gymnasium lacks
        return None
    return rate


def _print_table(
    name: str, rates: dict[str, dict[str, float]], raw: float | None, parts: dict[str, float]
) -> None:
    columns = list(next(iter(rates.values())))
    print(f"{name}, states per second (times serial)")
    print("batch  " + "".join(f"{column:>22s}" for column in columns))
    for size, row in rates.items():
        cells = []
        for column in columns:
            ratio = "" if column == "serial" else f" ({row[column] / row['serial']:.2f})"
            cells.append(f"{row[column]:,.0f}{ratio}")
        print(f"{size:7s}" + "".join(f"{cell:>22s}" for cell in cells))
    if raw is not None:
        print(f"gymnasium: {raw:,.0f} steps per second, without saving and restoring")
    print(
        f"one state, in microseconds of CPU time: restore {parts['restore']:.1f}, "
        f"step {parts['step']:.1f}, save {parts['save']:.1f}"
    )
    whole, inside = parts["row_of_batch"], parts["of_it_in_simulator"]
    print(
        f"one row of a batch of {_POOL}: {whole:.1f}, of which "
        f"{inside:.1f} ({100 * inside / whole:.0f} %) in the simulator"
    )

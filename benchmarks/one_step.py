"""Measure single steps from given states, as in UCT or AlphaZero: ``env.step(action, state=s)``.

Run it from anywhere::

    python benchmarks/one_step.py              # writes docs/figures/one_step.json and one_step.md
    python benchmarks/one_step.py --quick      # a rough look, writes nothing

plangym and the raw emulator are measured in the same run, slice by slice in turn; if plangym is not
installed, its column stays empty. Figures are medians, in microseconds per step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine
from tables import table

import plangym_like

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
POOL = 200
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", {}),
    "mspacman_ram": ("ALE/MsPacman-v5", {"obs_type": "ram", "frameskip": 1}),
    "half_cheetah": ("HalfCheetah-v5", {}),
}
# Steps one state of a pool: `step(index)`.
Step = Callable[[int], Any]


def stepper(make: Callable[..., Any], job: str, **options: Any) -> tuple[Step, Step, Any]:
    """Return what steps a state of the pool by `step`, by `step_batch`, and the environment."""
    name, kwargs = JOBS[job]
    env = make(name, **kwargs, **options)
    first = seeded_reset(env)
    env.action_space.seed(0)
    states, state = [], first[0]
    actions = [env.action_space.sample() for _ in range(POOL)]
    for action in actions:
        result = env.step(action, state=state)
        state = first[0] if result[-3] else result[0]
        states.append(state)

    def step(index: int) -> Any:
        return env.step(actions[index], state=states[index])

    def step_batch(index: int) -> Any:
        return env.step_batch([actions[index]], states=[states[index]])

    return step, step_batch, env


def seeded_reset(env: Any) -> Any:
    """Reset with seed 0, so that all contenders of a job step the same states."""
    if isinstance(env, plangym_like.PlanEnv):
        return env.reset(seed=0)
    first = env.reset()  # plangym's takes no seed
    env.gym_env.reset(seed=0)
    return (env.get_state(), *first[1:])


def raw_stepper() -> Step:
    """Return the bare emulator's loop from bytes to bytes, on the states of the same game."""
    from ale_py import ALEInterface, ALEState, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("ms_pacman"))
    ale.reset_game()
    legal = ale.getMinimalActionSet()
    chance = random.Random(0)
    actions = [chance.choice(legal) for _ in range(POOL)]
    states = []
    for action in actions:
        ale.act(action)
        states.append(ale.cloneState().serialize())

    def step(index: int) -> Any:
        ale.restoreState(ALEState(states[index]))
        reward = ale.act(actions[index])
        return ale.cloneState().serialize(), ale.getRAM(), reward, ale.game_over()

    return step


def contenders(job: str) -> tuple[dict[str, Step], list[Any]]:
    """Return what to measure, by column, and the environments to close."""
    columns: dict[str, Step] = {}
    envs = []
    for label, options in (("ours", {}), ("ours, 2 workers", {"n_workers": 2})):
        step, batch, env = stepper(plangym_like.make, job, **options)
        columns[label], columns[f"{label}, step_batch"] = step, batch
        envs.append(env)
    try:
        import plangym
    except ImportError:
        pass
    else:
        columns["plangym"], columns["plangym, step_batch"], env = stepper(plangym.make, job)
        envs.append(env)
    if job == "mspacman_ram":
        columns["raw loop"] = raw_stepper()
    return columns, envs


def microseconds(step: Step, indices: list[int]) -> float:
    """Return the median time of a step, each step timed by itself."""
    clock, taken = time.perf_counter, []
    for index in indices:
        begun = clock()
        step(index)
        taken.append(clock() - begun)
    return statistics.median(taken) * 1e6


def measure(job: str, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Return medians by column, for states at random and for one state again and again."""
    columns, envs = contenders(job)
    chance = random.Random(1)
    taken: dict[str, dict[str, list[float]]] = {
        label: {"pool": [], "one state": []} for label in columns
    }
    for step in columns.values():  # first calls may be slower
        microseconds(step, [chance.randrange(POOL) for _ in range(400)])
    for _ in range(rounds):
        order = list(columns)
        chance.shuffle(order)
        for label in order:
            pool = [chance.randrange(POOL) for _ in range(steps)]
            taken[label]["pool"].append(microseconds(columns[label], pool))
            taken[label]["one state"].append(microseconds(columns[label], [7] * steps))
    for env in envs:
        env.close()
    return {
        label: {kind: round(statistics.median(values), 2) for kind, values in kinds.items()}
        for label, kinds in taken.items()
    }


def page(figures: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the figures of states from the pool as a table in Markdown."""
    rows = []
    for job, columns in figures.items():
        name = JOBS[job][0].removeprefix("ALE/")
        for call, suffix in (("step", ""), ("step_batch", ", step_batch")):
            labels = [f"ours{suffix}", f"ours, 2 workers{suffix}", f"plangym{suffix}"]
            found = [columns.get(label) for label in (*labels, "" if suffix else "raw loop")]
            told = ["" if each is None else f"{each['pool']:.1f}" for each in found]
            rows.append((name, f"`{call}`" + ", one row" * bool(suffix), *told))
    here = machine()
    head = ("environment", "call", "ours", "ours, 2 workers", "plangym", "raw emulator loop")
    where = f"{here['cores']} cores ({here['cpu']})"
    measured = f"Measured on {where}, slices interleaved, with audits, as in make."
    return "\n".join([f"{measured} Medians, in microseconds.", "", *table(head, rows)])


def main() -> None:
    """Measure all jobs, print them, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    chosen = parser.parse_args()
    rounds, steps = (5, 200) if chosen.quick else (21, 400)
    figures = {}
    for job in chosen.jobs:
        figures[job] = measure(job, rounds, steps)
        for label, kinds in figures[job].items():
            told = ", ".join(f"{kind} {value:.1f} us" for kind, value in kinds.items())
            print(f"{job:13s} {label:28s} {told}", flush=True)
    if not chosen.quick:
        FIGURES.mkdir(exist_ok=True)
        path = FIGURES / "one_step.json"
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        (FIGURES / "one_step.md").write_text(page(figures), encoding="utf-8")


if __name__ == "__main__":
    main()

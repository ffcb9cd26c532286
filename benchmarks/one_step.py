"""Measure single steps from given states, as in UCT or AlphaZero: ``env.step(action, state=s)``.

Run it from anywhere::

    python benchmarks/one_step.py              # writes docs/figures/one_step.json and one_step.md
    python benchmarks/one_step.py --quick      # a rough look, writes nothing

plangym and the raw emulator are measured in the same run, slice by slice in turn; if plangym is not
installed, its column stays empty. Figures are medians, in microseconds per step.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import in_turn, measured_on, medians, parser, publish, table

import plangym_like

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


def measure(job: str, rounds: int, steps: int) -> dict[str, float]:
    """Return medians by column, for states at random."""
    columns, envs = contenders(job)
    chance = random.Random(1)
    calls = {
        label: partial(lambda s: microseconds(s, [chance.randrange(POOL) for _ in range(steps)]), s)
        for label, s in columns.items()
    }
    in_turn(calls, 2)  # first calls may be slower
    found = medians(in_turn(calls, rounds))
    for env in envs:
        env.close()
    return found


def page(figures: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table in Markdown."""
    rows = []
    for job, columns in figures.items():
        name = JOBS[job][0].removeprefix("ALE/")
        for call, suffix in (("step", ""), ("step_batch", ", step_batch")):
            labels = [f"ours{suffix}", f"ours, 2 workers{suffix}", f"plangym{suffix}"]
            found = [columns.get(label) for label in (*labels, "" if suffix else "raw loop")]
            told = ["" if each is None else f"{each:.1f}" for each in found]
            rows.append((name, f"`{call}`" + ", one row" * bool(suffix), *told))
    head = ("environment", "call", "ours", "ours, 2 workers", "plangym", "raw emulator loop")
    told_how = f"{measured_on()}, slices interleaved, with audits, as in make."
    return "\n".join([f"{told_how} Medians, in microseconds.", "", *table(head, rows)])


def main() -> None:
    """Measure all jobs, print them, and write the figures."""
    chosen = parser(__doc__).parse_args()
    rounds, steps = (5, 200) if chosen.quick else (21, 400)
    figures = {job: measure(job, rounds, steps) for job in JOBS}
    print(page(figures))
    if not chosen.quick:
        publish("one_step", figures, page(figures))


if __name__ == "__main__":
    main()

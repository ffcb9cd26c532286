"""MuJoCo and dm_control tasks, played with CEM, iCEM and MPPI; see `results.py`.

An episode is played in closed loop: each action is the first one of a new plan, and is held for
`dt` steps of the environment. Wall times include everything but opening the environment.

The planning speed is that of one plan for HalfCheetah, from the same state and of the same size, by
MPPI and CEM of this package, and by MPPI of ``judo`` (``judo-rai``) and ``pytorch-mppi``, each left
out if it is not installed. judo simulates with `mujoco.rollout`, on one thread for each candidate;
judo-rai 0.1.0 requires MuJoCo below 3.7, so install it in a virtual environment of its own, or
with ``--no-deps``: it runs with MuJoCo 3.17 too.
pytorch-mppi has no simulator, so it is measured with three: Gymnasium's environment, set and
stepped plan by plan; `mujoco.rollout` on as many threads; and `step_batch`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium.envs.mujoco
import numpy as np
from harness import in_turn, medians, seconds_of

import plangym_like
from plangym_like.planners import CEM, ICEM, MPPI, Planner, play

STEPS, ROUNDS = 1000, 7
ASSETS = Path(gymnasium.envs.mujoco.__file__).parent / "assets"
# What plans once, and what closes it.
Controller: TypeAlias = tuple[Callable[[], object], Callable[[], object]]


_SHORT = {"horizon": 12, "batch": 30, "elites": 4, "beta": 1.0, "dt": 5}
# For each task: the planner, how many plans it has for an action, and its options.
TASKS: dict[str, tuple[type[Planner], int, dict[str, Any]]] = {
    "HalfCheetah-v5": (
        ICEM,
        100,
        {"horizon": 15, "batch": 40, "elites": 5, "beta": 0.25, "dt": 2},
    ),
    "walker-walk": (MPPI, 24, {"horizon": 10, "batch": 24, "dt": 4}),
    "cartpole-swingup": (ICEM, 100, {**_SHORT, "dt": 10}),
    "cheetah-run": (ICEM, 150, {**_SHORT, "batch": 50, "elites": 5}),
    "finger-spin": (ICEM, 60, _SHORT),
    "reacher-easy": (ICEM, 60, _SHORT),
    "ball_in_cup-catch": (ICEM, 60, _SHORT),
    "Swimmer-v5": (ICEM, 60, {**_SHORT, "horizon": 20}),
}


def play_task(*, task: str, n_workers: int | None, seed: int) -> dict[str, Any]:
    """Play one episode of `STEPS` steps, and return its figures."""
    kind, plans, options = TASKS[task]
    with plangym_like.make(task, n_workers=n_workers) as env:
        state = env.reset(seed=seed).state
        planner: Any = kind(env, **options)
        budget = (plans + 1) * planner.horizon
        begun = time.perf_counter()
        episode = play(planner, STEPS // planner.dt, state, budget=budget, seed=seed, progress=True)
        wall = time.perf_counter() - begun
    spent = episode.spent
    return {
        "planner": kind.__name__,
        "options": options,
        "plans": plans,
        "steps": len(episode) * planner.dt,
        "return": round(episode.score, 1),
        "seconds": round(wall, 2),
        "transitions_per_second": round(spent.transitions / wall),
        "outside_env": round(1 - spent.seconds_in_env / spent.seconds, 4),
    }


def controllers(n_workers: int, batch: int, horizon: int) -> dict[str, Controller]:
    """Return all controllers by name."""
    env = plangym_like.make("HalfCheetah-v5", n_workers=n_workers)
    state = env.reset(seed=0).state
    budget = (batch + 1) * horizon
    mppi = MPPI(env, horizon=horizon, batch=batch, beta=0.0, alpha=0.0)
    cem = CEM(env, horizon=horizon, batch=batch)

    def ours(planner: Planner) -> Callable[[], object]:
        def plan_once() -> object:
            # CEM makes the batch smaller for budgets of less than five batches.
            planner.plan(state, budget=budget if planner is mppi else 5 * budget, seed=0)
            return planner.advance()

        return plan_once

    found = {
        "MPPI of this package": (ours(mppi), env.close),
        "CEM of this package, 5 iterations": (ours(cem), lambda: None),
    }
    for package, others in (("judo", _judo), ("pytorch-mppi", _pytorch_mppi)):
        try:
            found |= others(env, state, n_workers, batch, horizon)
        except ImportError:
            print(f"{package} is not installed, and left out", file=sys.stderr)
    return found


def _judo(env: Any, state: Any, n_workers: int, batch: int, horizon: int) -> dict[str, Controller]:
    """Return MPPI of judo; it chooses its number of threads itself."""
    import judo.tasks.base
    from judo.controller import Controller as JudoController
    from judo.controller import ControllerConfig
    from judo.optimizers.mppi import MPPI, MPPIConfig

    # A task would download the meshes of judo's own models, which are not needed here.
    judo.tasks.base.download_and_extract_meshes = lambda **options: None
    view, frame_skip = env.view_state(state), 5

    class HalfCheetah(judo.tasks.base.Task):
        config_t = judo.tasks.base.TaskConfig

        def reward(self, states: Any, sensors: Any, controls: Any, metadata: Any = None) -> Any:
            seconds = frame_skip * self.dt
            speeds = (states[:, -1, 0] - view["qpos"][0]) / seconds
            return speeds - 0.1 * np.square(controls[:, ::frame_skip]).sum(axis=(1, 2))

    task = HalfCheetah(ASSETS / "half_cheetah.xml")
    config = ControllerConfig(horizon=horizon * frame_skip * task.dt, spline_order="zero")
    optimizer = MPPI(MPPIConfig(num_rollouts=batch, num_nodes=horizon, sigma=0.5), task.nu)
    controller = JudoController(config, task, optimizer)
    controller.current_state = np.concatenate([view["qpos"], view["qvel"]])
    assert controller.num_timesteps == horizon * frame_skip
    return {"MPPI of judo": (controller.update_action, lambda: None)}


def _pytorch_mppi(
    env: Any, state: Any, n_workers: int, batch: int, horizon: int
) -> dict[str, Controller]:
    """Return pytorch-mppi on three simulators."""
    import torch
    from pytorch_mppi import MPPI

    torch.set_num_threads(n_workers)
    simulators = {
        "gymnasium, plan by plan": _with_gymnasium,
        f"mujoco.rollout, {n_workers} threads": _with_rollout,
        "step_batch": _with_step_batch,
    }
    found: dict[str, Controller] = {}
    for name, simulator in simulators.items():
        dynamics, first, close = simulator(env, state, n_workers)
        rewards: list[Any] = []

        def step(
            states: Any, actions: Any, dynamics: Any = dynamics, rewards: Any = rewards
        ) -> Any:
            following, reward = dynamics(states.numpy(), actions.numpy())
            rewards[:] = [torch.from_numpy(-reward)]
            return torch.from_numpy(following)

        def cost(states: Any, actions: Any, rewards: Any = rewards) -> Any:
            return rewards[0]

        controller = MPPI(
            step,
            cost,
            len(first),
            torch.eye(6, dtype=torch.double) * 0.25,
            num_samples=batch,
            horizon=horizon,
            u_min=-torch.ones(6, dtype=torch.double),
            u_max=torch.ones(6, dtype=torch.double),
        )
        root = torch.from_numpy(first)
        found[f"pytorch-mppi on {name}"] = (
            lambda controller=controller, root=root: controller.command(root),
            close,
        )
    return found


def _with_gymnasium(env: Any, state: Any, n_workers: int) -> Any:
    """Return dynamics ``(states, actions) -> states, rewards``, the first state, and `close`."""

    base: Any = gymnasium.make("HalfCheetah-v5").unwrapped
    base.reset(seed=0)
    view = env.view_state(state)
    first = np.concatenate([view["qpos"], view["qvel"]])

    def dynamics(states: Any, actions: Any) -> Any:
        following, rewards = np.empty((len(actions), len(first))), np.empty(len(actions))
        for row, action in enumerate(actions):
            base.set_state(states[row, : base.model.nq], states[row, base.model.nq :])
            _, rewards[row], *_ = base.step(action)
            following[row] = np.concatenate([base.data.qpos, base.data.qvel])
        return following, rewards

    return dynamics, first, base.close


def _with_rollout(env: Any, state: Any, n_workers: int) -> Any:
    """As `_with_gymnasium`, on MuJoCo's own function for many states."""

    import mujoco
    from mujoco import rollout

    base: Any = gymnasium.make("HalfCheetah-v5").unwrapped
    view = env.view_state(state)
    first = np.concatenate([[0.0], view["qpos"], view["qvel"]])
    data = [mujoco.MjData(base.model) for _ in range(n_workers)]
    pool = rollout.Rollout(nthread=n_workers)

    def dynamics(states: Any, actions: Any) -> Any:
        controls = actions[:, None].repeat(base.frame_skip, axis=1)
        reached, _ = pool.rollout(base.model, data, np.ascontiguousarray(states), controls)
        speed = (reached[:, -1, 1] - states[:, 1]) / base.dt
        rewards = speed - 0.1 * np.square(actions).sum(axis=1)
        return reached[:, -1].copy(), rewards

    def close() -> None:
        pool.close()
        base.close()

    return dynamics, first, close


def _with_step_batch(env: Any, state: Any, n_workers: int) -> Any:
    """As `_with_gymnasium`, on this package; each number is a byte of a state row."""

    def dynamics(states: Any, actions: Any) -> Any:
        step = env.step_batch(actions.astype(np.float32), states.astype(np.uint8))
        return step.states.astype(np.float64), step.rewards

    return dynamics, state.astype(np.float64), lambda: None


def planning_speed(*, n_workers: int, batch: int = 128, horizon: int = 25) -> dict[str, Any]:
    """Measure all controllers in turn, and return the medians."""
    found = controllers(n_workers, batch, horizon)
    calls = {name: partial(seconds_of, plan_once) for name, (plan_once, _) in found.items()}
    try:
        in_turn(calls, 2)  # not counted
        seconds = medians(in_turn(calls, ROUNDS), digits=6)
    finally:
        for _, close in reversed(found.values()):
            close()
    rows = []
    for name, median in seconds.items():
        transitions = batch * horizon * (5 if "5 iterations" in name else 1)
        rows.append(
            {
                "controller": name,
                "plans_per_second": round(1 / median, 2),
                "transitions_per_second": round(transitions / median),
            }
        )
    return {"rows": rows}

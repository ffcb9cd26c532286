"""Every planner, for tests of what holds for all of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from board_games import TicTacToe
from suite import TAXI

from plangym_like import planners

# For each planner, an environment, a function that makes it, and the smallest budget.
EVERY_PLANNER: dict[str, tuple[Any, Any, int]] = {
    "random": (TAXI, partial(planners.RandomShooting, horizon=10, batch=8), 10),
    "beam": (TAXI, partial(planners.BeamSearch, width=8), 6),
    "uct": (TAXI, planners.UCT, 11),
    "chance": (TAXI, partial(planners.UCT, outcomes=2), 11),
    "open loop": (TAXI, partial(planners.OpenLoopMCTS, dt=2, batch=4), 20),
    "luck": ("FrozenLake-v1", partial(planners.OpenLoopMCTS, stochastic=True, batch=4), 20),
    "puct": (TAXI, partial(planners.PUCT, rollout=5), 6),
    "iw": (TAXI, partial(planners.IW, batch=4), 6),
    "rollout iw": (TAXI, partial(planners.RolloutIW, batch=8), 1),
    "best first": (TAXI, partial(planners.BestFirst, batch=4), 6),
    "a star": (TAXI, partial(planners.AStar, batch=4), 6),
    "fractal": (TAXI, planners.FractalMonteCarlo, 1),
    "go-explore": (TAXI, planners.GoExplore, 1),
    "cem": ("Pendulum-v1", partial(planners.CEM, horizon=10, batch=20, elites=4), 20),
    "icem": ("Pendulum-v1", partial(planners.ICEM, horizon=10, batch=20, dt=2), 20),
    "mppi": ("Pendulum-v1", partial(planners.MPPI, horizon=10, batch=10), 20),
    "game": (TicTacToe, partial(planners.OpenLoopMCTS, horizon=9), 9),
    "game with rollouts": (TicTacToe, partial(planners.PUCT, rollout=5), 6),
    "predictive": ("Pendulum-v1", partial(planners.PredictiveSampling, horizon=10, batch=10), 20),
}

"""Search algorithms, built on the public API of the package.

>>> import plangym_like
>>> from plangym_like import planners
>>> env = plangym_like.make("Taxi-v4")
>>> state, obs, info = env.reset(seed=0)
>>> planner = planners.RandomShooting(env, horizon=10)
>>> planner.plan(state, budget=1_000, seed=0).spent.transitions
1000
"""

from plangym_like.planners.best_first import AStar, BeamSearch, BestFirst
from plangym_like.planners.cells import (
    DynamicScreenCells,
    ObservationCells,
    ScreenCells,
    position_cells,
)
from plangym_like.planners.fractal_monte_carlo import FractalMonteCarlo
from plangym_like.planners.gaussian_plans import CEM, ICEM, MPPI, PredictiveSampling
from plangym_like.planners.go_explore import GoExplore, Visit
from plangym_like.planners.iw import IW, RolloutIW
from plangym_like.planners.observations import tile_colors, tile_pairs
from plangym_like.planners.open_loop import OpenLoopMCTS, RandomShooting
from plangym_like.planners.plan import Plan, Spent
from plangym_like.planners.planner import Planner, play
from plangym_like.planners.puct import PUCT
from plangym_like.planners.search import Progress, Search
from plangym_like.planners.uct import UCT

__all__ = [
    "CEM",
    "ICEM",
    "IW",
    "MPPI",
    "PUCT",
    "UCT",
    "AStar",
    "BeamSearch",
    "BestFirst",
    "DynamicScreenCells",
    "FractalMonteCarlo",
    "GoExplore",
    "ObservationCells",
    "OpenLoopMCTS",
    "Plan",
    "Planner",
    "PredictiveSampling",
    "Progress",
    "RandomShooting",
    "RolloutIW",
    "ScreenCells",
    "Search",
    "Spent",
    "Visit",
    "play",
    "position_cells",
    "tile_colors",
    "tile_pairs",
]

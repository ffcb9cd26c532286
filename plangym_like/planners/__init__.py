"""Search algorithms, one in each file, on the public API of the package.

>>> import plangym_like
>>> from plangym_like import planners
>>> env = plangym_like.make("Taxi-v4")
>>> state, obs, info = env.reset(seed=0)
>>> planner = planners.RandomShooting(env, horizon=10)
>>> planner.plan(state, budget=1_000, seed=0).spent.transitions
1000
"""

from plangym_like.planners.a_star import AStar
from plangym_like.planners.best_first import BestFirst
from plangym_like.planners.cem import CEM
from plangym_like.planners.features import tile_colors
from plangym_like.planners.icem import ICEM
from plangym_like.planners.iw import IW
from plangym_like.planners.mppi import MPPI
from plangym_like.planners.plan import Plan, Spent
from plangym_like.planners.planner import Planner
from plangym_like.planners.play import play
from plangym_like.planners.random_shooting import RandomShooting
from plangym_like.planners.rollout_iw import RolloutIW
from plangym_like.planners.search import Progress, Search

__all__ = [
    "CEM",
    "ICEM",
    "IW",
    "MPPI",
    "AStar",
    "BestFirst",
    "Plan",
    "Planner",
    "Progress",
    "RandomShooting",
    "RolloutIW",
    "Search",
    "Spent",
    "play",
    "tile_colors",
]

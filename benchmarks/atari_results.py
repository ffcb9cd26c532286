"""Atari games, played by every planner for actions that can be counted."""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

import plangym_like
from plangym_like import planners
from plangym_like.planners import Plan, play

# Those of the published tables that differ most in kind.
GAMES = ("MsPacman", "Alien", "Asterix", "BankHeist", "BeamRider", "Boxing", "Breakout")
GAMES += ("Freeway", "Frostbite", "Pong", "Qbert", "Seaquest", "SpaceInvaders")
FRAMESKIP = 4  # frames of the console in a step, as in all ids that end with -v5
HOLD = 4  # steps that planners in closed loop hold an action: 16 frames, 0.27 seconds of play
PLANS = 500  # that planners in closed loop make at most: 8,000 frames of play
DEPTH = 10  # actions that they look ahead, 2.7 seconds of play
GAMMA = 0.99
_EVERY = 300.0  # seconds between two saves of a long search

Make = Callable[[Any], Any]

# A planner that finds whole games gets the whole budget at once.
WHOLE_GAMES: dict[str, Make] = {
    "FractalMonteCarlo": planners.FractalMonteCarlo,
    "BeamSearch": lambda env: planners.BeamSearch(env, width=16, dt=HOLD),
    "GoExplore": lambda env: planners.GoExplore(env, batch=16, dt=HOLD),
}
# The others plan each action, with an equal part of the budget.
CLOSED_LOOP: dict[str, Make] = {
    "RandomShooting": lambda env: planners.RandomShooting(env, horizon=DEPTH, dt=HOLD),
    "IW": lambda env: planners.IW(env, dt=HOLD),
    "RolloutIW": lambda env: planners.RolloutIW(env, dt=HOLD),
    "UCT": lambda env: planners.UCT(env, batch=1, rollout=5, discount=GAMMA, dt=HOLD),
    "OpenLoopMCTS": lambda env: planners.OpenLoopMCTS(
        env, batch=1, horizon=DEPTH, discount=GAMMA, dt=HOLD
    ),
    "PUCT": lambda env: planners.PUCT(env, batch=1, rollout=5, discount=GAMMA, dt=HOLD),
}
PLANNERS = ("Random", *WHOLE_GAMES, *CLOSED_LOOP)
EPISODES = 20


def play_game(
    *, game: str, planner: str, frames: int, seed: int, n_workers: int | None = None
) -> dict[str, Any]:
    """Play one game, and return its score and what it took."""
    obs_type = "grayscale" if planner == "GoExplore" else "ram"
    with plangym_like.make(
        f"ALE/{game}-v5", obs_type=obs_type, n_workers=n_workers, remove_time_limit=False
    ) as env:
        state = env.reset(seed=seed).state
        if planner == "Random":
            return {"score": random_mean(env, seed), "games": EPISODES}
        if planner in WHOLE_GAMES:
            made = WHOLE_GAMES[planner](env)
            hold = (made.hold + 1) / 2 if planner == "FractalMonteCarlo" else HOLD
            plan = made.plan(state, budget=int(frames / (FRAMESKIP * hold)), seed=seed)
        else:
            budget = max(1, frames // (FRAMESKIP * HOLD * PLANS))
            plan = play(CLOSED_LOOP[planner](env), PLANS, state, budget=budget, seed=seed)
        return {**_figures(plan), "replayed": plan.replay(env) == plan.score}


def _figures(plan: Plan) -> dict[str, Any]:
    return {
        "score": plan.score,
        "game_frames": FRAMESKIP * int(plan.dt.sum()),
        "ended": plan.ended,
        "transitions": plan.spent.transitions,
        "frames": plan.spent.frames,
    }


def random_mean(env: Any, seed: int, longest: int = 4_500) -> float:
    """Return the mean score of random actions, in games of at most 18,000 frames."""
    states = np.stack([env.reset(seed=seed + index).state for index in range(EPISODES)])
    actions = gymnasium.vector.utils.batch_space(env.action_space, longest)
    actions.seed(seed)
    plans = np.stack([actions.sample() for _ in range(EPISODES)])
    return round(statistics.mean(env.rollout_batch(plans, states).rewards.sum(axis=1)), 1)


def montezuma(
    *, frames: int, seed: int, folder: pathlib.Path, n_workers: int | None = None
) -> dict[str, Any]:
    """Explore Montezuma's Revenge, and return when each room was found.

    The search is saved to `folder` every five minutes. If it was stopped, the next call continues
    it, with the same result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"montezuma_{frames}_{seed}"
    with plangym_like.make("ALE/MontezumaRevenge-v5", obs_type="ram", n_workers=n_workers) as env:
        state = env.reset(seed=seed).state
        if path.exists():
            planner = planners.GoExplore.load(path, env, cell_of=planners.position_cells)
            plan = planner.resume(checkpoint=path, every=_EVERY)
        else:
            planner = planners.GoExplore(env, planners.position_cells)
            plan = planner.plan(
                state, budget=frames // FRAMESKIP, seed=seed, checkpoint=path, every=_EVERY
            )
        rooms: dict[int, int] = {}
        for (room, *_), visit in plan.info["cells"].items():
            rooms[room] = min(visit.found.frames, rooms.get(room, visit.found.frames))
        found = dict(sorted(rooms.items(), key=lambda item: item[1]))
        figures = {**_figures(plan), "cells": len(plan.info["cells"])}
        # A search that was continued counts all of its time.
        figures["seconds"] = round(plan.spent.seconds, 1)
        figures |= {"rooms": found, "replayed": plan.replay(env) == plan.score}
        path.unlink(missing_ok=True)
        return figures

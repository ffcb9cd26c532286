"""Runs with the budgets of published work, so that scores can be compared; see `results.py`.

- UCT with 150,000 frames an action of 5 frames: M. Bellemare et al., JAIR 47, 2013
- Rollout-IW(1) with as many frames for each action of 15 frames as 0.5 seconds gave its authors, in
  games of at most 18,000 frames: W. Bandres et al., AAAI 2018. Frames make the scores independent
  of the machine; the records also say how long an action took here.
- CEM and iCEM with equal numbers of plans for each action, with the options of the iCEM paper's
  code (github.com/martius-lab/iCEM, icem/settings): C. Pinneri et al., CoRL 2020
- Go-Explore on Montezuma's Revenge with 100 million frames: A. Ecoffet et al., 2019
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import atari_results
from gymnasium.wrappers import FrameStackObservation

import plangym_like
from plangym_like import planners
from plangym_like.planners import CEM, ICEM, play

# Games that end soon if they are played well: each action costs 150,000 frames.
SHORT_GAMES = ("Boxing",)
UCT_FRAMES, UCT_HOLD, UCT_DEPTH, UCT_ACTIONS = 150_000, 5, 60, 3_600
# The mean number of frames that each action had, over ten games: 15 * simulator-calls / decisions
# in data10.csv (rollout, novelty-subtables=1, time-budget=0.5), in the folder that `published.json`
# names.
IW_FRAMES = {
    "Breakout": 1_291,
    "Boxing": 937,
    "Freeway": 2_321,
    "BankHeist": 1_436,
    "Qbert": 1_527,
    "SpaceInvaders": 1_874,
    "Alien": 1_391,
    "Seaquest": 1_822,
    "Asterix": 1_970,
    "MsPacman": 1_608,
}
# Two other planners, which play every second of these games.
IW_OTHERS = ("UCT", "FractalMonteCarlo")
IW_HOLD, IW_ACTIONS, IW_SEEDS = 15, 1_200, 2
# The variant NS+RA: what a death costs is 10 times `alpha` in the authors' code.
IW_OPTIONS: dict[str, Any] = {
    "subtables": True,
    "death_penalty": 500_000,
    "discount": 1.0,
    "batch": 4,
}
GO_EXPLORE_FRAMES = 100_000_000
# The exponent of the noise: the paper's where it has the robot; the larger, the slower it changes.
ROBOTS = {
    "HalfCheetah-v5": 0.25,
    "HumanoidStandup-v5": 2.0,
    "Hopper-v5": 2.0,
    "Walker2d-v5": 2.0,
    "Pusher-v5": 2.0,
}
SAMPLES, ROBOT_STEPS, HORIZON, ROBOT_SEEDS = 100, 200, 30, 3
# What the code of the iCEM paper sets for both methods, and for iCEM only.
_BOTH = {"horizon": HORIZON, "elites": 10, "std": 0.5, "alpha": 0.1}
_ITERATIONS = 3


def tasks() -> Iterator[tuple[str, Callable[..., dict[str, Any]], dict[str, Any]]]:
    """Yield the name, the function and the arguments of each task, the shortest ones first."""
    for seed in range(ROBOT_SEEDS):
        for robot in ROBOTS:
            for planner in ("CEM", "ICEM"):
                yield (
                    f"samples/{robot}/{planner}/{SAMPLES}/{seed}",
                    play_robot,
                    {"robot": robot, "planner": planner, "seed": seed},
                )
    for game in SHORT_GAMES:
        yield f"uct-2013/{game}/0", play_uct, {"game": game, "seed": 0}
    for seed in range(IW_SEEDS):
        for index, game in enumerate(IW_FRAMES):
            for planner in ("RolloutIW", *(() if index % 2 else IW_OTHERS)):
                yield (
                    f"rollout-iw/{game}/{planner}/{seed}",
                    play_like_rollout_iw,
                    {"game": game, "planner": planner, "seed": seed},
                )
    yield (
        f"montezuma/{GO_EXPLORE_FRAMES}/0",
        atari_results.montezuma,
        {"frames": GO_EXPLORE_FRAMES, "seed": 0},
    )


def play_robot(
    *, robot: str, planner: str, seed: int, n_workers: int | None = None
) -> dict[str, Any]:
    """Play `ROBOT_STEPS` actions, each the first one of the best of `SAMPLES` plans."""
    with plangym_like.make(robot, n_workers=n_workers) as env:
        state = env.reset(seed=seed).state
        batch = SAMPLES // _ITERATIONS
        made: planners.Planner = (
            CEM(env, batch=batch, **_BOTH)
            if planner == "CEM"
            else ICEM(env, batch=batch, beta=ROBOTS[robot], **_BOTH)
        )
        # The mean plan is rolled out too; it is one of the samples.
        episode = play(made, ROBOT_STEPS, state, budget=SAMPLES * HORIZON, seed=seed)
    return {
        "return": round(episode.score, 1),
        "steps": len(episode),
        "transitions": episode.spent.transitions,
    }


def play_uct(*, game: str, seed: int, n_workers: int | None = None) -> dict[str, Any]:
    """Play a game with UCT, as in JAIR 2013: at most 18,000 frames, 150,000 for each action."""
    with _game(game, UCT_HOLD, n_workers) as env:
        state = env.reset(seed=seed).state
        planner = planners.UCT(env, rollout=UCT_DEPTH, explore=0.1, discount=0.999)
        budget = UCT_FRAMES // UCT_HOLD
        return _figures(play(planner, UCT_ACTIONS, state, budget=budget, seed=seed), UCT_HOLD)


def play_like_rollout_iw(
    *, game: str, planner: str, seed: int, n_workers: int | None = None
) -> dict[str, Any]:
    """Play a game with `IW_FRAMES` frames for each action of 15 frames."""
    obs_type = "grayscale" if planner == "RolloutIW" else "ram"
    with _game(game, IW_HOLD, n_workers, obs_type) as env:
        state = env.reset(seed=seed).state
        made: planners.Planner = {
            "RolloutIW": lambda: planners.RolloutIW(
                env,
                features=lambda obs, infos: planners.tile_pairs(obs),
                **IW_OPTIONS,
            ),
            "UCT": lambda: planners.UCT(env, rollout=5, discount=0.99),
            "FractalMonteCarlo": lambda: planners.FractalMonteCarlo(env, walkers=8, hold=1),
        }[planner]()
        episode = play(made, IW_ACTIONS, state, budget=IW_FRAMES[game] // IW_HOLD, seed=seed)
        return _figures(episode, IW_HOLD)


def _game(
    game: str, frameskip: int, n_workers: int | None, obs_type: str = "ram"
) -> plangym_like.PlanEnv:
    """Return a game without sticky actions; each action is held for `frameskip` frames."""
    # Features of screens are those of pairs of tiles, too, now and before.
    stack = [(FrameStackObservation, {"stack_size": 2})] if obs_type == "grayscale" else []
    return plangym_like.make(
        f"ALE/{game}-v5",
        frameskip=frameskip,
        obs_type=obs_type,
        n_workers=n_workers,
        wrappers=stack,
    )


def _figures(episode: planners.Plan, hold: int) -> dict[str, Any]:
    spent = episode.spent
    return {
        "score": episode.score,
        "actions": len(episode),
        "game_frames": hold * len(episode),
        "ended": episode.ended,
        "frames": spent.frames,
        "frames_per_action": round(spent.frames / len(episode)),
        "seconds_per_action": round(spent.seconds / len(episode), 3),
    }

"""``plangym-like plan ID --planner NAME --budget N``: search for a plan, and show it.

With ``--steps N`` it plays N steps in closed loop: it plans again before every step, each time with
the whole budget. Ctrl-C ends the search, or the episode, with the best plan so far; a second
Ctrl-C ends the program at once. With ``--out`` it writes actions.json (the actions), plan.json
(a file for Plan.load), curve.png and, if the environment can be drawn, plan.gif. Every plan is
replayed; the exit status is 1 if the replay has a different score.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

from plangym_like.cli import images
from plangym_like.cli.arguments import (
    FAILED,
    INTERRUPTED,
    OK,
    UsageError,
    add_env_command,
    add_json,
    add_settings,
    described,
    duration,
    find,
    make_env,
    option,
    warn,
    whole,
)
from plangym_like.cli.interrupts import Interrupts
from plangym_like.cli.planner_classes import find_planner, kebab, make_planner
from plangym_like.planners import Plan, play
from plangym_like.planners.progress_bar import ProgressBar


def add_to(commands: Any) -> None:
    """Add this command to `commands`, the subparsers of the program."""
    parser = add_env_command(
        commands,
        "plan",
        purpose="search for a plan, and write its actions and images",
        description=__doc__,
    )
    parser.add_argument(
        "--planner",
        default="random-shooting",
        metavar="NAME",
        help="the algorithm (random-shooting); `list planners` lists all of them",
    )
    parser.add_argument(
        "--budget", type=whole, metavar="N", help="the largest number of transitions"
    )
    parser.add_argument("--seconds", type=duration, metavar="S", help="how long to search")
    parser.add_argument(
        "--steps", type=whole, metavar="N", help="play N steps, and plan before each of them"
    )
    parser.add_argument(
        "--workers",
        type=whole,
        metavar="W",
        help="number of worker processes that step batches (none)",
    )
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="S", help="seed of the episode and the search (0)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder to write results to (none)"
    )
    parser.add_argument(
        "--no-images", action="store_true", help="write no PNG and no GIF into the folder"
    )
    add_settings(parser)
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=option,
        metavar="NAME=VALUE",
        help="an option of the planner, as in Python, or module:callable; may be repeated",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Search for a plan, write the requested files, and print one line."""
    if chosen.budget is None and chosen.seconds is None:
        raise UsageError("plan needs --budget N (transitions) or --seconds S")
    planner_class = find_planner(chosen.planner)
    draws = chosen.out is not None and not chosen.no_images
    if draws:
        images.require_images()
    if chosen.out is not None:
        try:
            chosen.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out: {error}") from error
    with make_env(chosen.id, chosen.workers, **dict(chosen.set)) as env:
        state = env.reset(seed=chosen.seed).state
        planner = make_planner(planner_class, env, dict(chosen.option))
        limits = {"budget": chosen.budget, "seconds": chosen.seconds, "seed": chosen.seed}
        has_bar = importlib.util.find_spec("tqdm") is not None
        with ProgressBar(planner.name, has_bar) as show, Interrupts() as interrupts:
            limits["progress"] = interrupts.ending(show)
            if chosen.steps is None:
                plan = planner.plan(state, **limits)
            else:
                plan = play(planner, chosen.steps, state, **limits)
        replayed = plan.replay(env)
    found = _found(chosen, kebab(planner_class.__name__), plan, replayed)
    found["interrupted"] = interrupts.came
    status = INTERRUPTED if interrupts.came else OK
    if replayed != plan.score:
        status = FAILED
    if chosen.out is not None:
        found["files"], drawn = _write(chosen, plan, found, draws)
        if not math.isclose(drawn, plan.score, rel_tol=1e-9, abs_tol=1e-9):
            warn(f"the GIF shows an episode with the score {drawn:,.6g}")
            status = FAILED
    print(json.dumps(found, default=str) if chosen.json else _line(found), flush=True)
    return status


def _found(chosen: argparse.Namespace, planner: str, plan: Plan, replayed: float) -> dict[str, Any]:
    return {
        "id": chosen.id,
        "kwargs": dict(chosen.set),
        "seed": chosen.seed,
        "planner": planner,
        "options": dict(chosen.option),
        "steps": chosen.steps,
        "score": plan.score,
        "replayed_score": replayed,
        "length": len(plan),
        "ended": plan.ended,
        "transitions": plan.spent.transitions,
        "frames": plan.spent.frames,
        "seconds": plan.spent.seconds,
    }


def _line(found: dict[str, Any]) -> str:
    seconds = found["seconds"]
    way = "in closed loop" if found["steps"] is not None else "in one plan"
    end = "to the end of the episode" if found["ended"] else "not to the end of the episode"
    replay = "the same" if found["replayed_score"] == found["score"] else "ANOTHER SCORE, "
    if replay != "the same":
        replay += f"{found['replayed_score']:,.6g}"
    where = ""
    if found.get("files"):
        folder = Path(found["files"][0]).parent
        where = f"; wrote {', '.join(Path(one).name for one in found['files'])} to {folder}"
    return (
        f"{found['id']}: {found['planner']} scored {found['score']:,.6g} with {found['length']} "
        f"actions {way}, {end}; {found['transitions']:,} transitions in {seconds:.1f} s "
        f"({found['transitions'] / max(seconds, 1e-9):,.0f} a second); replayed: {replay}{where}"
    )


def _write(
    chosen: argparse.Namespace, plan: Plan, found: dict[str, Any], draws: bool
) -> tuple[list[str], float]:
    """Write the files; return their paths, and the score of the episode in the GIF."""
    folder, drawn = chosen.out, plan.score
    actions = [[action.tolist(), int(dt)] for action, dt in zip(plan.actions, plan.dt, strict=True)]
    seeds = None if plan.seeds is None else plan.seeds.tolist()
    text = json.dumps({**found, "actions": actions, "seeds": seeds}, default=str)
    (folder / "actions.json").write_text(text + "\n", encoding="utf-8")
    plan.save(folder / "plan.json")
    written = ["actions.json", "plan.json"]
    if draws:
        label = "score of the episode" if chosen.steps is not None else "best score so far"
        title = f"{found['planner']} on {chosen.id}, seed {chosen.seed}"
        images.draw_curve(folder / "curve.png", plan, title, label)
        written.append("curve.png")
        try:
            drawn = images.film(
                folder / "plan.gif", plan, find(chosen.id), chosen.seed, dict(chosen.set)
            )
            written.append("plan.gif")
        except Exception as error:  # drawing can fail in many ways; the plan is found anyway
            warn(f"no GIF: {described(error)}")
    return [str(folder / name) for name in written], drawn

"""``plangym-like plan ID --planner NAME --budget N``: search for a plan, and show it.

With ``--steps N`` it plays N steps in closed loop: it plans again before every step, each time with
the whole budget. Ctrl-C ends the search, or the episode, with the best plan so far; a second
Ctrl-C ends the program at once. With ``--checkpoint DIR`` the search is saved once a minute and at
its end; ``--resume DIR`` continues it, even if the program was killed. With ``--out`` it writes
actions.json (the actions), plan.json (a file for Plan.load), curve.png and, if the environment can
be drawn, plan.gif. Every plan is replayed; the exit status is 1 if the replay has a different
score.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
from plangym_like.cli.planner_classes import (
    find_planner,
    imported,
    imported_all,
    kebab,
    make_planner,
)
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners import Plan, Planner, Progress, play
from plangym_like.planners.games import count_players
from plangym_like.planners.planner import progress_bar
from plangym_like.states.rows import Row
from plangym_like.support.lazy_imports import needs_extra

# Files in the folder of a search: the id and seed of the command, and what `Planner.save` writes.
_COMMAND, _SEARCH = "command.json", "search"
_STDERR = 2
_NOTICE = (
    b"plangym-like: interrupted; the search ends after this step. "
    b"Press Ctrl-C again to end at once\n"
)


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
        metavar="NAME",
        help="the algorithm (uct for games of several players, and random-shooting otherwise); "
        "`list planners` lists all of them",
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
        "--seed", type=whole, metavar="S", help="seed of the episode and the search (0)"
    )
    _add_folders(parser)
    add_settings(parser)
    parser.add_argument(
        "--reward",
        metavar="MODULE:FUNCTION",
        help="the reward of a MuJoCo model: ID is the path of its file, and --set takes the "
        "arguments of plangym_like.make_mujoco too",
    )
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


def _add_folders(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name folders, and say what is written to them."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="a folder to save the search to, once a minute and at its end",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="continue the search in this folder, with its planner, options and seed; --budget and "
        "--seconds replace both of its limits",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder to write results to (none)"
    )
    parser.add_argument(
        "--no-images", action="store_true", help="write no PNG and no GIF into the folder"
    )


def run(chosen: argparse.Namespace) -> int:
    """Search for a plan, write the requested files, and print one line."""
    _check(chosen)
    draws = chosen.out is not None and not chosen.no_images
    if draws:
        images.require_images()
    for name in ("out", "checkpoint"):
        folder = getattr(chosen, name)
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--{name}: {error}") from error
    source, kwargs = _source(chosen)
    with make_env(chosen.id, chosen.workers, source=source, **kwargs) as env:
        start = env.reset(seed=chosen.seed)
        rules = dict(pair for pair in chosen.option if pair[0] in ("legal", "to_play"))
        is_game = count_players(env, start, **imported_all("--option", rules)) > 1
        if chosen.resume is not None:
            planner = _load(chosen, env)
        else:
            name = chosen.planner or ("uct" if is_game else "random-shooting")
            planner = make_planner(find_planner(name), env, dict(chosen.option))
        has_bar = importlib.util.find_spec("tqdm") is not None
        with progress_bar(planner.name, has_bar) as show, Interrupts() as interrupts:
            plan = _search(chosen, planner, start.state, interrupts.ending(show))
        replayed = plan.replay(env)
    found = _found(chosen, kebab(planner.name), plan, replayed)
    if is_game:
        found["game"] = _of_game(plan)
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


def _source(chosen: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the model that ``--reward`` makes an environment of, and the arguments of `make`."""
    kwargs = dict(chosen.set)
    if chosen.reward is None:
        return None, kwargs
    with needs_extra("--reward needs MuJoCo", "mujoco"):
        from plangym_like.envs.mujoco.own_model import MujocoModel
    known = inspect.signature(MujocoModel).parameters
    own = imported_all("--set", {name: kwargs.pop(name) for name in list(kwargs) if name in known})
    try:
        return MujocoModel(
            chosen.id, **{**own, "reward": imported("--reward", chosen.reward)}
        ), kwargs
    except InputError as error:
        raise UsageError(f"{chosen.id} cannot be made: {described(error)}") from error


def _check(chosen: argparse.Namespace) -> None:
    """Raise `UsageError` if arguments contradict each other or the folder to resume from."""
    if chosen.resume is None and chosen.budget is None and chosen.seconds is None:
        raise UsageError("plan needs --budget N (transitions) or --seconds S")
    folder = chosen.checkpoint or chosen.resume
    if folder is not None and chosen.steps is not None:
        raise UsageError("--checkpoint and --resume are for one search, and not for --steps")
    if chosen.resume is not None:
        try:
            saved = json.loads((chosen.resume / _COMMAND).read_text(encoding="utf-8"))
            seed, (env_id, chosen.seed) = chosen.seed, (saved["id"], saved["seed"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"--resume: there is no search in {chosen.resume}: {error}") from error
        if env_id != chosen.id:
            raise UsageError(f"--resume: the search in {chosen.resume} is in {env_id}")
        if chosen.planner is not None or seed not in (None, chosen.seed):
            raise UsageError(
                "--planner and --seed are those of the search to resume: leave them out"
            )
    chosen.seed = chosen.seed or 0


def _load(chosen: argparse.Namespace, env: PlanEnv) -> Planner:
    """Return the planner in the folder to resume from."""
    try:
        options = imported_all("--option", dict(chosen.option))
        return Planner.load(chosen.resume / _SEARCH, env, **options)
    except OSError as error:
        raise UsageError(
            f"--resume: no search was saved in {chosen.resume} yet: {error}"
        ) from error


def _search(
    chosen: argparse.Namespace,
    planner: Planner,
    state: Row,
    progress: Callable[[Progress], object],
) -> Plan:
    """Begin or resume a search, and save it if a folder is given; or play an episode."""
    limits = {"budget": chosen.budget, "seconds": chosen.seconds, "progress": progress}
    folder = chosen.checkpoint or chosen.resume
    path = None if folder is None else folder / _SEARCH
    if folder is not None:
        command = {"id": chosen.id, "seed": chosen.seed}
        (folder / _COMMAND).write_text(json.dumps(command) + "\n", encoding="utf-8")
    if chosen.resume is not None:
        plan = planner.resume(**limits, checkpoint=path)
    else:
        limits["seed"] = chosen.seed
        if chosen.steps is not None:
            return play(planner, chosen.steps, state, **limits)
        plan = planner.plan(state, **limits, checkpoint=path)
    if path is not None:
        planner.save(path)
    return plan


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


def _of_game(plan: Plan) -> dict[str, Any]:
    """Return the moves of a plan for a game, and what is known of the first one.

    If the game was played, there is a list with an element for each move.
    """
    info = {name: plan.info[name] for name in ("player", "value", "solved", "length")}
    shown = {name: each.tolist() if np.ndim(each) else each for name, each in info.items()}
    return {"moves": plan.actions.tolist(), **shown}


def _told_of_game(game: dict[str, Any]) -> str:
    """Return what `_of_game` has found, as text."""
    moves = " ".join(map(str, game["moves"]))
    if isinstance(game["player"], list):
        return f"moves {moves}; "
    end = f"solved: the game ends after {game['length']} moves" if game["solved"] else "not solved"
    return f"moves {moves}; worth {game['value']:.3g} for player {game['player']}, {end}; "


def _line(found: dict[str, Any]) -> str:
    seconds, game = found["seconds"], _told_of_game(found["game"]) if "game" in found else ""
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
        f"actions {way}, {end}; {game}{found['transitions']:,} transitions in {seconds:.1f} s "
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
            model, kwargs = _source(chosen)
            source = find(chosen.id) if model is None else model
            drawn = images.film(folder / "plan.gif", plan, source, chosen.seed, kwargs)
            written.append("plan.gif")
        except Exception as error:  # drawing can fail in many ways; the plan is found anyway
            warn(f"no GIF: {described(error)}")
    return [str(folder / name) for name in written], drawn


class Interrupts:
    """Records the first Ctrl-C instead of raising; later ones raise `KeyboardInterrupt`.

    This context manager does nothing outside the main thread, or if SIGINT is ignored or has
    another handler.

    Attributes
    ----------
    came : bool
        Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._notice)
        return self

    def __exit__(self, *exc: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._notice:
            signal.signal(signal.SIGINT, self._before)

    def _notice(self, number: int, frame: Any) -> None:
        self.came = True
        signal.signal(signal.SIGINT, self._before)
        # Not by `print`: the progress bar may be writing to the same stream.
        os.write(_STDERR, _NOTICE)

    def ending(self, show: Callable[[Progress], object] | None) -> Callable[[Progress], object]:
        """Return a callback for ``progress=`` that ends the search after a Ctrl-C.

        The callback first calls `show`, if given.
        """

        def report(progress: Progress) -> None:
            if show is not None:
                show(progress)
            if self.came:
                raise StopIteration

        return report

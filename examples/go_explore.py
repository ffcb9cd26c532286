"""Go-Explore: remember every place that was reached, return to one, and explore from there.

    python examples/go_explore.py ALE/MontezumaRevenge-v5 --seconds 300 --map rooms.png
    python examples/go_explore.py ALE/MsPacman-v5 --cells fixed
    python examples/go_explore.py MountainCar-v0 --seconds 5

The search is `plangym_like.planners.GoExplore`. In Montezuma's Revenge, places are the player's
positions; in other games they are shrunk screens, and elsewhere parts of the observation's range.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from show import draw_rooms

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import DynamicScreenCells, GoExplore, ScreenCells, position_cells


def main() -> None:
    """Explore for a while, and report how much was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="ALE/MontezumaRevenge-v5", help="a Gymnasium id")
    parser.add_argument("--seconds", type=float, help="how long to explore, by default 60")
    parser.add_argument("--budget", type=int, help="transitions to explore, instead of --seconds")
    parser.add_argument("--cells", choices=["position", "dynamic", "fixed", "observation"])
    parser.add_argument("--batch", type=int, default=64, help="cells explored at the same time")
    parser.add_argument("--steps", type=int, default=100, help="actions from each chosen cell")
    parser.add_argument("--repeat", type=float, default=0.95, help="chance to repeat an action")
    parser.add_argument("--hold", type=int, default=1, help="steps that one action lasts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="write the plan to this JSON file")
    parser.add_argument("--map", type=Path, help="draw the rooms that were found into this PNG")
    args = parser.parse_args()

    if args.seconds is None and args.budget is None:
        args.seconds = 60.0
    is_game = args.env.startswith("ALE/")
    kind = args.cells or (
        "position" if "Montezuma" in args.env else "dynamic" if is_game else "observation"
    )
    if args.map is not None and kind != "position":
        parser.error("--map draws positions in rooms, which only Montezuma's Revenge has")
    functions: dict[str, Any] = {
        "position": position_cells,
        "dynamic": DynamicScreenCells(),
        "fixed": ScreenCells(),
        "observation": None,
    }
    # With the console's memory as observation, cells also include what the player carries.
    shown = "ram" if kind == "position" else "grayscale"
    kwargs: dict[str, Any] = {"obs_type": shown} if is_game else {}
    with plangym_like.make(args.env, n_workers=args.workers, **kwargs) as env:
        state = env.reset(seed=args.seed).state
        try:
            planner = GoExplore(
                env, functions[kind], args.batch, args.steps, args.repeat, args.hold
            )
            plan = planner.plan(
                state, budget=args.budget, seconds=args.seconds, seed=args.seed, progress=True
            )
        except InputError as error:
            parser.error(str(error))
        same = plan.replay(env) == plan.score
    cells = plan.info["cells"]
    print(f"cells:      {len(cells):,}")
    print(f"best score: {plan.score:,.6g} in {len(plan)} actions, replayed: {same}")
    print(f"simulated:  {plan.spent.transitions:,} transitions, {plan.spent.frames:,} frames")
    if kind == "position":
        seconds: dict[int, float] = {}
        for (room, *_), visit in cells.items():
            seconds[room] = min(visit.found.seconds, seconds.get(room, float("inf")))
        found = sorted(seconds.items(), key=lambda item: item[1])
        print("rooms:      " + ", ".join(f"{room} ({at:.0f} s)" for room, at in found))
        if args.map is not None:
            draw_rooms(args.map, cells, plan.spent.frames)
            print(f"wrote {args.map}")
    if args.out is not None:
        plan.save(args.out)
        print(f"wrote {args.out}")


if __name__ == "__main__":
    main()

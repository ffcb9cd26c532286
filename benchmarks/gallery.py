"""Draw the figures of docs/gallery.md: what searches look like, and what they find.

    python benchmarks/gallery.py                  # all of them, into docs/figures: some minutes
    python benchmarks/gallery.py tree walkers     # some

Every figure is made with fixed seeds and a budget in transitions, so that it comes out the same
for any number of workers. The line that a figure prints is the one that the page shows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import board_images
import matplotlib
import numpy as np
from control import ASSETS
from harness import FIGURES
from PIL import Image

import plangym_like
from plangym_like import MujocoModel, planners

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection

GREY, RED, BLUE = "#9aa4ad", "#c62828", "#1565c0"
WORKERS = os.cpu_count()


@contextlib.contextmanager
def recorded(env: plangym_like.PlanEnv) -> Iterator[list[tuple[Any, Any]]]:
    """Keep the states ``(N, state_nbytes)`` and the result of every ``env.step_batch``."""
    calls: list[tuple[Any, Any]] = []
    original = env.step_batch

    def step_batch(actions: Any, states: Any, *args: Any, **kwargs: Any) -> Any:
        step = original(actions, states, *args, **kwargs)
        calls.append((np.broadcast_to(states, step.states.shape), step))
        return step

    env.step_batch = step_batch  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        env.step_batch = original  # type: ignore[method-assign]


def save(figure: Any, name: str) -> None:
    """Write a PNG of few colours."""
    path = FIGURES / f"gallery_{name}.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    Image.open(path).convert("RGB").quantize(255, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


def tree() -> str:
    """Draw the nodes that UCT steps on CartPole around the root, by depth."""
    with plangym_like.make("CartPole-v1") as env, recorded(env) as calls:
        root = env.make_state(x=[0.0, 0.0, 0.06, 0.0]) if env.reset(seed=0) else None
        planner = planners.UCT(env, batch=16, rollout=10, explore=0.7)
        plan = planner.plan(root, budget=14_000, seed=0)
    parents, angles, numbers = [-1], [0.06], {np.asarray(root).tobytes(): 0}
    for states, step in calls:
        for before, after, obs in zip(states, step.states, step.obs, strict=True):
            parent = numbers.get(before.tobytes())
            if parent is not None and after.tobytes() not in numbers:
                numbers[after.tobytes()] = len(parents)
                parents.append(parent)
                angles.append(float(obs[2]))
    count = len(parents)
    depth, leaves = np.zeros(count, int), np.zeros(count)
    children: list[list[int]] = [[] for _ in range(count)]
    for node in range(1, count):
        depth[node] = depth[parents[node]] + 1
        children[parents[node]].append(node)
    for node in reversed(range(count)):
        leaves[node] = sum(leaves[child] for child in children[node]) or 1
    # Each node has a sector as wide as the number of its leaves.
    begin, middle = np.zeros(count), np.zeros(count)
    for node in range(count):
        middle[node] = begin[node] + leaves[node] / 2
        place = begin[node]
        for child in children[node]:
            begin[child] = place
            place += leaves[child]
    turn = 2 * np.pi * middle / leaves[0]
    points = np.stack([depth * np.cos(turn), depth * np.sin(turn)], axis=1)
    figure, axes = plt.subplots(figsize=(6.4, 6), layout="constrained")
    lines = [(points[parents[node]], points[node]) for node in range(1, count)]
    axes.add_collection(LineCollection(lines, colors=GREY, linewidths=0.5, zorder=1))
    size = 5 + 60 * np.sqrt(leaves / leaves[0])
    colours = np.degrees(angles)
    dots = axes.scatter(*points.T, c=colours, s=size, cmap="coolwarm", vmin=-8, vmax=8, zorder=2)
    axes.scatter(0, 0, s=130, facecolors="none", edgecolors="black", linewidths=1.2, zorder=3)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.autoscale_view()
    figure.colorbar(dots, ax=axes, label="angle of the pole, degrees", shrink=0.6, pad=0.01)
    axes.set_title(f"UCT on CartPole: {count:,} nodes, {depth.max()} actions deep", fontsize=11)
    save(figure, "tree")
    return f"{count:,} nodes from {plan.spent.transitions:,} transitions, depth {depth.max()}"


def _phase_plane(axes: Any, title: str) -> None:
    axes.axvline(0.5, color=RED, linewidth=1)
    axes.text(0.49, -0.064, "flag", color=RED, ha="right", fontsize=9)
    axes.set(xlim=(-1.25, 0.62), ylim=(-0.072, 0.072), xlabel="position")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)


def beam() -> str:
    """Draw all steps of two beam searches on MountainCar's phase plane, and the plans found."""

    def by_position(obs: Any, infos: Any, states: Any) -> Any:
        return obs[:, 0]

    def by_speed(obs: Any, infos: Any, states: Any) -> Any:
        return abs(obs[:, 1])

    figure, both = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    said = []
    cases = [("further right is better", by_position, 256), ("faster is better", by_speed, 1)]
    for axes, (words, heuristic, width) in zip(both, cases, strict=True):
        with plangym_like.make("MountainCar-v0") as env, recorded(env) as calls:
            root = env.reset(seed=0).state
            search = planners.BeamSearch(
                env,
                width=width,
                depth=200,
                heuristic=heuristic,
                key=lambda obs, infos, states: np.round(obs / [0.01, 0.001]),
            )
            budget = 50_000 if width > 1 else 300
            plan = search.plan(root, budget=budget, seed=0)
            steps = [(env.view_state(states)["x"], step.obs) for states, step in calls]
            path = env.rollout_batch(plan.actions[None], root, return_observations=True)
        lines = np.concatenate([np.stack([old, new], axis=1) for old, new in steps])
        axes.add_collection(
            LineCollection(lines, colors=GREY, linewidths=0.3, alpha=0.5, rasterized=True)
        )
        axes.plot(*path.observations[0].T, color=BLUE, linewidth=1.8)
        _phase_plane(axes, f"{words}: {len(plan)} steps, {plan.spent.transitions:,} transitions")
        said.append(f"{words}: {len(plan)} steps with {plan.spent.transitions:,} transitions")
    both[0].set_ylabel("velocity")
    save(figure, "beam")
    return "; ".join(said)


def walkers() -> str:
    """Draw where the walkers of Fractal Monte Carlo are after some moves on MountainCar."""
    with plangym_like.make("MountainCar-v0") as env, recorded(env) as calls:
        root = env.reset(seed=0).state
        search = planners.FractalMonteCarlo(env, walkers=128, hold=6, alpha=0.0)
        plan = search.plan(root, budget=128 * 40, seed=0)
    shown = [0, 4, 9, 14, 19, 24, 29, 34]
    ended = [index for index, (_, step) in enumerate(calls) if step.terminateds.any()]
    figure, all_axes = plt.subplots(
        2, 4, figsize=(9.5, 4.8), layout="constrained", sharex=True, sharey=True
    )
    for axes, index in zip(all_axes.flat, shown, strict=True):
        for _, step in calls[:index]:
            axes.scatter(*step.obs.T, s=2, color=GREY, alpha=0.6, linewidths=0)
        axes.scatter(*calls[index][1].obs.T, s=9, color=BLUE, linewidths=0)
        _phase_plane(axes, f"move {index + 1}")
        axes.set_xlabel("")
    for axes in all_axes[1]:
        axes.set_xlabel("position")
    for axes in all_axes[:, 0]:
        axes.set_ylabel("velocity")
    save(figure, "walkers")
    first = f"first at the flag in move {ended[0] + 1}" if ended else "none at the flag"
    return f"128 walkers, {plan.spent.transitions:,} transitions; {first}; score {plan.score:g}"


def steadily(data: Any) -> Any:
    """Reward a speed of 3 m/s, and a level torso."""
    return -((data.qvel[:, 0] - 3) ** 2) - 2 * data.qpos[:, 2] ** 2


def robot() -> str:
    """Film a cheetah that keeps a speed, as `docs/control.md` plans it."""
    cheetah = MujocoModel(ASSETS / "half_cheetah.xml", reward=steadily, n_substeps=5)
    with plangym_like.make(cheetah, n_workers=WORKERS) as env:
        root = env.reset(seed=0).state
        planner = planners.ICEM(env, horizon=15, batch=50, elites=8)
        episode = planners.play(planner, 120, root, budget=151 * 15, seed=0)
        played = env.rollout_batch(episode.actions[None], root, return_observations=True)
        place = played.observations[0, :, 0]
    view: Any = {"render_mode": "rgb_array", "width": 320, "height": 200, "camera_name": "track"}
    with plangym_like.make(cheetah, **view) as drawn:
        drawn.reset(seed=0)
        images = [drawn.get_image()]
        for first, second in zip(episode.actions[::2], episode.actions[1::2], strict=True):
            drawn.step(first)
            drawn.step(second)
            images.append(drawn.get_image())
    film("robot", images, 100)
    return (
        f"a mean speed of {(place[-1] - place[39]) / 4:.2f} m/s in the last 4 of 6 s, "
        f"{episode.spent.transitions:,} transitions"
    )


def film(name: str, images: list[Any], milliseconds: int) -> None:
    """Write a GIF with one palette."""
    palette = Image.fromarray(np.hstack(images[:: len(images) // 6 + 1]))
    palette = palette.quantize(48, dither=Image.Dither.NONE)
    first, *others = [
        Image.fromarray(image).quantize(palette=palette, dither=Image.Dither.NONE)
        for image in images
    ]
    path = FIGURES / f"gallery_{name}.gif"
    first.save(
        path, save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True
    )


def rooms() -> str:
    """Draw the cells that Go-Explore reaches in Montezuma's Revenge, room by room."""
    with plangym_like.make("ALE/MontezumaRevenge-v5", obs_type="ram", n_workers=WORKERS) as env:
        root = env.reset(seed=0).state
        search = planners.GoExplore(env, planners.position_cells)
        plan = search.plan(root, budget=80_000, seed=0)
    visits = plan.info["cells"]
    found: dict[int, list[tuple[int, int, int]]] = {}
    for (room, x, y, _), visit in visits.items():
        found.setdefault(room, []).append((8 * x, 16 * y, visit.found.transitions))
    order = sorted(found, key=lambda room: min(cell[2] for cell in found[room]))
    columns = min(4, len(order))
    lines = -(-len(order) // columns)
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(2.5 * columns + 1, 2.5 * lines),
        layout="constrained",
        squeeze=False,
    )
    for axes in grid.flat[len(order) :]:
        axes.set_axis_off()
    for axes, room in zip(grid.flat, order, strict=False):
        x, y, when = np.array(found[room]).T
        dots = axes.scatter(
            x, y, c=when / 1000, s=14, marker="s", cmap="viridis", vmin=0, vmax=80, linewidths=0
        )
        axes.set(xlim=(0, 160), ylim=(120, 270), xticks=[], yticks=[])
        axes.set_title(f"room {room}", fontsize=10)
    figure.colorbar(dots, ax=grid, label="found after so many thousand transitions", shrink=0.8)
    save(figure, "rooms")
    return f"{len(order)} rooms, {len(visits):,} cells, score {plan.score:g}"


def game() -> str:
    """Film UCT and PUCT at Connect Four, and draw the position of the first proof."""

    def uniform(obs: Any) -> tuple[Any, Any]:
        return np.full((len(obs), 7), 1 / 7), np.zeros(len(obs))

    moves: list[int] = []
    images, proved, names = [], "", ("UCT", "PUCT")
    with plangym_like.make("openspiel/connect_four") as env:
        uct = planners.UCT(env, rollout=42)
        puct = planners.PUCT(env, uniform, rollout=42, explore=4.0)
        step = env.reset(seed=0)
        while not moves or not step.terminated:
            player = len(moves) % 2
            plan = (uct, puct)[player].plan(step, budget=44_000, seed=len(moves))
            thinks = f"expects a score of {(1 + plan.info['value']) / 2:.0%}"
            if plan.info["solved"]:
                result = {1: "win", 0: "draw", -1: "loss"}[round(plan.info["value"])]
                thinks = f"has proved a {result} in {plan.info['length']} moves"
            shown = f"{names[player]} {thinks}"
            images.append(board_images.draw(moves, shown, plan.info["policy"], player))
            if plan.info["solved"] and not proved:
                proved = f"{shown} before move {len(moves) + 1}"
                Image.fromarray(images[-1]).save(FIGURES / "gallery_board.png", optimize=True)
            moves.append(int(plan.next_action))
            step = env.step(moves[-1], step.state)
    won = f"{names[player]} wins" if step.reward else "A draw"
    images += [board_images.draw(moves, won, player=player)] * 4
    film("game", images, 900)
    return f"{won} in {len(moves)} moves; {proved}"


def learner() -> str:
    """Draw what examples/connect_four.py wrote: its learning curve, and a game against UCT."""
    path = FIGURES / "connect_four.json"
    if not path.exists():
        return (
            f"left out; copy learn/connect_four.json of a run of examples/connect_four.py to {path}"
        )
    record = json.loads(path.read_text())
    curve, moves = record["curve"], record["game"]
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    minutes = [point["seconds"] / 60 for point in curve]
    # A run with --perfect may go on without it.
    names = [name for name in curve[0] if all(name in point for point in curve)][2:]
    for name, colour in zip(names, (BLUE, RED, GREY), strict=False):
        words = name.replace("against", "score against")
        axes.plot(minutes, [100 * point[name] for point in curve], color=colour, label=words)
    axes.set(xlabel="minutes", ylabel="%", ylim=(-3, 103), title="AlphaZero learns Connect Four")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    save(figure, "learner")
    players = ("AlphaZero", "UCT")
    images = [
        board_images.draw(moves[:turn], f"{players[turn % 2]} moves", player=turn % 2)
        for turn in range(len(moves))
    ]
    winner = (len(moves) - 1) % 2
    is_won = board_images.four_in_a_row(board_images.cells_after(moves))
    text, player = (f"{players[winner]} wins", winner) if is_won else ("A draw", None)
    film("learner", images + 4 * [board_images.draw(moves, text, player=player)], 900)
    last = ", ".join(f"{value:.0%} {name}" for name, value in list(curve[-1].items())[2:])
    return f"{curve[-1]['games']:,} games in {minutes[-1]:.0f} minutes: {last}; {text}"


MAKERS = (tree, beam, walkers, robot, rooms, game, learner)
FIGURE_MAKERS = {each.__name__: each for each in MAKERS}


def main() -> None:
    """Draw the figures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*FIGURE_MAKERS, []], metavar="NAME")
    for name in parser.parse_args().names or FIGURE_MAKERS:
        print(f"{name}: {FIGURE_MAKERS[name]()}", flush=True)


if __name__ == "__main__":
    main()

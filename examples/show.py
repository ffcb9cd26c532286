"""Images of a search: its score against simulated frames, and the game that it found."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image
from tqdm import tqdm

import plangym_like

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

# The rooms of Montezuma's Revenge, as on the map; the game starts in room 1.
_PYRAMID = (range(3), range(3, 8), range(8, 15), range(15, 24))
_ROOM = 160, 160  # width and height of a room, in the console's coordinates
_FLOOR = 128  # the lowest position of the player
_HEIGHT = 210  # of a film, in pixels
_MOST_IMAGES = 1000  # in a film, at most
_SECONDS = 30.0  # for the images of a film


def draw_scores(path: Path, found: dict[str, Any], curve: np.ndarray) -> None:
    """Draw the curve of a plan against simulated frames, and the random player's mean."""
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    axes.step(
        curve["frames"], curve["score"], where="post", color="#1565c0", label="best game so far"
    )
    axes.axhline(found["random_mean"], color="#c62828", linestyle="--", label="random player")
    axes.set_xlabel("simulated frames")
    axes.set_ylabel("score")
    axes.set_title(f"Fractal Monte Carlo on {found['id']}, seed {found['seed']}")
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def draw_rooms(path: Path, cells: dict[tuple[int, int, int, int], Any], frames: int) -> None:
    """Draw the cells ``(room, x, y, items)`` that `GoExplore` reached in Montezuma's Revenge.

    The colour of a place is the number of frames until it was first found, with any items.
    """
    found: dict[tuple[int, int, int], int] = {}
    for (room, x, y, _), visit in cells.items():
        found[room, x, y] = min(visit.found.frames, found.get((room, x, y), frames))
    width, height = _ROOM
    figure, axes = plt.subplots(figsize=(9, 4.4), dpi=110)
    first: dict[int, int] = {}
    for (room, *_), at in found.items():
        first[room] = min(at, first.get(room, frames))
    for row, rooms in enumerate(_PYRAMID):
        for column, room in enumerate(rooms):
            left, bottom = (column - len(rooms) / 2) * width, -(row + 1) * height
            colour = "#212121" if room in first else "#eeeeee"
            box = Rectangle((left, bottom), width, height, facecolor=colour, edgecolor="white")
            axes.add_patch(box)
            name = f"{room}" if room not in first else f"{room}   {first[room] / 1000:,.0f} k"
            text = "white" if room in first else "#9e9e9e"
            axes.text(left + 6, bottom + height - 6, name, va="top", fontsize=7, color=text)
            places = [(x, y, at) for (where, x, y), at in found.items() if where == room]
            if places:
                x, y, at = np.array(places).T
                marks = axes.scatter(
                    left + 8 * x + 4,
                    bottom + 16 * y + 8 - _FLOOR,
                    c=at / 1e6,
                    s=9,
                    marker="s",
                    vmin=0,
                    vmax=frames / 1e6,
                    cmap="viridis_r",
                    linewidths=0,
                )
    if found:
        figure.colorbar(marks, ax=axes, label="million frames until it was found", shrink=0.7)
    axes.set_title(f"Rooms found in Montezuma's Revenge: {len(first)}")
    axes.autoscale_view()
    axes.set_aspect("equal")
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def film(path: Path, found: dict[str, Any], seconds: float = _SECONDS) -> None:
    """Play the moves of `found` once more and film them.

    Some images are left out if the game is long or images take long, so that drawing takes
    about `seconds`. After twice that time the film ends, with a message.
    """
    kwargs = {key: value for key, value in found["kwargs"].items() if key != "obs_type"}
    env = plangym_like.make(
        found["id"], render_mode="rgb_array", autoreset=False, remove_time_limit=False, **kwargs
    )
    env.reset(seed=found["seed"])
    steps = [action for action, dt in found["actions"] for _ in range(dt)]
    images = [_small(env.get_image())]
    begun = time.perf_counter()
    _small(env.get_image())  # the first one may take longer than the others
    cost = time.perf_counter() - begun
    begun = time.perf_counter()
    every = max(2, -(-len(steps) // _MOST_IMAGES), round(len(steps) * cost / seconds))
    with tqdm(steps, desc="film", unit="step", disable=not sys.stderr.isatty()) as bar:
        for index, action in enumerate(bar, start=1):
            step = env.step(np.asarray(action, env.action_space.dtype))
            late = time.perf_counter() - begun > 2 * seconds
            if index % every == 0 or index == len(steps) or late:
                images.append(_small(env.get_image()))
            if step.terminated or step.truncated:
                break
            if late:
                print(f"the film shows {index:,} of {len(steps):,} steps, because it took so long")
                break
    env.close()
    # Use one palette for all images, so that unchanged parts take no space in the file.
    some = images[:: len(images) // 8 + 1]
    palette = Image.fromarray(np.hstack([np.asarray(image) for image in some]))
    palette = palette.quantize(64, dither=Image.Dither.NONE)
    first, *others = [p.quantize(palette=palette, dither=Image.Dither.NONE) for p in images]
    first.save(path, save_all=True, append_images=others, duration=40, loop=0, optimize=True)


def _small(pixels: np.ndarray) -> Image.Image:
    image = Image.fromarray(pixels)
    if image.height <= _HEIGHT:
        return image
    return image.resize((image.width * _HEIGHT // image.height, _HEIGHT), Image.Resampling.BILINEAR)

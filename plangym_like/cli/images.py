"""Images of a plan: its curve as PNG, and its episode as GIF."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like import registry
from plangym_like.errors import MissingExtraError
from plangym_like.planners import Plan
from plangym_like.support.lazy_imports import broken_import

_HEIGHT = 240  # of a frame, in pixels
_FRAMES = 300  # in a GIF, at most
_MILLISECONDS = 40


def require_images() -> None:
    """Raise `MissingExtraError` unless the drawing libraries are installed.

    The error of a library that is installed, but cannot be imported, is passed on as it is.
    """
    for name in ("matplotlib", "PIL", "tqdm"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            if broken_import(error):
                raise
            raise MissingExtraError(
                f"images need {name}: pip install 'plangym_like[viz]', or add --no-images"
            ) from error


def draw_curve(path: Path, plan: Plan, title: str, label: str) -> None:
    """Plot the scores of `Plan.curve` against the number of transitions.

    Parameters
    ----------
    label : str
        The label of the scores' axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    # Without pyplot, which would look for a display.
    figure = Figure(figsize=(7, 3.8), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    transitions, scores = plan.curve["transitions"], plan.curve["score"]
    axes.step(transitions, scores, where="post", color="#1565c0", marker=".", markersize=4)
    axes.set_xlabel("transitions")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def film(path: Path, plan: Plan, name: Any, seed: int, kwargs: dict[str, Any]) -> float:
    """Reset with `seed`, follow the plan, and write a GIF of this episode; return its score.

    The GIF has one frame for each action. At most 300 frames, evenly spread, are drawn, so that
    long episodes do not take too long.
    """
    from tqdm import tqdm

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # for pygame: nothing is shown
    with registry.make(
        name, **{"render_mode": "rgb_array", "audit": "off", **kwargs, "autoreset": False}
    ) as env:
        shown = replace(plan, state=env.reset(seed=seed).state)
        count = len(shown)
        chosen = set(np.linspace(0, count, min(_FRAMES, count + 1)).astype(int))
        frames, score = [_small(env.get_image())], 0.0
        bar = tqdm(total=count, desc="GIF", leave=False, disable=not sys.stderr.isatty())
        with bar:
            for index, step in enumerate(shown.steps(env)):
                score += float(step.rewards[0])
                over = bool(step.terminateds[0] or step.truncateds[0])
                if index + 1 in chosen or over:
                    env.set_state(step.states[0])
                    frames.append(_small(env.get_image()))
                bar.update()
                if over:
                    break
    _write_gif(path, frames)
    return score


def _small(image: NDArray[np.uint8]) -> Any:
    from PIL import Image

    shown = Image.fromarray(image)
    if shown.height <= _HEIGHT:
        return shown
    size = (shown.width * _HEIGHT // shown.height, _HEIGHT)
    return shown.resize(size, Image.Resampling.BILINEAR)


def _write_gif(path: Path, frames: list[Any]) -> None:
    from PIL import Image

    # One palette for all frames, so that unchanged parts of the image take no space.
    some = frames[:: len(frames) // 8 + 1]
    palette = Image.fromarray(np.hstack([np.asarray(frame) for frame in some]))
    palette = palette.quantize(64, dither=Image.Dither.NONE)
    first, *others = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    first.save(
        path, save_all=True, append_images=others, duration=_MILLISECONDS, loop=0, optimize=True
    )

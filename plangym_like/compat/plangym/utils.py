"""plangym's functions for time limits, images and displays."""

from __future__ import annotations

import importlib
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import GrayscaleObservation
from numpy.typing import NDArray

from plangym_like.envs.wrapping import without_time_limit

GrayScaleObservation = GrayscaleObservation
_NO_LIMIT = 1e100


def remove_time_limit_from_spec(spec: Any) -> None:
    """Set the time limit of a spec to a number that no episode reaches."""
    spec.max_episode_steps = _NO_LIMIT


def remove_time_limit(gym_env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return `gym_env` with the time limits removed from its wrappers and its spec."""
    env = without_time_limit(gym_env)
    if env.spec is not None:
        remove_time_limit_from_spec(env.spec)
    return env


def process_frame_pil(
    frame: NDArray[np.uint8], width: int | None = None, height: int | None = None, mode: str = "RGB"
) -> NDArray[np.uint8]:
    """Convert an image to another size and mode (``"RGB"``, ``"L"``, ...) with Pillow."""
    from PIL import Image

    size = width or frame.shape[1], height or frame.shape[0]
    made = Image.fromarray(frame).convert("L" if mode == "GRAY" else mode).resize(size)
    return np.array(made)


def process_frame_opencv(
    frame: NDArray[np.uint8], width: int | None = None, height: int | None = None, mode: str = "RGB"
) -> NDArray[np.uint8]:
    """Convert an image to another size and mode (``"RGB"``, ``"BGR"``, ``"L"``) with OpenCV.

    ``"GRAY"`` is the same as ``"L"``.
    """
    import cv2

    found: Any = cv2.resize(frame, (width or frame.shape[1], height or frame.shape[0]))
    if mode in ("GRAY", "L"):
        found = cv2.cvtColor(found, cv2.COLOR_RGB2GRAY)
    elif mode == "BGR":
        found = cv2.cvtColor(found, cv2.COLOR_RGB2BGR)
    return np.asarray(found)


def process_frame(
    frame: NDArray[np.uint8], width: int | None = None, height: int | None = None, mode: str = "RGB"
) -> NDArray[np.uint8]:
    """Convert an image to another size and mode with Pillow, or OpenCV if Pillow is missing."""
    try:
        return process_frame_pil(frame, width, height, mode)
    except ImportError:
        return process_frame_opencv(frame, width, height, mode)


def get_display(visible: bool = False, size: tuple[int, int] = (400, 400), **kwargs: Any) -> Any:
    """Start and return a virtual display, which needs ``pyvirtualdisplay`` and Xvfb.

    This package makes its images without a display.
    """
    display_class = importlib.import_module("pyvirtualdisplay").Display
    os.environ["PYVIRTUALDISPLAY_DISPLAYFD"] = "0"
    display = display_class(visible=visible, size=size, **kwargs)
    display.start()
    return display

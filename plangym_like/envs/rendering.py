"""Images of environments made without ``render_mode="rgb_array"``, and of MuJoCo without a display.

When the first image of an environment without this mode is requested, a second simulator, the
painter, is made with it. Each state to render is copied into the painter; the state of the first
simulator does not change.

MuJoCo renders with EGL (a graphics card, or Mesa's software renderer), OSMesa (Mesa's software
renderer) or GLFW (a display), as set in the environment variable ``MUJOCO_GL``. If it is not set,
Gymnasium and dm_control try GLFW first. If there is no display, GLFW fails too late to try another
library.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError, MissingExtraError
from plangym_like.snapshots.chains import innermost

MODE = "rgb_array"
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
# These modules keep the display of this process as ``EGL_DISPLAY``.
_EGL_MODULES = ("mujoco.egl", "dm_control._render.pyopengl.egl_renderer")


def make_painter(simulator: Any) -> Any:
    """Return a second simulator like `simulator` that renders images.

    Raises
    ------
    InputError
        The environment cannot be made with ``render_mode="rgb_array"``, or cannot be made twice.
    """
    positional, _ = simulator._arguments
    try:
        return simulator.make_again(*positional, render_mode=MODE)
    except Exception as error:
        raise InputError(
            f"this environment was made without render_mode={MODE!r}, and a second environment "
            f"with that mode, needed to render images, could not be made: {error}"
        ) from error


def render(painter: Any, simulator: Any) -> NDArray[np.uint8]:
    """Render the current state of `simulator` with the `painter`, and return the image.

    Raises
    ------
    InputError
        The painter renders no image.
    """
    painter.copy_state(simulator)
    base = innermost(painter.env)
    if getattr(base, "render_mode", None) != MODE:
        # The callable takes no mode, or the mode was overwritten when the state was copied.
        base.render_mode = MODE
    try:
        image: NDArray[np.uint8] = painter.image()
    except NotImplementedError:
        image = np.asarray(None)
    if image.ndim < 2:
        raise InputError(
            f"{type(base).__name__}.render() gives no image, although render_mode is {MODE!r}"
        )
    return image


def draw_without_a_display() -> None:
    """Set ``MUJOCO_GL`` for this process if it is not set and there is no display.

    Raises
    ------
    MissingExtraError
        No library that renders without a display is installed.
    """
    _initialise_egl_again()
    if os.environ.get("MUJOCO_GL"):
        return
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    for name, library in _LIBRARIES.items():
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return
    raise MissingExtraError(
        "there is no display, and no library with which MuJoCo can render without a display: "
        "apt-get install libegl1 libegl-mesa0 libgl1, or apt-get install libosmesa6"
    )


def _initialise_egl_again() -> None:
    """Initialise the shared EGL display again, because another library may have closed it.

    For example, pygame closes it on exit. If it is still initialised, this has no effect.
    """
    for name in _EGL_MODULES:
        module = sys.modules.get(name)
        display = getattr(module, "EGL_DISPLAY", None)
        if module is not None and display is not None:
            module.EGL.eglInitialize(display, None, None)

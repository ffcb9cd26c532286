"""Rendering on machines without a display: choose the OpenGL library that MuJoCo uses.

MuJoCo renders with EGL (a graphics card, or Mesa's software renderer), OSMesa (Mesa's software
renderer) or GLFW (a display), as set in the environment variable ``MUJOCO_GL``. If it is not set,
Gymnasium and dm_control try GLFW first. If there is no display, GLFW fails too late to try another
library.
"""

from __future__ import annotations

import ctypes.util
import os
import sys

from plangym_like.errors import MissingExtraError

_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
# These modules keep the display of this process as ``EGL_DISPLAY``.
_EGL_MODULES = ("mujoco.egl", "dm_control._render.pyopengl.egl_renderer")


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

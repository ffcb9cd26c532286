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

import abc
import ctypes.util
import os
import sys
from typing import Any, Self

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from plangym_like.batch.simulator import Simulator
from plangym_like.errors import InputError, MissingExtraError
from plangym_like.snapshots.chains import innermost

MODE = "rgb_array"
_GREY = np.array([0.299, 0.587, 0.114])
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
# These modules keep the display of this process as ``EGL_DISPLAY``.
_EGL_MODULES = ("mujoco.egl", "dm_control._render.pyopengl.egl_renderer")


class RenderingSimulator(Simulator):
    """A simulator of an environment that renders its state.

    Attributes
    ----------
    render_mode : str or None
    obs_type : str or None
        One of `obs_types`.
    obs_types : tuple of str
        The kinds of observations of the family.
    rendered_obs_types : tuple of str
        Those for which `image` is observed, not what the environment returns.
    """

    obs_types: tuple[str, ...] = ("coords", "rgb", "grayscale")
    rendered_obs_types: tuple[str, ...] = ("rgb", "grayscale")
    # The arguments of the constructor.
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    render_mode: str | None
    obs_type: str | None
    # Whether images are observed.
    _images: bool
    _painter: Any = None

    def image_space(self) -> Box:
        """Return the space of the images that are observed."""
        shape = self.image().shape
        return Box(0, 255, shape if self.obs_type == "rgb" else shape[:2], np.uint8)

    def observe(self, obs: Any) -> Any:
        """Return the kind of observation that `obs_type` selects: `obs` itself, or an image."""
        if not self._images:
            return obs
        image = self.image()
        return image if self.obs_type == "rgb" else (image @ _GREY).round().astype(np.uint8)

    def image(self) -> NDArray[np.uint8]:
        """Render the current state; use a second environment unless the mode is "rgb_array".

        Raises
        ------
        InputError
            A second environment with this mode cannot be made, or renders no image.
        """
        if self.render_mode == MODE:
            return np.asarray(self.env.render())
        if self._painter is None:
            self._painter = self._make_painter()
        painter = self._painter
        painter.copy_state(self)
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

    def _make_painter(self) -> Self:
        try:
            return self.make_again(*self._arguments[0], render_mode=MODE)
        except Exception as error:
            raise InputError(
                f"this environment was made without render_mode={MODE!r}, and a second environment "
                f"with that mode, needed to render images, could not be made: {error}"
            ) from error

    @abc.abstractmethod
    def make_again(self, *args: Any, **changed: Any) -> Self:
        """Make another simulator of this class.

        The new simulator's positional arguments are `args`. Its keyword arguments are those of this
        simulator, updated with `changed`.
        """

    def copy_state(self, other: Self) -> None:
        """Copy the state of `other`, which differs from this simulator only in its render mode."""
        payload = np.zeros(other.payload_nbytes, np.uint8)
        other.read(payload)
        self.write(payload)

    def close(self) -> None:
        """Release the simulator's resources; safe to call more than once."""
        if self._painter is not None:
            self._painter.close()
        super().close()


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

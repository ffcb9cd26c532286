"""Images of environments that were made without ``render_mode="rgb_array"``.

When the first image is requested, a second simulator, the painter, is made with that mode. Each
state to render is copied into the painter; the state of the first simulator does not change.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.snapshots.chains import innermost

if TYPE_CHECKING:
    from plangym_like.envs.tried_simulator import TriedSimulator

MODE = "rgb_array"


def make_painter(simulator: TriedSimulator) -> Any:
    """Return a second simulator like `simulator` that renders images.

    Raises
    ------
    InputError
        The environment cannot be made with ``render_mode="rgb_array"``, or cannot be made twice.
    """
    (name, *rest), _ = simulator._arguments
    if callable(name) and _takes_render_mode(name):
        name = partial(name, render_mode=MODE)
    try:
        return simulator.make_again(name, *rest, render_mode=MODE)
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


def _takes_render_mode(make: Any) -> bool:
    try:
        return "render_mode" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False

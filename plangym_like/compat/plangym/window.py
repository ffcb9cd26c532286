"""One window for the images of ``render_mode="human"``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def show(picture: NDArray[np.uint8], title: str) -> None:
    """Show an image, ``(height, width, 3)`` or ``(height, width)``, in the window of this process.

    Raises
    ------
    pygame.error
        No display is available. With ``SDL_VIDEODRIVER=dummy`` in the process's environment,
        nothing is shown, and no error is raised.
    """
    import pygame

    pygame.display.init()
    if picture.ndim == 2:
        picture = np.repeat(picture[:, :, None], 3, axis=2)
    size = picture.shape[1], picture.shape[0]
    window: Any = pygame.display.get_surface()
    if window is None or window.get_size() != size:
        window = pygame.display.set_mode(size)
    pygame.display.set_caption(title)
    window.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
    pygame.event.pump()
    pygame.display.flip()

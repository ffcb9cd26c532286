"""One window for the images of ``render_mode="human"``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def show(image: NDArray[np.uint8], title: str) -> None:
    """Show an image, ``(height, width, 3)`` or ``(height, width)``, in the window of this process.

    Raises
    ------
    pygame.error
        No display is available. With ``SDL_VIDEODRIVER=dummy`` in the process's environment,
        nothing is shown, and no error is raised.
    """
    import pygame

    pygame.display.init()
    if image.ndim == 2:
        image = np.repeat(image[:, :, None], 3, axis=2)
    size = image.shape[1], image.shape[0]
    window: Any = pygame.display.get_surface()
    if window is None or window.get_size() != size:
        window = pygame.display.set_mode(size)
    pygame.display.set_caption(title)
    window.blit(pygame.surfarray.make_surface(image.swapaxes(0, 1)), (0, 0))
    pygame.event.pump()
    pygame.display.flip()

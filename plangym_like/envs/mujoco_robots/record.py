"""`Record`: the simulation data of many rows before and after each frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Views = list[tuple[NDArray[np.float64], NDArray[np.uint8]]]


class Record:
    """Memory for up to `capacity` rows of `frames` frames each.

    Parameters
    ----------
    capacity, frames : int
    state_nbytes, nbytes : int
        Bytes of the integration state, and of all data recorded at one time.

    Attributes
    ----------
    bytes : array ``(capacity, frames + 1, nbytes) uint8``
    numbers : array ``(capacity, frames + 1, nbytes // 8) float64``
        The same memory, as numbers.
    """

    def __init__(self, capacity: int, frames: int, state_nbytes: int, nbytes: int) -> None:
        self.bytes = np.zeros((capacity, frames + 1, nbytes), np.uint8)
        self.numbers = self.bytes.view(np.float64)
        self._size = state_nbytes // 8
        self._views: list[Views] = []

    def views(self, count: int) -> list[Views]:
        """Return two views for each row and time: the integration state, and all bytes.

        The list has at least `count` rows. Making a view takes about as long as using it, so views
        are kept for later calls.
        """
        while len(self._views) < count:
            row = len(self._views)
            states = self.numbers[row, :, : self._size]
            self._views.append(list(zip(states, self.bytes[row], strict=True)))
        return self._views

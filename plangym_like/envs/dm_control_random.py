"""`RestorableRandom`: a task's random generator, restored only when it is used."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEY_NBYTES = 4 * 624
_REST = struct.Struct("<iid")
RANDOM_NBYTES = _KEY_NBYTES + _REST.size


class RestorableRandom:
    """A `numpy.random.RandomState` whose state can be read and written as bytes.

    Tasks of dm_control mostly draw random numbers when an episode begins, and restoring the
    generator costs half as much as a step. So `write` only stores the state, and the generator is
    updated when one of its methods is used.
    """

    def __init__(self, generator: np.random.RandomState) -> None:
        self._generator = generator
        self._written: NDArray[np.uint8] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._written is not None:
            _load(self._generator, self._written)
            self._written = None
        return getattr(self._generator, name)

    def read(self, memory: NDArray[np.uint8]) -> None:
        """Write the generator's state into `memory` ``(RANDOM_NBYTES,)``."""
        if self._written is not None:
            memory[:] = self._written
            return
        state: Any = self._generator.get_state(legacy=False)
        memory[:_KEY_NBYTES] = state["state"]["key"].astype("<u4").view(np.uint8)
        rest = state["state"]["pos"], state["has_gauss"], state["gauss"]
        _REST.pack_into(memory.data, _KEY_NBYTES, *rest)

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Set the generator's state to the one in `memory`."""
        self._written = memory.copy()

    def restart(self, seed: int) -> None:
        """Seed the generator with `seed`, an int of any size."""
        fresh: Any = np.random.MT19937(np.random.SeedSequence(int(seed))).state["state"]
        memory = np.zeros(RANDOM_NBYTES, np.uint8)
        memory[:_KEY_NBYTES] = fresh["key"].astype("<u4").view(np.uint8)
        _REST.pack_into(memory.data, _KEY_NBYTES, int(fresh["pos"]), 0, 0.0)
        self._written = memory


def _load(generator: np.random.RandomState, memory: NDArray[np.uint8]) -> None:
    position, has_gauss, gauss = _REST.unpack_from(memory.data, _KEY_NBYTES)
    key = memory[:_KEY_NBYTES].view("<u4").astype(np.uint32)
    # With a position above 624, NumPy would read outside the key.
    generator.set_state(("MT19937", key, min(max(position, 0), 624), int(has_gauss != 0), gauss))

"""`Codec`: saves the state of one kind of environment as bytes, and restores it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from plangym_like.batches import Leaf
from plangym_like.errors import SnapshotError
from plangym_like.states import Row


class Codec(abc.ABC):
    """Saves and restores the state of one environment, without its wrappers, as bytes.

    In a row, the generator ``np_random`` and the wrappers' memory follow these bytes;
    `GymnasiumSimulator` saves them.

    Attributes
    ----------
    nbytes : int
        The size of the state in bytes, a multiple of 8.
    saves_generator : bool
        Whether the environment's ``np_random`` is saved after these bytes.
    columns : dict of str to (shape, dtype), optional
        The info keys of every step if infos hold no other keys; otherwise ``None``.
    exactness : {"exact", "approximate"}
        Whether continuing from these bytes is bit-identical to an uninterrupted episode.
    exactness_note : str
        The reason.
    """

    nbytes: int
    saves_generator: bool = True
    columns: Mapping[str, Leaf] | None = None
    exactness: str = "exact"
    exactness_note: str = ""

    @abc.abstractmethod
    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return everything that affects the bytes' meaning, except id, arguments and wrappers."""

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the named fields of `payloads` ``(N, nbytes or more)``, each ``(N, ...)``."""
        return {}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write named physical quantities into `payload`, a copy of the current state's payload.

        Raises
        ------
        InputError
            A name is unknown, or a value does not fit.
        """
        raise SnapshotError("states of this environment cannot be built from physical quantities")

    @abc.abstractmethod
    def read(self, payload: Row) -> int | None:
        """Write the current state into all of `payload` ``(nbytes,)``.

        A codec whose states vary in length returns the number of bytes used; nothing follows them
        in a row.
        """

    @abc.abstractmethod
    def write(self, payload: Row) -> None:
        """Replace the current state completely by the state in `payload` ``(nbytes,)``."""

    def reseed(self, seed: int) -> None:
        """Replace every generator that is part of these bytes by one made from `seed`."""

    def renew(self) -> None:
        """Undo lasting changes made by trials; called before the first reset."""

    def forget(self) -> None:
        """Drop caches of restored states; for benchmarks."""

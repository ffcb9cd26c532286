"""`Codec`: saves the state of one kind of environment as bytes, and restores it."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from plangym_like.batch.arrays import Leaf
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.base_settings import Settings
from plangym_like.states.rows import Row


class Codec(abc.ABC):
    """Saves and restores the state of one environment, without its wrappers, as bytes.

    In a row, the random generator ``np_random`` and the wrappers' state follow these bytes; both
    are saved by `GymnasiumSimulator`.

    Attributes
    ----------
    nbytes : int
        The size of the state in bytes, a multiple of 8.
    saves_generator : bool
        Whether the environment's ``np_random`` is saved after these bytes.
    columns : dict of str to (shape, dtype), optional
        The shape and dtype of each info, if all steps have the same info keys; else ``None``.
    exactness : {"exact", "approximate"}
        Whether an episode continued from these bytes is bit-identical to an uninterrupted one.
    exactness_note : str
        Why `exactness` has its value; may be empty.
    """

    nbytes: int
    saves_generator: bool = True
    columns: Mapping[str, Leaf] | None = None
    exactness: str = "exact"
    exactness_note: str = ""

    @abc.abstractmethod
    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return all facts that determine what the bytes mean.

        The environment's id, its arguments and its wrappers are left out; the simulator adds them.
        """

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the named fields of `payloads` ``(N, nbytes or more)``, each ``(N, ...)``."""
        return {}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write the physical quantities `physics`, a mapping of name to value, into `payload`.

        `payload` is a copy of the current state's payload.

        Raises
        ------
        InputError
            A name is unknown, or a value does not fit.
        """
        raise SnapshotError(
            "states of this environment cannot be built from physical quantities; get them from "
            "reset and step"
        )

    @abc.abstractmethod
    def read(self, payload: Row) -> int | None:
        """Write the current state into `payload` ``(nbytes,)``, and fill all of it.

        If states vary in length, `read` may instead fill only the beginning of `payload`, and
        return the number of bytes used. The state row then holds nothing after these bytes.
        """

    @abc.abstractmethod
    def write(self, payload: Row) -> None:
        """Replace the whole current state with the one in `payload` ``(nbytes,)``."""

    def reseed(self, seed: int) -> None:
        """Replace every random generator that this codec saves with one made from `seed`."""

    def settings(self) -> Sequence[Settings]:
        """Return what steps and resets read but these bytes do not hold; a wrapper may change it.

        If there are wrappers from outside Gymnasium, states with other settings are refused. The
        result is empty if the bytes hold everything, or if it is not known what they leave out.
        """
        return ()

    def renew(self) -> None:
        """Undo changes made by trials and batches, before a reset without a current state."""

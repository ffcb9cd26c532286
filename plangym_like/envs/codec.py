"""What a family says about its simulator's state: which bytes it is, and how they are read back."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from plangym_like.batches import Leaf
from plangym_like.errors import SnapshotError
from plangym_like.states import Row


class Codec(abc.ABC):
    """The state of one environment without its wrappers as bytes, and back.

    The generator ``np_random`` and the wrappers' memory lie behind these bytes in a row;
    `GymnasiumSimulator` saves them.

    Attributes
    ----------
    nbytes : int
        How many bytes the state takes, a multiple of 8.
    saves_generator : bool
        Whether the environment's ``np_random`` is saved behind these bytes.
    columns : dict of str to (shape, dtype), optional
        The info keys of every step where these are all that infos hold; else ``None``.
    exactness : {"exact", "approximate"}
        Whether continuing from these bytes is bit-identical to never having stopped.
    exactness_note : str
        Why.
    """

    nbytes: int
    saves_generator: bool = True
    columns: Mapping[str, Leaf] | None = None
    exactness: str = "exact"
    exactness_note: str = ""

    @abc.abstractmethod
    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return what the bytes' meaning depends on besides id, arguments and wrappers."""

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the named fields of `payloads` ``(N, nbytes)`` or wider, each ``(N, ...)``."""
        return {}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write named physical quantities into `payload`, a copy of the current state's.

        Raises
        ------
        InputError
            A name is unknown, or a value does not fit.
        """
        raise SnapshotError("states of this environment cannot be built from physical quantities")

    @abc.abstractmethod
    def read(self, payload: Row) -> int | None:
        """Write the current state into `payload` ``(nbytes,)``, all of it.

        A codec whose states vary in length returns how many bytes it used; it is alone in a row.
        """

    @abc.abstractmethod
    def write(self, payload: Row) -> None:
        """Make the state in `payload` ``(nbytes,)`` the current one; nothing of the old stays."""

    def reseed(self, seed: int) -> None:
        """Replace every generator that is part of these bytes by one made of `seed`."""

    def renew(self) -> None:
        """Undo what trials have changed for good; called before the first reset."""

    def forget(self) -> None:
        """Drop caches of restored states; for benchmarks."""

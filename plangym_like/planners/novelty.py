"""`Novelty`: the least depth at which a search has seen each atom."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError

_UNSEEN = np.iinfo(np.int32).max
# A table of this many depths takes 512 MiB.
_MOST_ATOMS = 1 << 27


class Novelty:
    """A table of the least depth at which each atom was seen.

    It is the table ``d(p)`` of Rollout-IW. A state at depth d is novel if it has an atom p with
    ``d < d(p)``. In a breadth-first search, a state is novel if it has an atom that no earlier
    state had, as in IW(1).
    """

    def __init__(self) -> None:
        # The last element is for the index -1, which means no atom, and is never novel.
        self._depths: NDArray[np.int32] = np.array([-1], np.int32)
        self._num_columns = 0

    def atoms(self, features: Any, count: int) -> NDArray[np.int32]:
        """Return the numbers of each row's atoms ``(count, K)``; shorter rows are filled with -1.

        Raises
        ------
        InputError
            The features are not an array ``(count, F)`` of bools or integers, with the F of the
            first call, or their values are too large.
        """
        array = np.asarray(features)
        columns = array.shape[1] if array.ndim == 2 else 0
        if not columns or len(array) != count or array.dtype.kind not in "biu":
            raise InputError(
                f"features must return an array ({count}, F) of integers or bools, with F at least "
                f"1; got {array.dtype} {array.shape}"
            )
        if columns != (self._num_columns or columns):
            raise InputError(
                f"features must have {self._num_columns} columns, got {columns}: the first call "
                f"returned {self._num_columns}"
            )
        self._num_columns = columns
        if array.dtype == np.bool_:
            self.reserve(columns)
            return _numbers_of_true(array)
        self.reserve(int(array.max(initial=0)) * columns + columns)
        numbers: NDArray[np.int32] = array.astype(np.int32)
        numbers *= columns
        numbers += np.arange(columns, dtype=np.int32)
        numbers[array < 0] = -1
        return numbers

    def reserve(self, atoms: int) -> None:
        """Make room for the atoms with the numbers 0 to ``atoms - 1``."""
        if atoms > _MOST_ATOMS:
            raise InputError(
                f"features have values that are too large: they make {atoms:,} atoms, and at most "
                f"{_MOST_ATOMS:,} are possible"
            )
        if atoms >= len(self._depths):
            depths = np.full(max(atoms + 1, 2 * len(self._depths)), _UNSEEN, np.int32)
            depths[: len(self._depths) - 1] = self._depths[:-1]
            depths[-1] = -1
            self._depths = depths

    def test(
        self, atoms: NDArray[np.int32], depths: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Return which states are novel, and one novel atom of each; add all states to the table.

        A state that is not novel has the atom -1 in the result.

        The result is the same as if states were tested one by one, in ascending order of depth.
        States of the same depth are tested in the order of rows.

        Examples
        --------
        >>> table = Novelty()
        >>> atoms = table.atoms(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), 4)
        >>> table.test(atoms, np.array([1, 1, 1, 1], np.int32))[0].tolist()
        [True, True, True, False]
        >>> table.test(atoms, np.array([2, 1, 2, 0], np.int32))[0].tolist()
        [False, False, False, True]
        """
        order = np.argsort(depths, kind="stable")
        rows, columns = np.nonzero((self._depths[atoms] > depths[:, None])[order])
        rows = order[rows]
        numbers, first = np.unique(atoms[rows, columns], return_index=True)
        rows = rows[first]
        self._depths[numbers] = depths[rows]
        novel, witness = np.zeros(len(atoms), np.bool_), np.full(len(atoms), -1, np.int32)
        novel[rows], witness[rows] = True, numbers
        return novel, witness

    def depth_of(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the least depth at which each atom was seen; the atom -1 (none) gives -1."""
        depths: NDArray[np.int32] = self._depths[atoms]
        return depths


def _numbers_of_true(array: NDArray[np.bool_]) -> NDArray[np.int32]:
    # Finding the true elements is much faster along one axis than along two.
    rows, columns = np.divmod(np.flatnonzero(array.ravel()), array.shape[1])
    counts = np.bincount(rows, minlength=len(array))
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.full((len(array), max(1, int(np.max(counts, initial=0)))), -1, np.int32)
    numbers[rows, places] = columns
    return numbers

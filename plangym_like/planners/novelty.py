"""`Novelty`: the least depth at which each atom was seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.planners.checkpoint import stored

# The number of a table of novelty, and the number of an atom.
Atom = tuple[int, int]

# The depth of atoms that were never seen.
_UNSEEN = 1 << 30
# A table of this many depths takes 512 MiB.
_MOST_ATOMS = 1 << 27
# The atoms of this many states are looked up at once.
_MOST_ROWS = 64


@stored
class Novelty:
    """A table of the least depth at which each atom was seen.

    It is the table ``d(p)`` of Rollout-IW. A state at depth d is novel if it has an atom p with
    ``d < d(p)``. In a breadth-first search, a state is novel if it has an atom that no earlier
    state had, as in IW(1).

    Parameters
    ----------
    subtables : bool
        Whether states whose sums of gains differ in magnitude have tables of their own: one for
        sums of at most 0, and one from each power of 2 to the next.
    """

    def __init__(self, *, subtables: bool = False) -> None:
        self._subtables = subtables
        # For each atom, `_UNSEEN` minus its depth, so that new tables are zeros: memory that is not
        # used until it is written to. The last element of a table is for the index -1, which means
        # no atom, and is never novel.
        self._tables: dict[int, NDArray[np.int32]] = {}
        self._num_atoms = self._num_columns = 0

    def atoms(self, features: Any, count: int) -> NDArray[np.int32]:
        """Return the numbers of each row's atoms ``(count, K)``; shorter rows are filled with -1.

        Raises
        ------
        InputError
            The features are neither an array ``(count, F)`` of bools or integers, with the F of the
            first call, nor a list of `count` integer arrays, or their values are too large.
        """
        if isinstance(features, list) and len(features) == count:
            return self._given_atoms(features)
        array = np.asarray(features)
        columns = array.shape[1] if array.ndim == 2 else 0
        if not columns or len(array) != count or array.dtype.kind not in "biu":
            raise InputError(
                f"features must return an array ({count}, F) of integers or bools, with F at least "
                f"1, or a list of {count} integer arrays; got {array.dtype} {array.shape}"
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

    def _given_atoms(self, features: list[Any]) -> NDArray[np.int32]:
        """Return the atoms that are given as a list of one array for each row."""
        for each in features:
            if not isinstance(each, np.ndarray) or each.ndim != 1 or each.dtype.kind not in "iu":
                raise InputError(
                    f"a list of features must hold one-dimensional integer arrays, got {each!r:.80}"
                )
            if len(each) and each.min() < 0:
                raise InputError(f"numbers of atoms must be at least 0, got {each.min()}")
        width = max(1, *(len(each) for each in features))
        self.reserve(1 + max(int(each.max(initial=-1)) for each in features))
        numbers = np.full((len(features), width), -1, np.int32)
        for row, each in zip(numbers, features, strict=True):
            row[: len(each)] = each
        return numbers

    def reserve(self, atoms: int) -> None:
        """Make room for the atoms with the numbers 0 to ``atoms - 1``."""
        if atoms > _MOST_ATOMS:
            raise InputError(
                f"features have values that are too large: they make {atoms:,} atoms, and at most "
                f"{_MOST_ATOMS:,} are possible"
            )
        if atoms > self._num_atoms:
            self._num_atoms = min(2 * atoms, _MOST_ATOMS)

    def keys(self, gains: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of the table for each of these sums of gains."""
        keys = np.zeros(len(gains), np.int64)
        if self._subtables:
            positive = gains > 0
            magnitude = np.floor(np.log2(gains[positive])).astype(np.int64)
            keys[positive] = magnitude + (magnitude >= 0)
        return keys

    def _table(self, key: int) -> NDArray[np.int32]:
        """Return the table with this number, with room for all atoms."""
        table = self._tables.get(key)
        if table is None or len(table) <= self._num_atoms:
            larger = np.zeros(self._num_atoms + 1, np.int32)
            if table is not None:
                larger[: len(table) - 1] = table[:-1]
            larger[-1] = _UNSEEN + 1
            self._tables[key] = table = larger
        return table

    def test(
        self, atoms: NDArray[np.int32], depths: NDArray[np.int32], gains: NDArray[np.float64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int32], list[Atom]]:
        """Return which states are novel, and add all states to the table.

        Also return a novel atom of each state, -1 if it has none, and all atoms that were seen
        before and are now seen at a smaller depth, each after the number of its table. `gains` are
        the sums of gains on the paths to the states, ``(N,)``.

        The result is the same as if states were tested one by one, in ascending order of depth.
        States of the same depth are tested in the order of rows.

        Examples
        --------
        >>> table, gains = Novelty(), np.zeros(4)
        >>> atoms = table.atoms(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), 4)
        >>> table.test(atoms, np.array([1, 1, 1, 1], np.int32), gains)[0].tolist()
        [True, True, True, False]
        >>> table.test(atoms, np.array([2, 1, 2, 0], np.int32), gains)[0].tolist()
        [False, False, False, True]
        """
        novel, witness = np.zeros(len(atoms), np.bool_), np.full(len(atoms), -1, np.int32)
        seen: list[Atom] = []
        order, keys = np.argsort(depths, kind="stable"), self.keys(gains)
        for key in np.unique(keys).tolist():
            mine, table = order[keys[order] == key], self._table(key)
            for start in range(0, len(mine), _MOST_ROWS):
                some = mine[start : start + _MOST_ROWS]
                mine_atoms = atoms[some]
                earlier = table.take(mine_atoms) < _UNSEEN - depths[some, None]
                found = np.flatnonzero(earlier.ravel())
                numbers, first = np.unique(mine_atoms.ravel()[found], return_index=True)
                rows = some[found[first] // atoms.shape[1]]
                seen += [(key, atom) for atom in numbers[table[numbers] > 0].tolist()]
                table[numbers] = _UNSEEN - depths[rows]
                novel[rows], witness[rows] = True, numbers
        return novel, witness, seen

    def depth_of(self, atoms: NDArray[np.int32], key: int = 0) -> NDArray[np.int32]:
        """Return the least depth at which each atom was seen; the atom -1 (none) gives -1.

        `key` is the number of the table.
        """
        depths: NDArray[np.int32] = _UNSEEN - self._table(key)[atoms]
        return depths


def _numbers_of_true(array: NDArray[np.bool_]) -> NDArray[np.int32]:
    # Finding the true elements is much faster along one axis than along two.
    rows, columns = np.divmod(np.flatnonzero(array.ravel()), array.shape[1])
    counts = np.bincount(rows, minlength=len(array))
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.full((len(array), max(1, int(np.max(counts, initial=0)))), -1, np.int32)
    numbers[rows, places] = columns
    return numbers

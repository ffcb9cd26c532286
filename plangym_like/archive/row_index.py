"""`RowIndex`: a hash table that finds the first node whose row has a given hash."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plangym_like.states.rows import Row

Nodes = NDArray[np.int64]

_SMALLEST = 1 << 10
_FULLEST = 0.7
# The number of nodes that are inserted at once; this limits the memory for intermediate results.
_CHUNK = 1 << 18


def hash_rows(rows: Row, reference: Row) -> NDArray[np.uint64]:
    """Return 64-bit hashes ``(N,)`` of `rows` ``(N, state_nbytes)``.

    The hash is the sum of ``mix(word ^ key) - mix(key)`` over all 64-bit words of
    ``row ^ reference``, with a different key for each word. Words that are equal in row and
    reference add 0, so only words that differ are mixed. Few words of an emulator's state differ.
    """
    changes = rows.view(np.uint64) ^ reference.view(np.uint64)
    columns = np.flatnonzero(changes.any(axis=0))
    keys = _keys(changes.shape[1])[columns]
    mixed = _mix(changes[:, columns] ^ keys) - _mix(keys)
    hashes: NDArray[np.uint64] = mixed.sum(axis=1, dtype=np.uint64)
    return hashes


@lru_cache(maxsize=8)
def _keys(count: int) -> NDArray[np.uint64]:
    """Return fixed pseudo-random numbers ``(count,)``; the hashes in files depend on them."""
    return np.random.Generator(np.random.PCG64(16)).integers(0, 2**64, count, np.uint64)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the mixing function of SplitMix64, a permutation, to `words`.

    G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014; the
    constants are D. Stafford's variant 13, which Java and Vigna's reference code use.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class RowIndex:
    """A hash table with open addressing and linear probing, filled and searched in batches.

    The table holds nodes. The caller keeps their hashes, in an array with one element per node.
    """

    def __init__(self) -> None:
        self._table = np.full(_SMALLEST, -1, np.int64)
        self._nodes = 0

    @property
    def nbytes(self) -> int:
        """The size of the table in bytes."""
        return self._table.nbytes

    def find(self, hashes: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each hash in `wanted` ``(M,)``, return the first node with that hash ``(M,)``, or -1.

        Parameters
        ----------
        hashes : array ``(N,)``
            The hashes of all nodes.
        """
        found = np.full(len(wanted), -1, np.int64)
        if not len(hashes):
            return found
        self._update(hashes)
        asked, slots = np.arange(len(wanted)), _slots(self._table, wanted)
        while len(asked):
            nodes = self._table[slots]
            equal = (nodes >= 0) & (hashes[nodes] == wanted[asked])
            found[asked[equal]] = nodes[equal]
            more = (nodes >= 0) & ~equal
            asked, slots = asked[more], _next(self._table, slots[more])
        return found

    def _update(self, hashes: NDArray[np.uint64]) -> None:
        """Insert the nodes that were added since the last call; if need be, in a larger table."""
        table, begin, size = self._table, self._nodes, len(self._table)
        while len(hashes) > _FULLEST * size:
            size *= 2
        if size > len(table):
            table, begin = np.full(size, -1, np.int64), 0
        for first in range(begin, len(hashes), _CHUNK):
            nodes = np.arange(first, min(first + _CHUNK, len(hashes)))
            _insert(table, hashes, nodes[np.unique(hashes[nodes], return_index=True)[1]])
        # After an interrupt, nodes are inserted again, which changes nothing.
        self._table, self._nodes = table, len(hashes)


def _insert(table: Nodes, hashes: NDArray[np.uint64], nodes: Nodes) -> None:
    """Insert nodes with distinct hashes; of equal hashes, the table keeps the first node."""
    slots = _slots(table, hashes[nodes])
    while len(nodes):
        free = table[slots] < 0
        table[slots[free]] = nodes[free]
        # If several nodes have the same slot, the last of them is in it now.
        there = table[slots]
        more = (there != nodes) & (hashes[there] != hashes[nodes])
        nodes, slots = nodes[more], _next(table, slots[more])


def _slots(table: Nodes, hashes: NDArray[np.uint64]) -> Nodes:
    return (hashes & np.uint64(len(table) - 1)).astype(np.int64)


def _next(table: Nodes, slots: Nodes) -> Nodes:
    return (slots + 1) & (len(table) - 1)

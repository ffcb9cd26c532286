"""`Nodes`: the growing table of a search's nodes, and the paths in it."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from plangym_like.planners.checkpoint import stored

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]
# State rows, ``(N, state_nbytes)``.
Rows = NDArray[np.uint8]

# The node where every path starts.
ROOT = 0


@stored
class Nodes:
    """A table with one row for each node; each field is an array that grows.

    Node 0 is the root; a forest has more roots. The parent of a node is an earlier node, -1 for a
    root.

    Parameters
    ----------
    *fields : tuple
        The fields of a node besides ``parent``, as in `numpy.dtype`: a name, a dtype, and a shape
        if a node has an array.
    links : sequence of str
        The fields that hold numbers of other nodes, -1 for none. New nodes begin with -1.
    roots : int
        The number of nodes to begin with.

    Attributes
    ----------
    size : int
        The number of nodes.

    Examples
    --------
    >>> nodes = Nodes(("reward", float))
    >>> nodes.add([ROOT, ROOT], reward=[1.0, 2.0])
    array([1, 2])
    >>> nodes.path(nodes.add([2], reward=3.0)[0]), nodes["reward"]
    (array([2, 3]), array([0., 1., 2., 3.]))
    """

    def __init__(
        self, *fields: tuple[Any, ...], links: tuple[str, ...] = (), roots: int = 1
    ) -> None:
        self._links = ("parent", *links)
        self._columns: dict[str, NDArray[Any]] = {}
        for name, dtype, *shape in (("parent", np.intp), *fields):
            self._columns[name] = np.zeros((64, *(shape[0] if shape else ())), dtype)
        self.size = 0
        self.add([-1] * roots)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_columns": {name: self[name] for name in self._columns}}

    def __getitem__(self, field: str) -> NDArray[Any]:
        """Return a field of all nodes, as a view."""
        return self._columns[field][: self.size]

    def values_of(self, field: str, nodes: Ints) -> NDArray[Any]:
        """Return ``self[field][nodes]``, faster if a node has an array."""
        return self._columns[field].take(nodes, 0)

    def add(self, parents: Any, **fields: Any) -> Ints:
        """Append children of `parents` ``(n,)``, and return their numbers; other fields are 0."""
        first, self.size = self.size, self.size + len(parents)
        columns = self._columns
        if self.size > len(columns["parent"]):
            for name, old in columns.items():
                columns[name] = np.zeros((2 * self.size, *old.shape[1:]), old.dtype)
                columns[name][:first] = old[:first]
        for link in self._links:
            columns[link][first : self.size] = -1
        columns["parent"][first : self.size] = parents
        for name, values in fields.items():
            columns[name][first : self.size] = values
        return np.arange(first, self.size)

    def path(self, node: int) -> Ints:
        """Return the nodes of the path from a root to `node`, without the root."""
        parents, found = self._columns["parent"], []
        while parents[node] >= 0:
            found.append(node)
            node = int(parents[node])
        return np.array(found[::-1], np.intp)

    def widen(self, field: str, width: int, fill: Any) -> None:
        """Give each node at least `width` numbers in an array field; new ones are `fill`."""
        old = self._columns[field]
        if width > old.shape[1]:
            more = [(0, 0), (0, width - old.shape[1])]
            self._columns[field] = np.pad(old, more, constant_values=fill)

    def take(self, nodes: Ints) -> Self:
        """Return some nodes as a new table; its links are those of the old one."""
        part = copy.copy(self)
        part._columns = {name: column[nodes] for name, column in self._columns.items()}
        part.size = len(nodes)
        return part

    def subtree(self, *roots: int) -> Self:
        """Return the nodes below `roots`, and these themselves, as a new table.

        The roots come first, then the others in the same order. No root is below another one.
        """
        above = self["parent"].copy()
        for root in (*np.flatnonzero(above < 0), *roots):
            above[root] = root
        while not np.array_equal(above, further := above[above]):  # twice as far in each round
            above = further
        others = np.isin(above, roots)
        others[list(roots)] = False
        kept = np.concatenate([np.array(roots, np.intp), np.flatnonzero(others)])
        numbers = np.full(self.size + 1, -1)  # the last element is for the link -1
        numbers[kept] = np.arange(len(kept))
        part = self.take(kept)
        for link in self._links:
            part._columns[link] = numbers[part._columns[link]]
        return part

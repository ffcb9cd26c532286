"""`StateArchive`: millions of state rows in little memory, with the tree that they form."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from plangym_like.archive import archive_file
from plangym_like.archive.growing_array import GrowingArray
from plangym_like.archive.row_blocks import RowBlocks
from plangym_like.archive.row_index import RowIndex, hash_rows
from plangym_like.batch.layout import check_dt
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError, StateError
from plangym_like.states.rows import Row, States
from plangym_like.support.arguments import as_count
from plangym_like.support.fork_safety import new_lock

_OWN = ("parents", "actions", "dt", "rewards")
_DEFAULTS = {"seeds": -1}  # -1: without a seed
_ROWS = ("reference", "frames", "ends")
_HASHES = "hashes"
_ARGUMENTS = ("self", "states")  # of `add`
_HIGHEST_LEVEL = 22


class StateArchive:
    """Compressed state rows, each with its parent, its action, and columns of your own.

    Nodes are numbered from 0 in the order in which they are added. Rows are restored bit for bit.
    They are kept as differences from the first row, compressed in blocks of up to 64 rows, so
    reading a row needs only its block. Threads may share an archive.

    Parameters
    ----------
    env : PlanEnv
        The environment of the rows.
    columns : mapping of str to dtype, optional
        Columns of your own, such as ``{"visits": int, "cell": (np.uint8, 88)}``. New nodes get
        zeros where `add` is given no values. `replay` takes the seeds of steps from a column named
        ``seeds``. In this column, -1 means no seed, and is the default.
    action_dtype : dtype, optional
        The dtype of actions, by default the action space's. Actions that are floats must have
        exactly this dtype, because the rewards of some environments depend on it.
    directory : path, optional
        Keep rows and columns in unnamed files in this directory instead of in memory. The files are
        mapped into memory, and vanish with the archive; use `save` to keep it. If the process
        forks, both copies of the archive use the same files, so only one of them may be changed.
    level : int
        The compression level, from 1 to 22.

    Raises
    ------
    InputError
        The actions of `env` are not arrays, a column has an unusable name or dtype, or `level` is
        out of range.
    MissingExtraError
        zstandard is not installed; Python 3.14 and later need no extra.

    Examples
    --------
    >>> import numpy as np, plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> root, obs, info = env.reset(seed=0)
    >>> archive = plangym_like.StateArchive(env, {"visits": int})
    >>> archive.add(root)
    array([0])
    >>> step = env.step_batch([0, 1], root)
    >>> nodes = archive.add(step.states, parents=0, actions=[0, 1], rewards=step.rewards)
    >>> np.array_equal(archive.get(nodes), step.states)
    True
    >>> archive.find(step.states), archive.path(2), archive.replay(2)
    (array([1, 2]), array([0, 2]), 1.0)
    >>> archive["visits"][archive.path(2)] += 1
    >>> archive["visits"]
    array([1, 0, 1])
    """

    def __init__(
        self,
        env: PlanEnv,
        columns: Mapping[str, DTypeLike] | None = None,
        *,
        action_dtype: DTypeLike | None = None,
        directory: str | os.PathLike[str] | None = None,
        level: int = 3,
    ) -> None:
        if not isinstance(env, PlanEnv):
            raise InputError(f"StateArchive needs an environment of plangym_like.make, got {env!r}")
        if not env.layout.array_actions:
            raise InputError(
                f"StateArchive keeps actions in one array, but those of {env.action_space} are not "
                "arrays"
            )
        if as_count("level", level) > _HIGHEST_LEVEL:
            raise InputError(f"level must be at most {_HIGHEST_LEVEL}, got {level}")
        self.env = env
        self._format = env.layout.format
        space = env.action_space
        dtypes: dict[str, Any] = {
            "parents": np.int64,
            "actions": (space.dtype if action_dtype is None else action_dtype, space.shape or ()),
            "dt": np.int64,
            "rewards": np.float64,
            _HASHES: np.uint64,
        }
        if not isinstance(columns, Mapping | None):
            raise InputError(f"columns must be a dict of names and dtypes, got {columns!r}")
        for name, dtype in dict(columns or {}).items():
            if not isinstance(name, str) or name in (*dtypes, *_ROWS, *_ARGUMENTS):
                raise InputError(f"a column cannot be called {name!r}: it is taken, or not a str")
            dtypes[name] = dtype
        self._columns = {
            name: GrowingArray(*_dtype_and_shape(name, dtype), directory)
            for name, dtype in dtypes.items()
        }
        self._blocks = RowBlocks(self._format.state_nbytes, directory, level)
        self._index = RowIndex()
        self._lock = new_lock()

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        return f"StateArchive({self.env.name}, {len(self)} nodes, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        """The number of bytes that rows, columns and hash table use, in memory or in files."""
        columns = sum(column.values.nbytes for column in self._columns.values())
        return self._blocks.nbytes + columns + self._index.nbytes

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column ``(N, ...)``, a view of the values of all current nodes.

        Columns of your own can be written to. A view does not grow with the archive.
        """
        if name == _HASHES or name not in self._columns:
            raise KeyError(name)
        values = self._columns[name].values[: len(self)]
        if name in _OWN:
            values.flags.writeable = False
        return values

    @property
    def parents(self) -> NDArray[np.int64]:
        """The parent ``(N,)`` of each node, -1 for roots."""
        return self["parents"]

    @property
    def actions(self) -> NDArray[Any]:
        """The action ``(N, *action_shape)`` that led to each node from its parent."""
        return self["actions"]

    @property
    def dt(self) -> NDArray[np.int64]:
        """How long the action that led to each node was held ``(N,)``; see `PlanEnv.step`."""
        return self["dt"]

    @property
    def rewards(self) -> NDArray[np.float64]:
        """The reward ``(N,)`` of the action that led to each node."""
        return self["rewards"]

    def add(
        self,
        states: States,
        parents: ArrayLike = -1,
        actions: Any = None,
        dt: Any = 1,
        rewards: ArrayLike = 0.0,
        **columns: ArrayLike,
    ) -> NDArray[np.int64]:
        """Add nodes, and return their numbers ``(N,)``.

        A row that the archive already has is added again, because its path may be different. To
        leave such rows out, use `find` first.

        Parameters
        ----------
        states : array ``(N, state_nbytes) uint8``, sequence of rows, or one row
        parents : int or int array ``(N,)``
            Nodes that were added before, or earlier in this batch; -1 for roots.
        actions : array ``(N, *action_shape)``, or one action for all
            The actions that led from the parents to the nodes. Roots need none.
        dt, rewards : number or array ``(N,)``
            How long each action was held, and the reward that it gave.
        **columns : array ``(N, ...)``, or one value for all
            The values of your own columns.

        Raises
        ------
        InputError, StateError
            An argument cannot be used; nothing was added.
        MemoryError, OSError
            The memory or the disk is full; nothing was added.
        """
        with self._lock:
            return self._add(states, parents, actions, dt, rewards, columns)

    def _add(
        self,
        states: States,
        parents: ArrayLike,
        actions: Any,
        dt: Any,
        rewards: ArrayLike,
        columns: Mapping[str, ArrayLike],
    ) -> NDArray[np.int64]:
        rows = self._format.check(states)
        unknown = sorted(columns.keys() - (self._columns.keys() - {*_OWN, _HASHES}))
        if unknown:
            raise InputError(f"there is no column {unknown[0]!r}; give columns= to StateArchive")
        count, first = len(rows), len(self)
        chosen = _fitted("parents", parents, self.parents, count)
        if (chosen < -1).any() or (chosen >= first + np.arange(count)).any():
            raise InputError("parents must be -1, or nodes that were added before their children")
        if actions is None and (chosen >= 0).any():
            raise InputError("nodes with parents need the actions that led to them")
        values: dict[str, Any] = {
            "parents": chosen,
            "actions": 0 if actions is None else _fitted("actions", actions, self.actions, count),
            "dt": _fitted("dt", check_dt(dt), self.dt, count),
            "rewards": _fitted("rewards", rewards, self.rewards, count),
        }
        for name in self._columns.keys() - {*_OWN, _HASHES}:
            given = columns.get(name, _DEFAULTS.get(name, 0))
            values[name] = _fitted(name, given, self[name], count)
        reference = rows[0] if count and not first else self._blocks.reference
        values[_HASHES] = hash_rows(rows, reference)
        for column in self._columns.values():
            column.truncate(first)  # if the last call was interrupted
            column.reserve(count)
        for name, column in self._columns.items():
            column.append(values[name], count)
        self._blocks.append(rows)  # the new nodes exist from here on
        return np.arange(first, first + count)

    def get(self, nodes: ArrayLike) -> Row:
        """Return the row ``(state_nbytes,)`` of one node, or the rows ``(N, ...)`` of several.

        Raises
        ------
        IndexError
            The node does not exist.
        StateFormatError
            The memory of the archive was damaged.
        """
        with self._lock:
            indices = self._nodes(nodes)
            rows = self._blocks.get(np.atleast_1d(indices))
        return rows[0] if indices.ndim == 0 else rows

    def find(self, states: States) -> NDArray[np.int64]:
        """For each row, return the first node that holds it, or -1 if none does; shape ``(N,)``.

        Rows are looked up by a hash of 64 bits, and then compared. If two different rows have the
        same hash, the later one is not found; in an archive of ten million different rows, the
        chance of such a pair is about 3 in a million.
        """
        rows = self._format.check(states)
        with self._lock:
            wanted = hash_rows(rows, self._blocks.reference)
            nodes = self._index.find(self._columns[_HASHES].values[: len(self)], wanted)
            found = np.flatnonzero(nodes >= 0)
            equal = (self._blocks.get(nodes[found]) == rows[found]).all(axis=1)
        nodes[found[~equal]] = -1
        return nodes

    def path(self, node: int) -> NDArray[np.int64]:
        """Return the nodes ``(T + 1,)`` from a root to `node`, both included."""
        path = [int(self._nodes(node))]
        parents = self._columns["parents"].values
        while (parent := int(parents[path[-1]])) >= 0:
            path.append(parent)
        return np.array(path[::-1])

    def replay(self, node: int, env: PlanEnv | None = None) -> float:
        """Repeat the steps on the path to `node`, and return the sum of their rewards.

        Each state is compared with the archived one.

        Parameters
        ----------
        env : PlanEnv, optional
            The environment to step; by default, the archive's. The env's current state does not
            change.

        Raises
        ------
        StateError
            A step with the archived action, dt and seed gives another state than the archived one.
        """
        env = self.env if env is None else env
        path = self.path(node)
        states, rewards = self.get(path[:1]), []
        for child in path[1:].tolist():
            one = slice(child, child + 1)
            seed = int(self["seeds"][child]) if "seeds" in self._columns else -1
            seeds = None if seed < 0 else seed
            step = env.step_batch(self.actions[one], states, int(self.dt[child]), seeds=seeds)
            states = step.states
            if not np.array_equal(states[0], self.get(child)):
                raise StateError(
                    f"the action of node {child} does not lead from its parent to its state: "
                    "its archived action, dt, seed or parent is wrong, or "
                    f"{env.name} is not exact"
                )
            rewards.append(float(step.rewards[0]))
        return math.fsum(rewards)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the archive to a file, completely or not at all."""
        with self._lock:
            count = len(self)
            columns = {name: [column.values[:count]] for name, column in self._columns.items()}
            archive_file.save(path, self._format, count, {**self._blocks.packed(), **columns})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        env: PlanEnv,
        *,
        directory: str | os.PathLike[str] | None = None,
        level: int = 3,
    ) -> Self:
        """Load an archive from a file, which is mapped into memory and never changed.

        The whole file is read once, to verify its digest; later, only parts in use need memory. An
        array is copied to memory (or to `directory`) when it grows.

        Raises
        ------
        StateFormatError
            The file is not an archive, or it is damaged.
        StateMismatchError
            The rows belong to another environment, version or configuration.
        """
        count, arrays = archive_file.load(path, env.layout.format)
        own = {
            name: (values.dtype, values.shape[1:])
            for name, values in arrays.items()
            if name not in (*_ROWS, *_OWN, _HASHES)
        }
        actions = arrays["actions"].dtype
        archive = cls(env, own, action_dtype=actions, directory=directory, level=level)
        for name, column in archive._columns.items():
            column.adopt(arrays[name])
        archive._blocks.unpack(count, arrays)
        return archive

    def _nodes(self, nodes: ArrayLike) -> NDArray[np.int64]:
        """Return `nodes` as int64; raise `IndexError` if one of them does not exist."""
        indices = np.asarray(nodes)
        if indices.size == 0:
            indices = indices.astype(np.int64)
        if indices.dtype.kind not in "iu" or indices.ndim > 1:
            raise InputError(f"nodes must be a whole number or an array of them, got {nodes!r}")
        wrong = (indices < 0) | (indices >= len(self))
        if wrong.any():
            which = np.atleast_1d(indices)[np.atleast_1d(wrong)][0]
            raise IndexError(f"there is no node {which} in an archive of {len(self)} nodes")
        return indices.astype(np.int64)


def _dtype_and_shape(name: str, given: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Split a column's dtype, such as ``(np.uint8, 88)``, into the dtype and shape of a value."""
    try:
        dtype = np.dtype(given)
    except TypeError as error:
        raise InputError(
            f"column {name!r} needs a dtype, such as float or (numpy.uint8, 88), got {given!r}"
        ) from error
    base, shape = dtype.subdtype or (dtype, ())
    if base.kind not in "biuf":
        raise InputError(
            f"column {name!r} must have a dtype of integers, floats or bools, got {dtype}"
        )
    return base, shape


def _fitted(name: str, values: ArrayLike, like: NDArray[Any], count: int) -> NDArray[Any]:
    """Return `values` as an array ``(count, *shape)`` of the dtype of the column `like`.

    One value stands for all. Floats may be rounded, but not to infinity. Raise `InputError` if the
    dtype cannot hold the values.
    """
    try:
        given = np.asarray(values)
        spread = np.broadcast_to(given, (count, *like.shape[1:]))
    except ValueError as error:
        raise InputError(
            f"{name} must have shape {(count, *like.shape[1:])} or that of one value: {error}"
        ) from error
    if name == "actions" and like.dtype.kind == "f" and given.dtype != like.dtype:
        raise InputError(
            f"actions are {given.dtype}, but the archive has {like.dtype}, so a replay may differ; "
            f"give action_dtype={str(given.dtype)!r} to StateArchive"
        )
    if given.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers of dtype {like.dtype}, got {given.dtype}")
    with np.errstate(all="ignore"):
        result = spread.astype(like.dtype)
    kept = np.isfinite if like.dtype.kind == "f" else np.asarray
    if not np.array_equal(kept(result), kept(spread)):
        raise InputError(f"{name} has values that do not fit its dtype {like.dtype}")
    return result

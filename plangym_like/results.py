"""What calls return: the results of steps and batches, futures of them, and counters."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

# The keys that a `PlanEnv` adds to the infos of its environment.
STEP_COUNTS = ("n_step", "dt")
# Values by key: an array with one value for each row, or one number for all rows.
Columns = Mapping[str, NDArray[Any] | int]

_Result = TypeVar("_Result")


class ResetResult(NamedTuple):
    """The result of ``reset()``: the first state row, observation and info of an episode.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("FrozenLake-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> state.shape == (env.state_nbytes,), obs
    (True, 0)
    """

    state: NDArray[np.uint8]
    obs: Any
    info: dict[str, Any]


class ResetObservation(NamedTuple):
    """The result of ``reset(return_state=False)``.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("FrozenLake-v1")
    >>> obs, info = env.reset(seed=0, return_state=False)
    >>> obs
    0
    """

    obs: Any
    info: dict[str, Any]


class Transition(NamedTuple):
    """The result of ``step`` with the next state; reward and flags are Python scalars.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> start, obs, info = env.reset(seed=0)
    >>> right = env.step(2, start)
    >>> right.obs, right.reward, right.terminated
    (1, 0.0, False)
    >>> env.step(1, right.state).obs  # down from there
    5
    """

    state: NDArray[np.uint8]
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Step(NamedTuple):
    """The result of ``step`` without a state.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> step = env.step(1, dt=3)
    >>> step.reward, step.terminated, step.info
    (3.0, False, {'n_step': 3, 'dt': 3})
    """

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class BatchTransition(NamedTuple):
    """The result of ``step_batch`` with states.

    ``states`` is ``(N, state_nbytes) uint8``. ``obs`` is ``(N, *obs_shape)`` in the space's dtype,
    or, for `Dict` and `Tuple` spaces, a tree of such arrays. Parts without a fixed size, such as
    `Text`, are lists of N objects.
    ``rewards`` is ``(N,) float64``, ``terminateds`` and ``truncateds`` are ``(N,) bool``, and
    ``infos`` is a `BatchInfo` of N rows.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> start, obs, info = env.reset(seed=0)
    >>> first = env.step_batch([1, 2], start)  # down, and right
    >>> first.obs
    array([4, 1])
    >>> second = env.step_batch([1, 1], first.states)  # down from both
    >>> second.obs, second.terminateds
    (array([8, 5]), array([False,  True]))
    """

    states: NDArray[np.uint8]
    obs: Any
    rewards: NDArray[np.float64]
    terminateds: NDArray[np.bool_]
    truncateds: NDArray[np.bool_]
    infos: BatchInfo


class BatchStep(NamedTuple):
    """The result of ``step_batch`` without states; the fields are as in `BatchTransition`.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> start, obs, info = env.reset(seed=0)
    >>> step = env.step_batch([0, 1, 2, 3])  # each from the current state
    >>> step.obs
    array([0, 4, 1, 0])
    """

    obs: Any
    rewards: NDArray[np.float64]
    terminateds: NDArray[np.bool_]
    truncateds: NDArray[np.bool_]
    infos: BatchInfo


class Rollout(NamedTuple):
    """The result of ``rollout_batch``: T steps of N rows.

    ``states`` ``(N, state_nbytes)`` holds the final states, ``observations`` is ``None`` or
    ``(N, T, *obs_shape)``, ``rewards`` is ``(N, T)``, ``terminateds`` and ``truncateds`` are
    ``(N, T) bool``. A row that has ended keeps its final state and flags, and its further rewards
    are 0. ``infos`` is a `BatchInfo` of N rows with ``n_step`` (the total number of frames of each
    row), ``dt``, and the failed rows; with ``legal=True``, also ``actions`` and ``rewards``.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> start, obs, info = env.reset(seed=0)
    >>> rollout = env.rollout_batch([[2, 1, 1], [1, 1, 2]], start)
    >>> rollout.terminateds  # the first plan falls into the hole after two steps
    array([[False,  True,  True],
           [False, False, False]])
    >>> rollout.infos["n_step"]
    array([2, 3])
    """

    states: NDArray[np.uint8]
    observations: Any
    rewards: NDArray[np.float64]
    terminateds: NDArray[np.bool_]
    truncateds: NDArray[np.bool_]
    infos: BatchInfo


class BatchInfo(Sequence[dict[str, Any]]):
    """The infos of a batch, by row or by key; they are built when they are read.

    ``infos[3]`` is the dict of row 3. ``infos["lives"]`` is a column: an array of numbers if every
    row has the key and all its values have the same dtype and shape. Otherwise it is an object
    array, with ``None`` for rows without the key. ``infos.mask("lives")`` marks the rows that have
    the key. Infos that are computed for whole blocks of rows, such as those of MuJoCo's robots, are
    Python numbers in the dict of a row, even if a single step returns NumPy scalars.

    With ``on_error="mask"``, `failed` marks the rows that failed, and `errors` holds their
    exceptions.

    >>> infos = BatchInfo(2, {"n_step": np.array([4, 3])}, [{}, {"won": True}])
    >>> infos[1]
    {'won': True, 'n_step': 3}
    >>> infos["n_step"]
    array([4, 3])
    >>> infos["won"], infos.mask("won")
    (array([None, True], dtype=object), array([False,  True]))
    """

    __slots__ = ("_columns", "_count", "_errors", "_rows")

    def __init__(
        self,
        count: int,
        columns: Columns,
        rows: Sequence[Mapping[str, Any]] | None = None,
        errors: Mapping[int, Exception] | None = None,
    ) -> None:
        self._count = count
        self._columns = columns
        self._rows = rows
        self._errors = dict(errors) if errors else {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.column(key)
        if isinstance(key, slice):
            return [self[index] for index in range(*key.indices(self._count))]
        index = int(key)
        if not -self._count <= index < self._count:
            raise IndexError(f"there is no row {index} in a batch of {self._count}")
        row = dict(self._rows[index]) if self._rows is not None else {}
        for name, column in self._columns.items():
            value = column if isinstance(column, int) else column[index]
            row[name] = value if isinstance(value, int) or value.ndim else value.item()
        return row

    def __contains__(self, item: object) -> bool:
        """Return whether the info of any row has the key `item`, or equals the dict `item`."""
        return item in self.keys() if isinstance(item, str) else super().__contains__(item)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(self._count))

    def __repr__(self) -> str:
        return f"BatchInfo({self._count} rows, keys {sorted(self.keys())})"

    @property
    def errors(self) -> dict[int, Exception]:
        """The exceptions of failed rows, by row index; empty unless ``on_error="mask"``."""
        return self._errors

    @property
    def has_objects(self) -> bool:
        """Whether rows may have infos in addition to the columns that all rows share."""
        return self._rows is not None

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which rows failed, ``(N,) bool``."""
        failed = np.zeros(self._count, bool)
        failed[list(self._errors)] = True
        return failed

    def env_infos(self) -> list[dict[str, Any]]:
        """Return each row's info as the environment gave it, without the keys in `STEP_COUNTS`."""
        rows = [dict(row) for row in self._rows or ({},) * self._count]
        for name in self._columns:
            if name not in STEP_COUNTS:
                column = self.column(name)
                values = column.tolist() if column.ndim == 1 else column
                for row, value in zip(rows, values, strict=True):
                    row[name] = value
        return rows

    def keys(self) -> set[str]:
        """Return every key that any row has."""
        found = set(self._columns)
        for row in self._rows or ():
            found.update(row)
        return found

    def column(self, key: str) -> NDArray[Any]:
        """Return the values of `key` over all rows.

        Raises
        ------
        KeyError
            No row has `key`.
        """
        if key in self._columns:
            column = self._columns[key]
            return np.full(self._count, column) if isinstance(column, int) else column
        mask = self.mask(key)
        if not mask.any():
            raise KeyError(key)
        assert self._rows is not None
        values = [row.get(key) for row in self._rows]
        if mask.all():
            with contextlib.suppress(Exception):  # values that do not form an array stay objects
                arrays = [np.asarray(value) for value in values]
                kinds = {(array.dtype, array.shape) for array in arrays}
                # NumPy removes null characters at the end of text.
                if len(kinds) == 1 and arrays[0].dtype.kind not in "OSU":
                    return np.stack(arrays)
        objects = np.empty(self._count, object)
        for index, value in enumerate(values):
            objects[index] = value
        return objects

    def mask(self, key: str) -> NDArray[np.bool_]:
        """Return which rows have `key`, ``(N,) bool``."""
        if key in self._columns:
            return np.ones(self._count, bool)
        if self._rows is None:
            return np.zeros(self._count, bool)
        return np.array([key in row for row in self._rows], bool)


@dataclass(slots=True)
class Stats:
    """Counters of batches; in `rows`, a row that was stepped several times counts once.

    Attributes
    ----------
    batches, rows : int
        Batches and rows that were submitted.
    rows_audited : int
        Rows that were stepped a second time and compared (see `plangym_like.audit`).
    rows_sent : int
        Rows that child processes stepped, including audited rows.
    deaths, restarts, timeouts : int
        Workers that died or were killed after an interrupt, workers that were restarted, and rows
        that exceeded ``step_timeout``.
    rows_retried : int
        Rows that were put back because their worker died or hung.
    bytes_shared : int
        Bytes of shared memory for batches that were sent to workers: inputs and results.
    seconds_here, seconds_waiting : float
        The time that this process spent stepping rows, and waiting for child processes.
    seconds_on_workers : float
        The time that all child processes together spent stepping rows.
    """

    batches: int = 0
    rows: int = 0
    rows_audited: int = 0
    rows_sent: int = 0
    deaths: int = 0
    restarts: int = 0
    timeouts: int = 0
    rows_retried: int = 0
    bytes_shared: int = 0
    seconds_here: float = 0.0
    seconds_on_workers: float = 0.0
    seconds_waiting: float = 0.0


@dataclass(slots=True)
class RayStats(Stats):
    """The counters of `Stats` for the workers of all machines, and counters of the cluster.

    Attributes
    ----------
    chunks : int
        How many times rows were sent to an actor.
    actors, nodes : int
        Actors that are ready now, and nodes of the cluster at the last query. Workers on this
        machine need no actor.
    actors_lost, nodes_lost, nodes_joined : int
        Actors and nodes that were lost, and nodes that joined, since the environment was made.
    bytes_sent, bytes_received : int
        The sizes of the arrays sent to actors, and of the results received. A state that all rows
        of a batch share counts once.
    """

    chunks: int = 0
    actors: int = 0
    nodes: int = 0
    actors_lost: int = 0
    nodes_lost: int = 0
    nodes_joined: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Pending(Protocol):
    """A running operation: a batch of rows, or a request to another process."""

    @property
    def what(self) -> str:
        """The name of the operation in error messages."""

    @property
    def settled(self) -> bool:
        """Whether the operation is known to be over, without looking again."""

    def settle(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds, and return whether the operation is over."""

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return ``(result, None)`` or ``(None, error)``; the operation must be over."""

    def cancel(self, error: BaseException) -> bool:
        """Stop the operation, so that it ends with `error`; return False if that is impossible."""


class Future(concurrent.futures.Future[_Result]):
    """The result of a batch or request that may still be running.

    This is a `concurrent.futures.Future`, so `concurrent.futures.wait`, ``as_completed`` and
    `asyncio.wrap_future` accept it. Calling it is the same as calling `result`.

    A batch is stepped while a thread waits for one of its futures. If only callbacks wait for it, a
    background thread does so. A batch is cancelled when no reference to its future is left. For a
    request to a process, the reply is then discarded.

    Parameters
    ----------
    pending : Pending or None
        The running operation; ``None`` if the caller sets the result itself.
    owner : object
        An object to keep alive until the operation is over.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> future = env.step_batch([0, 1, 1], state, blocking=False)
    >>> future.result().rewards
    array([1., 1., 1.])
    >>> future.done(), future.exception()
    (True, None)
    """

    def __init__(self, pending: Pending | None = None, owner: Any = None) -> None:
        self._pending, self._owner = pending, owner
        self._check: Callable[[_Result], None] | None = None
        self._refusal: Exception | None = None
        self._thread: threading.Thread | None = None
        super().__init__()

    @classmethod
    def of(cls, run: Callable[[], _Result]) -> Self:
        """Call `run`, and return a finished future with its result or its exception.

        >>> future = Future.of(lambda: 1 / 0)
        >>> future.done(), future.exception()
        (True, ZeroDivisionError('division by zero'))
        """
        future = cls()
        try:
            future.set_result(run())
        except Exception as error:
            future.set_exception(error)
        try:
            return future
        finally:
            # The error's traceback refers to this frame, which must not refer to the error.
            del future

    def check(self, check: Callable[[_Result], None]) -> None:
        """Register `check`, which is called with the result before the result is first returned.

        If `check` raises, its exception replaces the result.
        """
        self._check = check

    def result(self, timeout: float | None = None) -> _Result:
        """Wait for the result and return it; can be called more than once.

        Raises
        ------
        TimeoutError
            The operation takes longer than `timeout` seconds. It continues, and `result` may be
            called again.
        CancelledError
            The operation was cancelled.
        WorkerDiedError, ClosedError
            The process that executed the operation has died or was closed.
        BaseException
            Any exception that the operation raised, with its own type.
        """
        self._wait(timeout)
        try:
            if self._refusal is not None:
                raise self._refusal
            return super().result()
        finally:
            # The traceback refers to this frame, which must not refer to the object that holds the
            # error.
            del self

    __call__ = result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the exception, or ``None`` if there was no exception; see `result`.

        Raises
        ------
        TimeoutError, CancelledError
            As in `result`.
        """
        self._wait(timeout)
        return super().exception() or self._refusal

    def done(self) -> bool:
        """Return whether the operation is over, without waiting.

        For a batch, this also sends remaining rows to free workers.
        """
        return super().done() or self._settle(0.0)

    @property
    def settled(self) -> bool:
        """Whether the operation is known to be over, without looking again."""
        return self._pending is None or self._pending.settled

    def cancel(self) -> bool:
        """Cancel a batch; return False if the batch was already over.

        For a request to a process, do nothing and return False.
        """
        pending = self._pending
        if pending is not None and not self.done():
            if pending.cancel(CancelledError(f"{pending.what} was cancelled")):
                super().cancel()
                self.set_running_or_notify_cancel()
                self._pending = self._owner = None
        return self.cancelled()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(self)`` when the operation is over, in a thread that waits for it."""
        super().add_done_callback(fn)
        self._wait_in_background()

    # `concurrent.futures.wait` and ``as_completed`` append their own waiters to this list.
    @property
    def _waiters(self) -> list[Any]:
        self._wait_in_background()
        return self._others

    @_waiters.setter
    def _waiters(self, others: list[Any]) -> None:
        self._others = others

    def _wait_in_background(self) -> None:
        if self._pending is not None and self._thread is None and not super().done():
            self._thread = threading.Thread(target=self._settle, args=(None,), daemon=True)
            self._thread.start()

    def _settle(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds; return whether the operation is over, and its result set.

        The result is not checked yet.
        """
        pending = self._pending
        if pending is not None:
            if not pending.settle(timeout):
                return False
            result, error = pending.outcome()
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # set by another thread
                if error is None:
                    self.set_result(result)
                elif not super().done():
                    self.set_exception(error)
            self._pending = self._owner = None
        return super().done()

    def _wait(self, timeout: float | None) -> None:
        """Wait for the result, and check it."""
        if not super().done() and self._pending is not None and not self._settle(timeout):
            raise TimeoutError(
                f"{self._pending.what} is not done within {timeout} s; it continues, so result() "
                "may be called again"
            )
        if self._check is None or super().cancelled() or super().exception() is not None:
            return
        try:
            self._check(super().result())
        except Exception as error:
            self._refusal = error.with_traceback(None)
        # Set only now, so that every result is checked, even after a Ctrl-C.
        self._check = None


# The name for futures of batches.
BatchFuture = Future

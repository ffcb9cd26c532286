"""`Layout`: checks the batches of one environment, and defines where their arrays are."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Leaf, Rows
from plangym_like.batch.ownership import owned
from plangym_like.errors import InputError
from plangym_like.results import BatchInfo, BatchStep, BatchTransition, Rollout
from plangym_like.states.rows import Row, StateFormat
from plangym_like.support.memory_limits import CHECKED_NBYTES, refuse_too_much

# The parts of a batch's memory. ``inputs`` is freed when the batch is done; the others are freed
# one by one, when the caller drops the arrays in them.
REGIONS = ("inputs", "states", "observations", "outcomes")
# What to do with finite actions beyond the bounds of a `Box`.
OUT_OF_BOUNDS = ("pass", "raise", "clip")
# Arrays begin at multiples of so many bytes.
_ALIGN = 64
_NOTHING = np.empty(0, np.uint8)


class GameFacts(NamedTuple):
    """What is known of the rules of a game.

    These are the highest return of a player from any position, whether chance is drawn inside of
    steps, and the number of players.
    """

    highest: float
    has_chance: bool
    players: int


class Shape(NamedTuple):
    """The shape of a batch: rows, horizon, and which arrays it has.

    Attributes
    ----------
    rows, horizon : int
    state_rows : int
        The number of input states; 1 if all rows share one.
    dt : int
        The `dt` of all rows; 0 if each row has its own.
    seeded, wants_states, wants_observations, last_infos, legal : bool
        Whether rows have seeds; which results are wanted (see `Inputs` for the last two).
    action : str
        The dtype of the actions as a string, "" if they are objects.
    """

    rows: int
    horizon: int
    state_rows: int
    dt: int
    seeded: bool
    wants_states: bool
    wants_observations: bool
    action: str
    last_infos: bool = False
    legal: bool = False


def shape_of(inputs: Inputs, *, states: bool, observations: bool) -> Shape:
    """Return the shape of a batch with these inputs and results."""
    return Shape(
        inputs.count,
        inputs.horizon,
        len(inputs.states),
        inputs.dt if isinstance(inputs.dt, int) else 0,
        inputs.seeds is not None,
        states,
        observations,
        "" if isinstance(inputs.actions, list) else inputs.actions.dtype.str,
        inputs.last_infos,
        inputs.legal,
    )


class Layout:
    """Checks the batches of one environment, and defines where their arrays are in memory.

    All processes of the environment have the same layout.

    Attributes
    ----------
    observation_space, action_space : gymnasium.Space
    format : StateFormat
    columns : dict of str to (shape, dtype)
        Info keys that every step returns.
    plain_infos : bool
        Whether rows may have other info keys.
    plays_out : bool
        As in `Simulator`.
    game : GameFacts, optional
        As in `Simulator`.
    out_of_bounds : {"pass", "raise", "clip"}
        How to treat actions beyond the bounds of a `Box`.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        state_format: StateFormat,
        columns: Mapping[str, Leaf],
        *,
        plain_infos: bool,
        plays_out: bool = False,
        game: GameFacts | None = None,
        out_of_bounds: str = "pass",
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.format = state_format
        self.columns = dict(columns)
        self.plain_infos, self.plays_out, self.game = plain_infos, plays_out, game
        self.out_of_bounds = out_of_bounds
        self.array_actions = isinstance(action_space, spaces.LEAVES)
        # The range and the dtype of `Discrete` actions; other spaces have an empty range.
        self._choices = range(0)
        self._choice: Any = int
        # The dtype of `Box` actions for which a quick check is enough; ``None`` if there are none.
        is_box = isinstance(action_space, Box) and action_space.dtype.kind == "f"
        usual = is_box and out_of_bounds == "pass"
        self._box_dtype = np.dtype(action_space.dtype) if usual else None
        self._box_shape = action_space.shape
        if isinstance(action_space, Discrete):
            start = int(action_space.start)
            self._choices = range(start, start + int(action_space.n))
            self._choice = np.dtype(action_space.dtype).type

    def check(
        self,
        actions: Any,
        states: Any,
        dt: Any,
        seeds: Any,
        *,
        horizon: bool = False,
        legal: bool = False,
    ) -> Inputs:
        """Check the arguments of a batch before it is stepped, and return its inputs.

        `horizon` is true for rollouts, whose actions have an axis of length T; `legal` is that of
        their `Inputs`. Checksums take most of the time, and are left to `verify`.

        Raises
        ------
        InputError, StateError
            See `plangym_like.errors`; the message names the row.
        """
        batch = spaces.as_actions(
            self.action_space, actions, 2 if horizon else 1, self.out_of_bounds
        )
        if getattr(states, "shape", None) == (0,) or (type(states) in (list, tuple) and not states):
            states = np.empty((0, self.format.state_nbytes), np.uint8)
        rows = self.format.check(states, sums=False)
        verified = not self.format.checksum
        steps = check_dt(dt)
        if legal and np.any(np.not_equal(steps, 1)):
            raise InputError("dt must be 1 if actions that are not legal are replaced")
        numbers = None if seeds is None else _whole_numbers(seeds, 0)
        if numbers is not None:
            numbers = np.atleast_1d(numbers).astype(np.uint64)
        elif seeds is not None:
            raise InputError(f"seeds must be whole numbers of at least 0, got {seeds!r}")
        if len(batch) == len(rows) and isinstance(steps, int) and numbers is None and not horizon:
            return Inputs(len(batch), 0, batch, rows, steps, None, verified)
        lengths = {"actions": len(batch), "states": len(rows)}
        if not isinstance(steps, int):
            lengths["dt"] = len(steps)
        if numbers is not None:
            lengths["seeds"] = len(numbers)
        count = _common_length(lengths)
        if len(batch) != count:
            batch = batch * count if isinstance(batch, list) else _spread(batch, count)
        if not isinstance(steps, int) and len(steps) != count:
            steps = int(steps[0])
        if numbers is not None and len(numbers) != count:
            numbers = _spread(numbers, count)
        length = _horizon(batch, count) if horizon else 0
        return Inputs(count, length, batch, rows, steps, numbers, verified, legal=legal)

    def check_action(self, action: Any) -> Any:
        """Check one action, and return a copy of it.

        Raises
        ------
        ActionError
            The action is not in the action space.
        """
        # Whole numbers in a `Discrete` space, and finite arrays of the shape and dtype of a `Box`,
        # need only these quick tests.
        kind = type(action)
        if kind is np.ndarray:
            if action.dtype is self._box_dtype and action.shape == self._box_shape:
                # A sum is finite only if every number is; testing each number takes longer.
                if math.isfinite(sum(action.ravel().tolist())):
                    return action.copy()
        elif (kind is int or kind is self._choice) and int(action) in self._choices:
            return self._choice(action)
        return owned(spaces.as_actions(self.action_space, action, 0, self.out_of_bounds))

    def verify(self, inputs: Inputs, start: int = 0, stop: int | None = None) -> None:
        """Verify the checksums of ``inputs.states[start:stop]``, unless ``inputs.verified``.

        ``inputs.verified`` becomes true when those of all states are verified.

        Raises
        ------
        StateFormatError
            A checksum is wrong.
        """
        if not inputs.verified:
            self.format.verify(inputs.states[start:stop], start)
            inputs.verified = not start and stop is None

    # The arrays of a batch

    @cached_property
    def obs_leaves(self) -> list[Leaf]:
        """The shape and dtype of each array in an observation."""
        return spaces.leaves(self.observation_space)

    @cached_property
    def _objects(self) -> list[int]:
        """The indexes of `obs_leaves` that are arrays of objects."""
        return [at for at, (_, kind) in enumerate(self.obs_leaves) if kind.hasobject]

    @cached_property
    def signature(self) -> int:
        """A number that is equal for layouts whose batches have the same form and meaning."""
        leaves = self.obs_leaves, spaces.leaves(self.action_space)
        parts = self.format.fingerprint, self.columns, self.plain_infos, leaves
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def allocate(self, inputs: Inputs, *, states: bool = True, observations: bool = True) -> Rows:
        """Return `Rows` with `inputs` and new arrays for the results.

        Raises
        ------
        MemoryError
            The arrays would not fit into memory.
        """
        shape = shape_of(inputs, states=states, observations=observations)
        nbytes = _plan(self, shape).results_nbytes
        if nbytes >= CHECKED_NBYTES:
            refuse_too_much(nbytes)
        return self.place(shape, None, inputs=inputs)

    def region_nbytes(self, shape: Shape) -> dict[str, int]:
        """Return how many bytes each region of a batch needs, by name."""
        return _plan(self, shape).sizes

    def place(
        self,
        shape: Shape,
        regions: Mapping[str, Row] | None,
        actions: Any = None,
        *,
        inputs: Inputs | None = None,
    ) -> Rows:
        """Return the batch whose arrays are in `regions`; empty regions may be left out.

        By default, its inputs are in ``regions["inputs"]``, except `actions` that are objects.
        All processes place the arrays of a batch in the same way. If `regions` is ``None``, the
        results are new arrays. Arrays of objects are always new.
        """
        plan = _plan(self, shape)
        found: dict[Any, Any] = {
            name: np.empty(inner, dtype)
            if regions is None or dtype.hasobject
            else np.ndarray(inner, dtype, regions.get(region, _NOTHING), at)
            for region, name, inner, dtype, at in (plan.arrays if inputs is None else plan.results)
        }
        if inputs is None:
            inputs = Inputs(
                shape.rows,
                shape.horizon,
                found.get("actions", actions),
                found["given"],
                shape.dt or found["dt"],
                found.get("seeds"),
                legal=shape.legal,
            )
        observations: Any = None
        objects: Sequence[NDArray[Any]] = ()
        if shape.wants_observations:
            leaves = [found[number] for number in range(len(self.obs_leaves))]
            observations = spaces.build(self.observation_space, iter(leaves))
            objects = [leaves[number] for number in self._objects] if self._objects else ()
        names = _columns(self, shape) if shape.horizon else self.columns
        columns = {name: found["info", name] for name in names}
        return Rows(
            inputs,
            found.get("states"),
            observations,
            found["rewards"],
            found["terminateds"],
            found["truncateds"],
            found["n_step"],
            columns,
            {} if self.plain_infos and (shape.last_infos or not shape.horizon) else None,
            objects=objects,
            marks=found.get("marks"),
        )

    def result(
        self, rows: Rows, errors: Mapping[int, Exception] | None = None
    ) -> BatchTransition | BatchStep | Rollout:
        """Return the result of the finished `rows`; `errors` holds the errors of failed rows."""
        if errors:
            self._blank(rows, list(errors))
        inputs, observations = rows.inputs, rows.observations
        if rows.objects:
            observations = spaces.with_lists(self.observation_space, observations)
        columns = {**rows.columns, "n_step": rows.n_step, "dt": inputs.dt}
        plain: Sequence[Mapping[str, Any]] | None = None
        if rows.infos:
            plain = [rows.infos.get(index, {}) for index in range(inputs.count)]
        infos = BatchInfo(inputs.count, columns, plain, errors)
        parts = observations, rows.rewards, rows.terminateds, rows.truncateds, infos
        if rows.next_states is None:
            return BatchStep(*parts)
        if inputs.horizon:
            return Rollout(rows.next_states, *parts)
        return BatchTransition(rows.next_states, *parts)

    def _blank(self, rows: Rows, failed: list[int]) -> None:
        """Fill failed rows: invalid states, NaN rewards, false flags, else zeros or ``None``."""
        rows.rewards[failed] = np.nan
        arrays = [rows.terminateds, rows.truncateds, rows.n_step, *rows.columns.values()]
        if rows.next_states is not None:
            arrays.append(rows.next_states)
        if rows.observations is not None:
            arrays += spaces.flatten(self.observation_space, rows.observations)
        for array in arrays:
            array[failed] = None if array.dtype.hasobject else 0
        if rows.infos is not None:
            for index in failed:
                rows.infos.pop(index, None)

    def put_result(self, rows: Rows, at: NDArray[np.intp], result: Any) -> int:
        """Write `result`, the result of some rows of a batch, into the rows `at` of `rows`.

        This is the inverse of `result`. Return the number of bytes of all arrays of `result`.
        """
        infos, horizon = result.infos, rows.inputs.horizon
        pairs = [(column, infos[name]) for name, column in rows.columns.items()]
        pairs += [
            (rows.rewards, result.rewards),
            (rows.terminateds, result.terminateds),
            (rows.truncateds, result.truncateds),
            (rows.n_step, infos["n_step"]),
        ]
        if rows.next_states is not None:
            pairs.append((rows.next_states, result.states))
        if rows.observations is not None:
            found = result.observations if horizon else result.obs
            for array, part in zip(
                spaces.flatten(self.observation_space, rows.observations),
                spaces.flatten(self.observation_space, found),
                strict=True,
            ):
                if isinstance(part, list):  # NumPy would take sequences in it for axes
                    flat = chain.from_iterable(part) if horizon else part
                    part = np.fromiter(flat, object).reshape(len(at), *array.shape[1:])
                pairs.append((array, part))
        for array, part in pairs:
            array[at] = part
        if rows.infos is not None and infos.has_objects and not horizon:
            shared = {*self.columns, "n_step", "dt"}
            for row, info in zip(at.tolist(), infos, strict=True):
                if plain := {key: info[key] for key in info if key not in shared}:
                    rows.infos[row] = plain
        return sum(part.nbytes for _, part in pairs)


class _Plan(NamedTuple):
    """Where the arrays of batches of one shape are.

    ``sizes`` holds the bytes of each region. ``arrays`` holds region, name, shape, dtype and start
    of each array; ``results`` those that are not inputs, which need ``results_nbytes``.
    """

    sizes: dict[str, int]
    arrays: list[tuple[str, Any, tuple[int, ...], np.dtype[Any], int]]
    results: list[tuple[str, Any, tuple[int, ...], np.dtype[Any], int]]
    results_nbytes: int


@lru_cache(maxsize=64)
def _plan(layout: Layout, shape: Shape) -> _Plan:
    sizes = dict.fromkeys(REGIONS, 0)
    arrays: list[Any] = []
    for region, name, inner, dtype in _arrays(layout, shape):
        arrays.append((region, name, inner, dtype, sizes[region]))
        sizes[region] += -(-_nbytes(inner, dtype) // _ALIGN) * _ALIGN
    results = [array for array in arrays if array[0] != "inputs"]
    return _Plan(sizes, arrays, results, sum(sizes.values()) - sizes["inputs"])


def _nbytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return 0 if dtype.hasobject else math.prod(shape) * dtype.itemsize


def _arrays(
    layout: Layout, shape: Shape
) -> Iterator[tuple[str, Any, tuple[int, ...], np.dtype[Any]]]:
    """Yield region, name, shape and dtype of each array of a batch.

    The name of an array of observations is its number, and that of a column ``("info", key)``.
    """
    rows, width = (shape.rows,), layout.format.state_nbytes
    lead = (*rows, shape.horizon) if shape.horizon else rows
    byte, number, flag = np.dtype(np.uint8), np.dtype(np.int64), np.dtype(bool)
    yield "inputs", "given", (shape.state_rows, width), byte
    if not shape.dt:
        yield "inputs", "dt", rows, number
    if shape.seeded:
        yield "inputs", "seeds", rows, np.dtype(np.uint64)
    yield "inputs", "marks", rows, np.dtype(np.int32)
    if layout.array_actions:
        assert layout.action_space.shape is not None
        yield "inputs", "actions", (*lead, *layout.action_space.shape), np.dtype(shape.action)
    if shape.wants_states:
        yield "states", "states", (*rows, width), byte
    if shape.wants_observations:
        for index, (inner, dtype) in enumerate(layout.obs_leaves):
            yield "observations", index, (*lead, *inner), dtype
    yield "outcomes", "rewards", lead, np.dtype(np.float64)
    yield "outcomes", "terminateds", lead, flag
    yield "outcomes", "truncateds", lead, flag
    yield "outcomes", "n_step", rows, number
    for key, (inner, dtype) in _columns(layout, shape).items():
        yield "outcomes", ("info", key), (*rows, *inner), dtype


def _columns(layout: Layout, shape: Shape) -> Mapping[str, Leaf]:
    """Return the shape and dtype, for each row, of the infos that are arrays."""
    if not shape.horizon:
        return layout.columns
    if not shape.legal:
        return {}
    inner, dtype = layout.columns.get("rewards", ((2,), np.dtype(np.float64)))
    return {
        "actions": ((shape.horizon,), np.dtype(np.int64)),
        "rewards": ((shape.horizon, *inner), dtype),
    }


def _common_length(lengths: dict[str, int]) -> int:
    several = {count for count in lengths.values() if count != 1}
    if len(several) > 1:
        told = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise InputError(f"actions, states, dt and seeds must have length N or 1: got {told}")
    return several.pop() if several else 1


def _whole_numbers(given: Any, least: int) -> NDArray[Any] | None:
    """Return `given` as an array ``()`` or ``(N,)``; ``None`` unless all are at least `least`."""
    with contextlib.suppress(ValueError):
        numbers = np.asarray(given)
        if numbers.shape == (0,):
            return np.empty(0, np.int64)
        if numbers.ndim < 2 and numbers.dtype.kind in "iu" and bool((numbers >= least).all()):
            return numbers
    return None


def check_dt(dt: Any) -> int | NDArray[np.int64]:
    """Return `dt` as an int or ``(N,) int64``.

    Raises
    ------
    InputError
        `dt` is neither a number nor a flat sequence of numbers, or one of its values is not a whole
        number of at least 1.
    """
    if type(dt) is int and 1 <= dt < 2**63:
        return dt
    steps = _whole_numbers(dt, 1)
    if steps is None or (steps > np.iinfo(np.int64).max).any():
        raise InputError(
            f"dt must be a whole number of at least 1, or one for each row, got {dt!r}"
        )
    return int(steps) if steps.ndim == 0 else steps.astype(np.int64)


def check_one_dt(dt: Any) -> int:
    """Return `dt` as an int; raise `InputError` unless it is one whole number of at least 1."""
    if type(dt) is int and 0 < dt < 2**63:
        return dt
    steps = check_dt(dt)
    if not isinstance(steps, int):
        raise InputError(f"step takes one dt, not one for each row; got {dt!r}")
    return steps


def _spread(array: NDArray[Any], count: int) -> NDArray[Any]:
    return np.broadcast_to(array[0], (count, *array.shape[1:]))


def _horizon(batch: Any, count: int) -> int:
    if isinstance(batch, list):
        lengths = {len(row) for row in batch}
        if len(lengths) > 1:
            told = f"{min(lengths)} and {max(lengths)}"
            raise InputError(
                f"all rows of a rollout must have the same number of actions, got {told}"
            )
        length = max(lengths, default=0)
    else:
        length = batch.shape[1]
    if count and length < 1:
        raise InputError("a rollout needs actions of shape (N, T, ...) with T at least 1")
    return max(length, 1)

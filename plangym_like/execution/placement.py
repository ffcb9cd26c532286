"""The positions of a batch's arrays in shared memory, which caller and workers both compute.

A batch has four regions, each in its own block. ``inputs`` is freed when the batch is done;
``states``, ``observations`` and ``outcomes`` are freed one by one, when the caller drops them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Leaf, Rows
from plangym_like.batch.layout import Layout
from plangym_like.errors import InputError

REGIONS = ("inputs", "states", "observations", "outcomes")
_ALIGN = 64
Memory = NDArray[np.uint8]
# Attributes that must be equal in all layouts -> their names in the error message.
_SHARED = {
    "observation_space": "observation space",
    "action_space": "action space",
    "format": "meaning of states",
    "columns": "set of info columns",
    "plain_infos": "presence of other infos",
    "out_of_bounds": "option out_of_bounds",
}


class Shape(NamedTuple):
    """The shape of a batch: rows, horizon, and which arrays it has.

    Attributes
    ----------
    rows, horizon : int
    state_rows : int
        The number of input states; 1 if all rows share one.
    dt : int
        The `dt` of all rows; 0 if each row has its own.
    seeded, wants_states, wants_observations, last_infos : bool
        Whether rows have seeds; which results are wanted (see `Inputs` for `last_infos`).
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

    @classmethod
    def of(cls, inputs: Inputs, *, states: bool, observations: bool) -> Shape:
        """Return the shape of a batch with these inputs."""
        return cls(
            inputs.count,
            inputs.horizon,
            len(inputs.states),
            inputs.dt if isinstance(inputs.dt, int) else 0,
            inputs.seeds is not None,
            states,
            observations,
            "" if isinstance(inputs.actions, list) else inputs.actions.dtype.str,
            inputs.last_infos,
        )


def common_layout(layouts: Sequence[Layout]) -> Layout:
    """Return the layout that all `layouts` share; raise `InputError` if they differ."""
    first = layouts[0]
    for index, layout in enumerate(layouts[1:], 1):
        for name, what in _SHARED.items():
            one, other = getattr(first, name), getattr(layout, name)
            if one != other:
                if name == "format":
                    one, other = one.fingerprint_fields, other.fingerprint_fields
                raise InputError(
                    f"the environments of a BatchEnv must be equal, but the {what} of env 0 is "
                    f"{one} and that of env {index} is {other}"
                )
    return first


@lru_cache(maxsize=8)
def signature(layout: Layout) -> int:
    """Return a number that is equal for layouts whose batches have the same form and meaning."""
    actions = spaces.leaves(layout.action_space)
    arrays = [*(layout.obs_leaves or ()), *layout.columns.values(), *(actions or ())]
    told = [(shape, dtype.str) for shape, dtype in arrays]
    parts = layout.format.fingerprint, list(layout.columns), layout.plain_infos, told
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@lru_cache(maxsize=32)
def region_nbytes(layout: Layout, shape: Shape) -> dict[str, int]:
    """Return how many bytes each region of a batch needs, by name."""
    totals = {}
    for region in REGIONS:
        arrays = _arrays(layout, shape, region)
        totals[region] = sum(_rounded(_nbytes(*array)) for array in arrays)
    return totals


def place(layout: Layout, shape: Shape, regions: dict[str, Memory], actions: Any = None) -> Rows:
    """Return the batch whose arrays are in `regions`; empty regions may be left out.

    `actions` is needed if actions are objects, not an array.
    """
    nothing = np.empty(0, np.uint8)
    found = {
        region: list(_carve(regions.get(region, nothing), _arrays(layout, shape, region)))
        for region in REGIONS
    }
    given = iter(found["inputs"])
    states = next(given)
    dt = shape.dt or next(given)
    seeds = next(given) if shape.seeded else None
    marks = next(given)
    if layout.array_actions:
        actions = next(given)
    inputs = Inputs(shape.rows, shape.horizon, actions, states, dt, seeds)
    observations: Any = None
    if shape.wants_observations:
        if layout.obs_leaves is None:
            observations = [None] * (shape.rows * max(1, shape.horizon))
        else:
            observations = spaces.build(layout.observation_space, iter(found["observations"]))
    rewards, terminateds, truncateds, n_step, *columns = found["outcomes"]
    names = () if shape.horizon else layout.columns
    return Rows(
        inputs,
        found["states"][0] if shape.wants_states else None,
        observations,
        rewards,
        terminateds,
        truncateds,
        n_step,
        dict(zip(names, columns, strict=True)),
        {} if layout.plain_infos and (shape.last_infos or not shape.horizon) else None,
        marks=marks,
    )


@lru_cache(maxsize=128)
def _arrays(layout: Layout, shape: Shape, region: str) -> list[Leaf]:
    lead = (shape.rows, shape.horizon) if shape.horizon else (shape.rows,)
    number = np.dtype(np.int64)
    width = layout.format.state_nbytes
    if region == "inputs":
        arrays: list[Leaf] = [((shape.state_rows, width), np.dtype(np.uint8))]
        if not shape.dt:
            arrays.append(((shape.rows,), number))
        if shape.seeded:
            arrays.append(((shape.rows,), np.dtype(np.uint64)))
        arrays.append(((shape.rows,), np.dtype(np.int32)))
        if layout.array_actions:
            assert layout.action_space.shape is not None
            arrays.append(((*lead, *layout.action_space.shape), np.dtype(shape.action)))
        return arrays
    if region == "states":
        return [((shape.rows, width), np.dtype(np.uint8))] if shape.wants_states else []
    if region == "observations":
        if not shape.wants_observations:
            return []
        return [((*lead, *inner), dtype) for inner, dtype in layout.obs_leaves or ()]
    flag = np.dtype(bool)
    columns = {} if shape.horizon else layout.columns
    return [
        (lead, np.dtype(np.float64)),
        (lead, flag),
        (lead, flag),
        ((shape.rows,), number),
        *(((shape.rows, *inner), dtype) for inner, dtype in columns.values()),
    ]


def _carve(memory: Memory, arrays: list[Leaf]) -> Iterator[NDArray[Any]]:
    start = 0
    for shape, dtype in arrays:
        yield np.ndarray(shape, dtype, memory, start)
        start += _rounded(_nbytes(shape, dtype))


def _nbytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN

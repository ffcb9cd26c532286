"""Operations on the data of many simulated frames.

The last axes of an array hold the data of one frame. The axes before them, written ``...``, are
rows and frames; operations keep these axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def length_of(vectors: Array) -> Array:
    """Return the norm of each vector; as in ``np.linalg.norm``, BLAS computes the dot product."""
    lengths: Array = np.sqrt(np.vecdot(vectors, vectors))
    return lengths


def total_of(values: Array, axes: int = 1) -> Array:
    """Flatten the last `axes` axes of `values`, and return the sum over them."""
    lead = values.shape[: values.ndim - axes]
    runs = values if axes == 1 else np.ascontiguousarray(values).reshape(*lead, -1)
    sums: Array = np.sum(runs, axis=-1)
    return sums


def put_parts(out: Array, *parts: Array) -> None:
    """Write `parts`, each ``(..., k)``, one after the other into the last axis of `out`."""
    at = 0
    for part in parts:
        size = part.shape[-1]
        out[..., at : at + size] = part
        at += size


def rows_of(matrices: Array) -> Array:
    """Reshape `matrices` from ``(..., m, k)`` to ``(..., m * k)``."""
    return matrices.reshape(*matrices.shape[:-2], -1)


def moved(place: Array, speed: Array) -> dict[str, Array]:
    """Return the infos of a robot that is at `place` and moves at `speed` in a plane.

    `place` and `speed` are ``(..., 2)``.
    """
    return {
        "x_position": place[..., 0],
        "y_position": place[..., 1],
        "distance_from_origin": length_of(place),
        "x_velocity": speed[..., 0],
        "y_velocity": speed[..., 1],
    }

"""A tree of observations with every kind of container and leaf."""

from typing import Any, NamedTuple

import numpy as np


class Pair(NamedTuple):
    left: Any
    right: Any


TREE = {
    "image": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "both": (np.float64(0.25), [np.int16(3), True]),
    "pair": Pair(np.zeros(2, np.float16), None),
}

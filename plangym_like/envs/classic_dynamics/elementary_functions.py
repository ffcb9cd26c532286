"""Check that NumPy's elementary functions give the same results for arrays and single numbers.

The vectorised dynamics depend on this. It may not hold for every processor and version of NumPy.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np


@cache
def elementary_functions_agree() -> bool:
    """Return whether sine, cosine and square are the same for arrays as for single numbers."""
    numbers = np.random.Generator(np.random.PCG64(5)).normal(0, 3, 4096)
    pairs = (
        (np.cos(numbers), [math.cos(x) for x in numbers.tolist()]),
        (np.cos(numbers), [np.cos(x) for x in numbers]),
        (np.sin(numbers), [math.sin(x) for x in numbers.tolist()]),
        (np.sin(numbers), [np.sin(x) for x in numbers]),
        (np.float_power(numbers, 2.0), [x**2 for x in numbers]),
    )
    return all(array.tolist() == singles for array, singles in pairs)

"""`outcome_keys`: numbers that distinguish the outcomes of random steps."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from plangym_like.planners.search_options import digests, make_key
from plangym_like.transitions import BatchTransition


def outcome_keys(step: BatchTransition) -> NDArray[np.int64]:
    """Return a number for each row, ``(N,)``, that identifies its observation, reward and flags.

    The state is left out, because it holds the random generator.
    """
    observed = digests(make_key("obs")(step.obs, step.infos, step.states), len(step.rewards))
    columns = (step.rewards, step.terminateds, step.truncateds)
    rows = zip(observed, *(column.tolist() for column in columns), strict=True)
    keys = [hashlib.blake2b(repr(row).encode(), digest_size=8).digest() for row in rows]
    return np.array([int.from_bytes(key, signed=True) for key in keys], np.int64)

"""The memory of a NumPy random generator as 40 plain bytes.

Gymnasium's ``np_random`` is a :class:`numpy.random.Generator` on a PCG64 bit generator. Its whole
memory is a 128-bit position, a 128-bit increment, and half of a 64-bit draw that may be left over
from a 32-bit one. See :class:`numpy.random.PCG64`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError

GENERATOR_NBYTES = 40
_LAYOUT = struct.Struct("<QQQQII")
_WORD = (1 << 64) - 1
_EMPTY = bytes(GENERATOR_NBYTES)


def save_generator(generator: np.random.Generator | None) -> bytes:
    """Return the 40 bytes from which :func:`load_generator` continues; zeros stand for ``None``.

    Raises
    ------
    SnapshotError
        The generator does not run on PCG64.

    >>> import numpy as np
    >>> rng = np.random.Generator(np.random.PCG64(3))
    >>> memory = save_generator(rng)
    >>> first = rng.random()
    >>> load_generator(memory, rng).random() == first
    True
    """
    if generator is None:
        return _EMPTY
    memory: Any = generator.bit_generator.state
    if memory["bit_generator"] != "PCG64":
        raise SnapshotError(
            f"a random generator on {memory['bit_generator']} cannot be saved in a state row; "
            "Gymnasium's own generators run on PCG64"
        )
    position, increment = memory["state"]["state"], memory["state"]["inc"]
    return _LAYOUT.pack(
        position & _WORD,
        position >> 64,
        increment & _WORD,
        increment >> 64,
        memory["has_uint32"],
        memory["uinteger"],
    )


def load_generator(
    memory: bytes | NDArray[np.uint8], generator: np.random.Generator | None
) -> np.random.Generator | None:
    """Return a generator that continues from `memory`, re-using `generator` where one is given."""
    memory = bytes(memory)
    if memory == _EMPTY:
        return None
    low, high, inc_low, inc_high, has_uint32, uinteger = _LAYOUT.unpack(memory)
    if generator is None or not isinstance(generator.bit_generator, np.random.PCG64):
        generator = np.random.Generator(np.random.PCG64(0))
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": low | high << 64, "inc": inc_low | inc_high << 64},
        "has_uint32": int(has_uint32 > 0),
        "uinteger": uinteger,
    }
    return generator


def seeded_generator(seed: int) -> np.random.Generator:
    """Return the generator that Gymnasium makes of `seed` (``gymnasium.utils.seeding``)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed))))


def make_generator(env: Any) -> None:
    """Give `env`, a `gymnasium.Env` without wrappers, a fresh ``np_random`` unless it has one."""
    if vars(env).get("_np_random") is None:
        env._np_random, env._np_random_seed = seeding.np_random()

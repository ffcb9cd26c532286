"""The state of a NumPy random generator as 40 bytes.

Gymnasium's ``np_random`` is a :class:`numpy.random.Generator` with a PCG64 bit generator. Its whole
state is a 128-bit position, a 128-bit increment, and possibly half of a 64-bit draw that is left
over from a 32-bit draw. See :class:`numpy.random.PCG64`.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
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
    """Return the state of `generator` as 40 bytes for :func:`load_generator`; zeros for ``None``.

    Raises
    ------
    SnapshotError
        The bit generator is not PCG64.

    Examples
    --------
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
            f"a random generator with {memory['bit_generator']} cannot be saved in a state row; "
            "Gymnasium's own generators use PCG64"
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
    """Return a generator that continues from `memory`, reusing `generator` if possible.

    Return ``None`` if `memory` is 40 zeros.
    """
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


class GeneratorMemory:
    """Saves the ``np_random`` of one environment in state rows, and loads it from them.

    If generators have the same memory layout as in NumPy 2, their memory is copied directly
    (``numpy.random.PCG64.ctypes``), which is five times faster than using their ``state``.

    Parameters
    ----------
    env : gymnasium.Env
        The environment, without wrappers.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        # The last bit generator whose memory was copied, and this memory; see `_memory_of`.
        self._open: tuple[Any, memoryview, memoryview] = (None, memoryview(b""), memoryview(b""))

    def save(self, payload: NDArray[np.uint8], begin: int) -> None:
        """Write the 40 bytes of `save_generator` into `payload`, from byte `begin` on."""
        generator, memory, end = self._env._np_random, payload.data, begin + GENERATOR_NBYTES
        if generator is not None and self._is_open(generator):
            _, memory[begin : end - 8], memory[end - 8 : end] = self._open
        else:
            memory[begin:end] = save_generator(generator)

    def load(self, payload: NDArray[np.uint8], begin: int) -> None:
        """Set the random generator to the state in the 40 bytes of `payload` from `begin` on."""
        env, memory, end = self._env, payload.data, begin + GENERATOR_NBYTES
        generator, saved = env._np_random, memory[begin:end]
        if saved == _EMPTY:
            env._np_random = None
        elif generator is not None and self._is_open(generator):
            _, numbers, rest = self._open
            numbers[:], rest[:] = saved[:-8], saved[-8:]
        else:
            env._np_random = load_generator(bytes(saved), generator)

    def _is_open(self, generator: Any) -> bool:
        """Return whether the memory of `generator` can be copied directly."""
        if type(generator) is not np.random.Generator:
            return False
        bits = generator.bit_generator
        if bits is self._open[0]:
            return True
        if type(bits) is not np.random.PCG64 or not _layout_is_known():
            return False
        # One assignment, so that an interrupt cannot separate a generator from its memory.
        self._open = (bits, *_memory_of(bits))
        return True


def memory_regions(generator: np.random.Generator) -> list[tuple[int, int]]:
    """Return the addresses and sizes in bytes of the memory that holds the state of `generator`.

    Raises
    ------
    SnapshotError
        This generator, or this NumPy, holds its state in another way.
    """
    bits: Any = generator.bit_generator
    if type(bits) is not np.random.PCG64 or not _layout_is_known():
        raise SnapshotError("the memory of a random generator is not laid out as in NumPy 2")
    address = int(bits.ctypes.state_address)
    return [(ctypes.c_uint64.from_address(address).value, 32), (address + 8, 8)]


def memory_views(generator: np.random.Generator) -> list[memoryview]:
    """Return the memory of `generator`, which together is `save_generator`; empty if unknown."""
    bits = generator.bit_generator
    is_known = type(bits) is np.random.PCG64 and _layout_is_known()
    return [*_memory_of(bits)] if is_known else []


def _memory_of(bits: Any) -> tuple[memoryview, memoryview]:
    """Return the memory of a PCG64: first position and increment, then the left-over half draw."""
    address = int(bits.ctypes.state_address)
    numbers = (ctypes.c_char * 32).from_address(ctypes.c_uint64.from_address(address).value)
    rest = (ctypes.c_char * 8).from_address(address + 8)
    return memoryview(numbers).cast("B"), memoryview(rest).cast("B")


@functools.cache
def _layout_is_known() -> bool:
    """Return whether this NumPy's memory layout of a PCG64 matches `save_generator`."""
    # Of another NumPy, nothing is read before its layout is known.
    is_numpy_2 = np.__version__.startswith("2.")
    if not is_numpy_2 or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return False
    generator, other = seeded_generator(1), seeded_generator(2)
    other.integers(5, dtype=np.uint32)
    numbers, rest = _memory_of(generator.bit_generator)
    if bytes(numbers) + bytes(rest) != save_generator(generator):
        return False
    memory = save_generator(other)
    numbers[:], rest[:] = memory[:32], memory[32:]
    return save_generator(generator) == memory


def seeded_generator(seed: int) -> np.random.Generator:
    """Return the random generator that Gymnasium makes from `seed` (`gymnasium.utils.seeding`)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed))))


def reseed(env: Any, seed: int) -> None:
    """Restart the ``np_random`` of `env`, a `gymnasium.Env` without wrappers, from `seed`.

    The generator is changed in place, because other objects of the environment may refer to it.
    """
    own, fresh = vars(env).get("_np_random"), seeded_generator(seed)
    if own is None or not isinstance(own.bit_generator, np.random.PCG64):
        env._np_random = fresh
    else:
        restart(own.bit_generator, fresh.bit_generator)


def restart(bits: Any, fresh: Any) -> None:
    """Give the bit generator `bits` the state and the seed sequence (for ``spawn``) of `fresh`."""
    bits.__setstate__((fresh.state, fresh.seed_seq))


def spawner_of(generator: np.random.Generator) -> tuple[Any, ...] | None:
    """Return the data that determine which generators `generator` spawns.

    The data are the fields of the generator's `SeedSequence`, which the 40 bytes do not include.
    Return ``None`` if it has no `SeedSequence`.
    """
    seeds = generator.bit_generator.seed_seq
    if type(seeds) is not np.random.SeedSequence:
        return None
    return seeds.entropy, seeds.spawn_key, seeds.pool_size, seeds.n_children_spawned


def spawning_generator(
    memory: bytes, spawner: tuple[Any, ...] | None
) -> np.random.Generator | None:
    """Return a new generator that continues from `memory`, and spawns as `spawner` describes."""
    if spawner is None:
        return load_generator(memory, None)
    entropy, key, pool_size, count = spawner
    seeds = np.random.SeedSequence(
        entropy, spawn_key=key, pool_size=pool_size, n_children_spawned=count
    )
    return load_generator(memory, np.random.Generator(np.random.PCG64(seeds)))


def make_generator(env: Any) -> None:
    """Give `env`, a `gymnasium.Env` without wrappers, a fresh ``np_random`` unless it has one."""
    if vars(env).get("_np_random") is None:
        env._np_random, env._np_random_seed = seeding.np_random()

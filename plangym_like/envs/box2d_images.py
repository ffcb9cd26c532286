"""Images of the memory of a Box2D world: a saved state is restored in the same copy in one go.

An action log is what a row means (see `plangym_like.envs.replayed`). An image is a cache under it:
it brings a copy of an environment back to a state of its own episode without replaying the actions.
An image holds the memory that the world uses, and the attributes of the Python objects that a step
changes. It can only be put back into the copy that it was taken from, because the world's memory
contains addresses.

This needs the layout of the world in memory, and the list of what steps change. So there are images
only for the builds of Box2D and the sources of Gymnasium that are listed here by their hashes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.chains import innermost, links
from plangym_like.snapshots.known_wrappers import foreign_wrappers, is_known, state_names, visible
from plangym_like.states.random_state import memory_regions

# The SHA-256 of ``_Box2D*.so`` in the wheels of Box2D 2.3.10 for Linux on x86-64.
_BUILDS = (
    "d2826e2c66af64b6387e0fb5b7ca996d6e537b0619eece0c9c7af3789eadff71",  # CPython 3.11
    "b10c31f7d79f2da4c42e7ab864d13add08f9625669076f6faeb7963a9456a90d",  # CPython 3.12
    "dd1049654ec68e1438114a4c9d9874857864ce03e34f26bd5219830dcc565607",  # CPython 3.13
)
# The SHA-256 of the four modules of ``gymnasium.envs.box2d``, one after the other.
_PACKAGE = "gymnasium.envs.box2d."
_MODULES = ("bipedal_walker", "car_dynamics", "car_racing", "lunar_lander")
_SOURCES = (
    "786caa25eaca0324526eb735cb6ce232d4257ec388783ab8826c32768f866618",  # 1.1
    "100c8c6d402b3f0ad24314d627e0275109af1f441888088090ee9dde323f870e",  # 1.2
    "ff7f2ca6a02a23d3f35c6c0de094601f62806eb3c2a080b63847f2a497affb95",  # 1.3
    "d88379e6a8d50ff3548b4e3b0a73a497250067e41749c149f0f881fcff2be5cf",  # 1.4
)

# Byte offsets in a ``b2World``. Its block allocator comes first: the array of chunks, their number,
# and the free list of each block size.
_FREE_LISTS = 16
_BLOCK_SIZES = (16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640)
_CHUNK_NBYTES = 16 * 1024
# The number of blocks in use on the stack allocator, which is empty between two steps.
_STACK_ENTRIES = 128 + 0x19210
# The flags, and the broad phase's tree: its nodes and how many of them there are.
_FLAGS, _NODES, _CAPACITY = 0x19298, 0x192A8, 0x192B4
# The buffers of proxies that moved and of new pairs, both empty between two steps.
_MOVE_BUFFER, _MOVE_COUNT, _AFTER_BUFFERS = 0x192D0, 0x192DC, 0x192F0
_CONTACT_COUNT = 0x19300
# The durations of the last step, which nothing reads.
_PROFILE = 0x19360
_NODE_NBYTES, _CONTACT_NBYTES = 40, 208
# The size class of contacts, which are the only blocks that steps allocate.
_CONTACTS = _BLOCK_SIZES.index(224)

# Attributes that hold windows and surfaces; a step or an image makes new ones if they are needed.
_HANDLES = ("screen", "clock", "surf", "isopen")


class TooManyContactsError(Exception):
    """A world has so many contacts after its reset that images have no room for more."""


class Words(NamedTuple):
    """Words of memory: their places, their values, and their values after the reset."""

    places: NDArray[np.intp]
    values: NDArray[np.uint64]
    first: NDArray[np.uint64]


class WorldMemory:
    """The memory that a Box2D world uses, as a list of regions.

    Parameters
    ----------
    world : Box2D.b2World
        The world after the reset of an episode. This object keeps it alive.
    contacts : int
        The number of contacts for which the regions have room. Steps make nothing else.
    others : iterable of (int, int)
        The addresses and sizes in bytes of memory outside the world that belongs to its state, in
        multiples of 8 bytes.

    Raises
    ------
    TooManyContactsError
    """

    def __init__(self, world: Any, others: Iterable[tuple[int, int]], contacts: int) -> None:
        self._world = world
        self._at = int(world.this)
        self._reserve()
        chunks = self._chunks()
        self._limit_contacts(chunks[_CONTACTS], contacts)
        regions = [*others, (self._at + _FREE_LISTS, 8 * len(_BLOCK_SIZES))]
        regions += [(self._at + _FLAGS, _MOVE_BUFFER - _FLAGS)]
        regions += [(self._at + _AFTER_BUFFERS, _PROFILE - _AFTER_BUFFERS)]
        regions += [(self._pointer(_NODES), _NODE_NBYTES * self._int(_CAPACITY))]
        for kind, addresses in chunks.items():
            if kind == _CONTACTS:
                regions += [(addresses[0], contacts * _BLOCK_SIZES[kind])]
            else:
                regions += self._used(kind, addresses)
        self._views = [_words(address, nbytes) for address, nbytes in regions]
        self._first = np.concatenate(self._views)
        self._buffer = self._first.copy()
        # An array from the first region to the last, and where in it the words of `_first` are.
        # Between the regions, it covers addresses that do not belong to the world.
        start = min(address for address, _ in regions)
        end = max(address + nbytes for address, nbytes in regions)
        self._all = _words(start, end - start)
        self._where = np.concatenate(
            [np.arange(nbytes // 8) + (address - start) // 8 for address, nbytes in regions]
        )
        # The array of chunks and their number, the nodes, and the free lists of all blocks but
        # contacts. If one of them changes, the world uses memory outside the regions.
        self._allocator = _words(self._at, _FREE_LISTS + 8 * len(_BLOCK_SIZES))
        self._nodes = ctypes.c_uint64.from_address(self._at + _NODES)
        place = _FREE_LISTS + 8 * _CONTACTS
        self._before, self._after = slice(0, place), slice(place + 8, None)
        self._fixed = self._fixed_now()
        self._moved = ctypes.c_int32.from_address(self._at + _MOVE_COUNT)
        self._stacked = ctypes.c_int32.from_address(self._at + _STACK_ENTRIES)

    def _fixed_now(self) -> tuple[int, bytes, bytes]:
        allocator = self._allocator.tobytes()
        return self._nodes.value, allocator[self._before], allocator[self._after]

    @property
    def is_complete(self) -> bool:
        """Whether the regions hold all memory of the world, and no step is under way."""
        return (
            self._fixed_now() == self._fixed and not self._moved.value and not self._stacked.value
        )

    def read(self) -> Words:
        """Return the words that differ from those after the reset."""
        now = np.concatenate(self._views, out=self._buffer)
        changed = (now != self._first).nonzero()[0]
        return Words(self._where[changed], now[changed], self._first[changed])

    def write(self, words: Words, now: Words | None) -> None:
        """Write back `words`, which `read` returned; `now` is what it would return, if known."""
        if now is None:
            self._all[self._where] = self._first
        else:
            self._all[now.places] = now.first
        self._all[words.places] = words.values

    def _int(self, offset: int) -> int:
        return ctypes.c_int32.from_address(self._at + offset).value

    def _pointer(self, offset: int) -> int:
        return ctypes.c_uint64.from_address(self._at + offset).value

    def _reserve(self) -> None:
        """Let the world allocate the chunk of contacts, without changing what it does next."""
        if not self._pointer(_FREE_LISTS + 8 * _CONTACTS):
            allocate, free = _functions()
            free(self._at, allocate(self._at, _CONTACT_NBYTES), _CONTACT_NBYTES)

    def _chunks(self) -> dict[int, list[int]]:
        """Return the addresses of the allocator's chunks, by size class, in order."""
        found: dict[int, list[int]] = {}
        table = self._pointer(0)
        for number in range(self._int(8)):
            nbytes = ctypes.c_int32.from_address(table + 16 * number).value
            address = ctypes.c_uint64.from_address(table + 16 * number + 8).value
            found.setdefault(_BLOCK_SIZES.index(nbytes), []).append(address)
        return found

    def _limit_contacts(self, addresses: list[int], contacts: int) -> None:
        """End the free list of contacts after `contacts` blocks of their only chunk.

        If a step needs more, the allocator makes another chunk, which `is_complete` notices.
        """
        nbytes = _BLOCK_SIZES[_CONTACTS]
        last = addresses[0] + (contacts - 1) * nbytes
        link = ctypes.c_uint64.from_address(last)
        used = self._int(_CONTACT_COUNT)
        following = last + nbytes if contacts < _CHUNK_NBYTES // nbytes else 0
        if len(addresses) > 1 or used > contacts // 2 or link.value != following:
            raise TooManyContactsError
        link.value = 0

    def _used(self, kind: int, addresses: list[int]) -> Iterable[tuple[int, int]]:
        """Yield the beginning of each chunk of size class `kind`, up to its last used block."""
        nbytes = _BLOCK_SIZES[kind]
        whole = _CHUNK_NBYTES // nbytes * nbytes
        chunks = [range(address, address + whole, nbytes) for address in addresses]
        links: dict[int, int] = {}
        for blocks in chunks:
            words = _words(blocks.start, whole)[:: nbytes // 8]
            links.update(zip(blocks, words.tolist(), strict=True))
        free, block = set(), self._pointer(_FREE_LISTS + 8 * kind)
        while block:
            free.add(block)
            block = links[block]
        for address, blocks in zip(addresses, chunks, strict=True):
            last = next((at for at in reversed(blocks) if at not in free), None)
            if last is not None:
                yield address, last + nbytes - address


def _words(address: int, nbytes: int) -> NDArray[np.uint64]:
    """Return the memory from `address` on as an array."""
    memory: Any = (ctypes.c_uint64 * (nbytes // 8)).from_address(address)
    words: NDArray[np.uint64] = np.frombuffer(memory, np.uint64)
    return words


@functools.cache
def _functions() -> tuple[Any, Any]:
    """Return the functions of Box2D that allocate and free a block of a world's memory."""
    library = ctypes.CDLL(importlib.import_module("Box2D._Box2D").__file__)
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    allocate = library._ZN16b2BlockAllocator8AllocateEi
    free = library._ZN16b2BlockAllocator4FreeEPvi
    allocate.restype, allocate.argtypes = pointer, (pointer, number)
    free.restype, free.argtypes = None, (pointer, pointer, number)
    return allocate, free


class Image(NamedTuple):
    """The state of one copy of an environment; see `Imager`."""

    words: Words
    attributes: list[dict[str, Any]]
    seeds: Any
    parts: Any


class Imager:
    """Takes images of a copy of an environment, in the episode that it has begun.

    Parameters
    ----------
    env : gymnasium.Env
        The copy after its reset: a chain of wrappers, which are Gymnasium's own and have no state
        but the step count of a time limit.

    Attributes
    ----------
    nbytes : int
        The approximate size of the Python objects of an image.

    Raises
    ------
    TooManyContactsError
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        base = innermost(env)
        self._base = base
        self._parts = _PARTS[type(base).__name__](base)
        self._attributes = [vars(base), *map(vars, links(env)[:-1]), *self._parts.attributes()]
        self._generator = base._np_random
        self._body = getattr(base, self._parts.body)
        self._bits = self._generator.bit_generator
        self._memory = WorldMemory(
            base.world,
            memory_regions(self._generator),
            self._parts.contacts,
        )
        self.nbytes = self._parts.nbytes + sum(map(sys.getsizeof, self._attributes))

    @property
    def _is_same_episode(self) -> bool:
        """Whether the environment still has the generator and the body that it had at first."""
        attributes = self._attributes[0]
        return (
            attributes["_np_random"] is self._generator
            and attributes[self._parts.body] is self._body
        )

    def take(self) -> tuple[Image, int] | None:
        """Return an image of the current state and its size; ``None`` if that is not possible."""
        if not self._is_same_episode or not self._memory.is_complete:
            return None
        words = self._memory.read()
        attributes = list(map(dict, self._attributes))
        for name in _HANDLES:
            attributes[0].pop(name, None)
        image = Image(words, attributes, self._bits.seed_seq, self._parts.read())
        return image, self.nbytes + 3 * words.places.nbytes

    def put(self, image: Image, now: Image | None) -> bool:
        """Restore the state of `image`; return ``False``, changing nothing, if it cannot be.

        `now` is the image that was taken or put last, if no step has been taken since.
        """
        if not self._is_same_episode or not self._memory.is_complete:
            return False
        if self._bits.seed_seq is not image.seeds:
            self._bits.__setstate__((self._bits.state, image.seeds))
        self._memory.write(image.words, None if now is None else now.words)
        handles = sum(map(self._attributes[0].__contains__, _HANDLES))
        for attributes, then in zip(self._attributes, image.attributes, strict=True):
            # Sets of names take as long as all the rest, and steps add few attributes.
            if len(attributes) - handles > len(then):
                for name in attributes.keys() - then.keys() - set(_HANDLES):
                    del attributes[name]
            attributes.update(then)
            handles = 0  # only the environment itself, which is the first, has them
        self._parts.write(image.parts)
        return True


class _Parts:
    """The Python objects, besides the environment itself, that a step changes."""

    # The attribute with the main body, which is a new object after each reset.
    body: str
    # The number of contacts for which images have room; a chunk has 73 blocks for them.
    contacts = 73
    nbytes = 0

    def __init__(self, base: Any) -> None:
        self.base = base

    def attributes(self) -> list[dict[str, Any]]:
        """Return the attributes of all objects whose attributes a step replaces."""
        return []

    def read(self) -> Any:
        """Return the content of all containers that a step changes in place."""
        return None

    def write(self, parts: Any) -> None:
        """Restore what `read` returned."""


class _LanderParts(_Parts):
    """The legs of a lander; it has no sparks unless it is rendered."""

    body = "lander"
    contacts = 24

    def attributes(self) -> list[dict[str, Any]]:
        return [vars(leg) for leg in self.base.legs]


class _WalkerParts(_Parts):
    """The legs of a walker, and the results of its lidar."""

    body = "hull"

    def attributes(self) -> list[dict[str, Any]]:
        return [vars(each) for each in (*self.base.legs, *self.base.lidar)]


class _RacerParts(_Parts):
    """The car, its wheels and their traces, and what of the road has been visited."""

    body = "car"

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self._colors = [tile.color for tile in base.road]
        self._tiles = [vars(tile) for tile in base.road]
        self.nbytes = 25 * len(self._tiles) + base.state.nbytes

    def attributes(self) -> list[dict[str, Any]]:
        return [vars(each) for each in (self.base.car, *self.base.car.wheels)]

    def read(self) -> Any:
        car = self.base.car
        traces = {id(trace): trace for trace in car.particles}
        for wheel in car.wheels:
            if wheel.skid_particle is not None:
                traces[id(wheel.skid_particle)] = wheel.skid_particle
        return (
            list(car.particles),
            [(trace, list(trace.poly)) for trace in traces.values()],
            [set(wheel.tiles) for wheel in car.wheels],
            bytes([tile["road_visited"] for tile in self._tiles]),
            np.concatenate(self._colors),
        )

    def write(self, parts: Any) -> None:
        car = self.base.car
        particles, traces, tiles, visited, colors = parts
        car.particles.clear()
        car.particles.extend(particles)
        for trace, points in traces:
            trace.poly[:] = points
        for wheel, touched in zip(car.wheels, tiles, strict=True):
            wheel.tiles.clear()
            wheel.tiles.update(touched)
        for tile, flag in zip(self._tiles, visited, strict=True):
            tile["road_visited"] = bool(flag)
        changed = np.flatnonzero(np.concatenate(self._colors) != colors)
        for at in set((changed // 3).tolist()):
            self._colors[at][:] = colors[3 * at : 3 * at + 3]


_PARTS: dict[str, Any] = {
    "LunarLander": _LanderParts,
    "BipedalWalker": _WalkerParts,
    "CarRacing": _RacerParts,
}


def make_imager(env: gymnasium.Env[Any, Any]) -> Imager | None:
    """Return what takes images of the copy `env`, after its reset; ``None`` if nothing can."""
    try:
        return Imager(env)
    except (TooManyContactsError, SnapshotError):
        return None


def has_images(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether images can be taken of the chain `env`: whether everything in it is known."""
    line = type(innermost(env)).__mro__
    kinds = line[: line.index(gymnasium.Env)]
    # Only Gymnasium's own class, or the subclass for images that `plangym_like.envs.box2d` makes of
    # it, with the same name and module.
    if not kinds or not all(kind.__module__.startswith(_PACKAGE) for kind in kinds):
        return False
    if {kind.__name__ for kind in kinds} != {kinds[0].__name__} or kinds[0].__name__ not in _PARTS:
        return False
    wrappers = visible(env)
    # A lander that is rendered makes sparks, which are bodies.
    if kinds[0].__name__ == "LunarLander" and innermost(env).render_mode is not None:
        return False
    known = all(
        is_known(wrapper) and state_names(wrapper) in ((), ("_elapsed_steps",))
        for wrapper in wrappers
    )
    return known and not foreign_wrappers(env) and _is_known_build()


@functools.cache
def _is_known_build() -> bool:
    """Return whether the installed Box2D and the sources of Gymnasium are among the known ones."""
    try:
        build = Path(str(importlib.import_module("Box2D._Box2D").__file__)).read_bytes()
        sources = hashlib.sha256()
        for name in _MODULES:
            module = importlib.import_module(_PACKAGE + name)
            sources.update(Path(str(module.__file__)).read_bytes())
    except (ImportError, OSError):
        return False
    return hashlib.sha256(build).hexdigest() in _BUILDS and sources.hexdigest() in _SOURCES

"""Batches of observations: their features, vectors and keys, and their rows.

- `default_features`, `tile_colors`, `tile_pairs`: features for width-based planners
- `as_vectors`, `ranges`: vectors for distances
- `make_key`, `digests`: which states count as the same
- `stacked`, `joined`, `rows_of`: batches that are put together and taken apart
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.nodes import Ints
from plangym_like.results import BatchInfo
from plangym_like.states.rows import States

# Returns features of N observations and infos. In an array ``(N, F)`` of integers, each pair of a
# column and its value is an atom, unless the value is negative. In an array of bools, the atoms are
# the columns that are true. A list holds an array of the numbers of each state's atoms.
Features = Callable[[Any, BatchInfo], NDArray[Any] | list[NDArray[Any]]]
# A function of N observations, infos and states that returns their keys: an array ``(N, ...)`` or N
# hashable objects.
Key = Callable[[Any, BatchInfo, States], Any]

# Observations of uint8 with more numbers than this are screens.
_MOST_VARIABLES = 1024
# Pairs of this many colours of tiles with all others are made at once.
_MOST_ROWS = 512
# Integers with more possible values than this are not used as variables.
_MOST_VALUES = 1 << 16


def default_features(env: PlanEnv, planner: str) -> Features:
    """Return a function that computes features, chosen by the kind of the observation space.

    - ``Discrete``, ``MultiDiscrete``, ``MultiBinary``, and boxes of at most 1,024 integers with at
      most 65,536 values each, such as the RAM of Atari: each number is one variable, and its values
      are the atoms.
    - Larger boxes of ``uint8`` with 2 or 3 axes are screens; `tile_colors` computes their features.

    Raises
    ------
    InputError
        The observations are of another kind; the message names `planner`.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("Taxi-v4")
    >>> features = default_features(env, "IW")
    >>> features(np.array([328, 228]), BatchInfo(2, {}))
    array([[328],
           [228]])
    """
    space = env.observation_space
    if isinstance(space, Discrete | MultiDiscrete):
        return _Variables(np.asarray(space.start))
    if isinstance(space, MultiBinary):
        return _Variables(np.zeros(1))
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.integer):
        size = int(np.prod(space.shape))
        if size > _MOST_VARIABLES and space.dtype == np.uint8 and len(space.shape) in (2, 3):
            return _tiles
        values = space.high.astype(np.float64) - space.low + 1
        if size and size <= _MOST_VARIABLES and np.max(values) <= _MOST_VALUES:
            return _Variables(space.low)
    raise InputError(
        f"{planner} has no default features for observations of {space}; pass features=, a "
        "function of (obs, infos) that returns an integer array (N, F), such as rounded positions"
    )


class _Variables:
    """Uses each number of an observation as a variable, shifted so that its lowest value is 0."""

    def __init__(self, lowest: NDArray[Any]) -> None:
        self._lowest = lowest.astype(np.int64)

    def __call__(self, obs: Any, infos: BatchInfo) -> NDArray[Any]:
        numbers = np.asarray(obs).astype(np.int64) - self._lowest
        return numbers.reshape(len(numbers), -1)


def _tiles(obs: Any, infos: BatchInfo) -> NDArray[np.bool_]:
    return tile_colors(obs)


def tile_colors(screens: NDArray[Any], rows: int = 14, columns: int = 16) -> NDArray[np.bool_]:
    """Return which colours are seen in each tile of the screens, ``(N, rows * columns * 256)``.

    If C channels are not colours, the last axis is C times as long.

    These are the basic features of Y. Liang, M. C. Machado, E. Talvitie and M. Bowling, "State of
    the art control of Atari games using shallow reinforcement learning", AAMAS 2016:
    14 by 16 tiles, of 15 by 10 pixels on a screen of Atari. RGB colours are rounded to 3, 3
    and 2 bits. No background is subtracted: pixels that never change are novel only once.

    Parameters
    ----------
    screens : array ``(N, H, W)`` or ``(N, H, W, C)`` or ``(N, C, H, W)``
        C must be less than H and W, the rows and columns of pixels. Three channels are colours;
        otherwise each channel has its own tiles.
    rows, columns : int
        The number of tiles.

    Examples
    --------
    >>> screens = np.zeros((1, 210, 160), np.uint8)
    >>> screens[0, 20, 10] = 7
    >>> np.flatnonzero(tile_colors(screens)).tolist()[16:19]  # the tile in row 1, column 1
    [4096, 4352, 4359]
    """
    if screens.ndim == 4 and screens.shape[1] < screens.shape[-1]:
        screens = np.moveaxis(screens, 1, -1)
    if screens.ndim == 4 and screens.shape[-1] == 3:
        red, green, blue = (screens[..., channel] for channel in range(3))
        screens = red & 0xE0 | green >> 3 & 0x1C | blue >> 6
    elif screens.ndim == 4:
        found = [tile_colors(screens[..., c], rows, columns) for c in range(screens.shape[-1])]
        return np.concatenate(found, axis=1)
    count, height, width = screens.shape
    tile = np.add.outer(
        np.arange(height) * rows // height * columns, np.arange(width) * columns // width
    )
    seen = np.zeros((count, rows * columns * 256), np.bool_)
    for row, screen in zip(seen, screens, strict=True):
        row[tile * 256 + screen] = True
    return seen


def tile_pairs(screens: NDArray[Any], rows: int = 14, columns: int = 16) -> list[NDArray[np.int32]]:
    """Return the atoms of each screen: colours of tiles, and pairs of them with their offset.

    These are the features B-PROST of Y. Liang, M. C. Machado, E. Talvitie and M. Bowling, "State of
    the art control of Atari games using shallow reinforcement learning", AAMAS 2016: the basic
    ones (a colour in a tile), pairs of colours of one screen with the offset between their tiles
    (B-PROS), and, if `screens` has the screens before as well, pairs of a colour now and a colour
    before (B-PROT). Colours are rounded to 7 bits. No background is subtracted.

    A screen has thousands of atoms, and there are up to 27 million; a search takes about 100 KB
    for each node.

    Parameters
    ----------
    screens : array ``(N, H, W)`` or ``(N, H, W, 3)``, or ``(N, 2, H, W)`` or ``(N, 2, H, W, 3)``
        With an axis of two, the first is the screen before, as
        `gymnasium.wrappers.FrameStackObservation` returns them.
    rows, columns : int
        The number of tiles.

    Returns
    -------
    list of array ``(K,) int32``
        For `IW` and `RolloutIW`: ``features=lambda obs, infos: tile_pairs(obs)``.

    Examples
    --------
    >>> screens = np.zeros((1, 210, 160), np.uint8)
    >>> screens[0, 20, 10] = 7
    >>> [len(atoms) for atoms in tile_pairs(screens)]  # 225 colours in tiles, and 644 pairs
    [869]
    """
    has_colors = screens.ndim > 3 and screens.shape[-1] == 3
    axes = screens.ndim - has_colors
    if screens.dtype != np.uint8 or axes not in (3, 4) or (axes == 4 and screens.shape[1] > 2):
        raise InputError(
            "screens must be uint8 arrays of one or two screens each, grey or RGB, got "
            f"{screens.dtype} {screens.shape}"
        )
    if has_colors:
        screens = screens[..., 0] >> 1 & 0x70 | screens[..., 1] >> 4 & 0x0C | screens[..., 2] >> 6
    else:
        screens = screens >> 1
    if axes == 3:
        screens = screens[:, None]
    height, width = screens.shape[2:]
    across, down = np.arange(width) * columns // width, np.arange(height) * rows // height
    tile = np.add.outer(down, across * rows)
    num_tiles, num_offsets = rows * columns, (2 * rows - 1) * (2 * columns - 1)
    found = []
    for pair in screens:
        now, *before = (_colors_of_tiles(screen, tile, num_tiles) for screen in pair[::-1])
        atoms = [now[0] + now[1] * num_tiles]
        atoms.append(num_tiles * 128 + _offsets(now, now, rows, num_offsets, ordered=True))
        if before:
            first = (num_tiles + num_offsets * 128) * 128
            atoms.append(first + _offsets(now, before[0], rows, num_offsets))
        found.append(np.concatenate(atoms).astype(np.int32))
    return found


def _colors_of_tiles(screen: NDArray[Any], tile: NDArray[Any], num_tiles: int) -> tuple[Ints, Ints]:
    """Return the tiles and colours of all pairs of a tile and a colour in it, sorted by colour."""
    seen = np.zeros(num_tiles * 128, np.bool_)
    seen[tile + screen.astype(np.intp) * num_tiles] = True
    colors, tiles = np.divmod(np.flatnonzero(seen), num_tiles)
    return tiles, colors


def _offsets(
    first: tuple[Ints, Ints],
    second: tuple[Ints, Ints],
    rows: int,
    num_offsets: int,
    *,
    ordered: bool = False,
) -> Ints:
    """Return the numbers of all pairs of colours, with the offset between their tiles.

    If `ordered`, the two are the same, and each pair is taken in one order only.
    """
    codes, palettes = [], []
    for tiles, colors in (first, second):
        palette, color = np.unique(colors, return_inverse=True)
        down, across = tiles % rows, tiles // rows
        codes.append((across * (2 * rows - 1) + down, color))
        palettes.append(palette)
    (place, color), (other, other_color) = codes
    seen = np.zeros(len(palettes[0]) * len(palettes[1]) * num_offsets, np.bool_)
    here = color * len(palettes[1]) * num_offsets + place + num_offsets // 2
    there = other_color * num_offsets - other
    for start in range(0, len(here), _MOST_ROWS):
        numbers = np.add.outer(here[start : start + _MOST_ROWS], there)
        if ordered:
            numbers = numbers[np.tri(len(numbers), len(there), start, dtype=np.bool_)]
        seen[numbers] = True
    pair, offset = np.divmod(np.flatnonzero(seen), num_offsets)
    one, two = np.divmod(pair, len(palettes[1]))
    return (palettes[0][one] * 128 + palettes[1][two]) * num_offsets + offset


def as_vectors(obs: Any) -> NDArray[np.float64]:
    """Flatten a batch of observations, which may be nested, to ``(N, F)``.

    >>> as_vectors({"at": np.array([3, 4]), "speed": np.array([[0.5, 1.0], [1.5, 2.0]])})
    array([[3. , 0.5, 1. ],
           [4. , 1.5, 2. ]])
    """
    if isinstance(obs, dict):
        obs = tuple(obs.values())
    if isinstance(obs, tuple):
        return np.hstack([as_vectors(part) for part in obs])
    return np.asarray(obs, np.float64).reshape(len(obs), -1)


def ranges(space: spaces.Space[Any], planner: str) -> NDArray[np.float64] | None:
    """Return the range (highest minus lowest value) of each number in `as_vectors`, ``(F,)``.

    Return None if one of the numbers is unbounded.

    Raises
    ------
    InputError
        Observations are not a fixed count of numbers; the message names `planner`.

    Examples
    --------
    >>> ranges(spaces.Dict(at=spaces.Discrete(5), speed=spaces.Box(-2, 2, (2,))), "")
    array([4., 4., 4.])
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        each = space.values() if isinstance(space, spaces.Dict) else space
        parts = [ranges(one, planner) for one in each]
        found = [part for part in parts if part is not None]
        return np.concatenate(found) if len(found) == len(parts) else None
    if isinstance(space, Box):
        low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
        return high - low if np.isfinite(high - low).all() else None
    if isinstance(space, Discrete):
        return np.array([float(space.n - 1)])
    if isinstance(space, MultiDiscrete):
        return space.nvec.astype(np.float64).ravel() - 1
    if isinstance(space, MultiBinary):
        return np.ones(int(np.prod(space.shape)))
    raise InputError(
        f"{planner} measures distances between observations, which must be a fixed count of "
        f"numbers, got {space}"
    )


def make_key(key: Any) -> Key:
    """Return the option ``key=`` ("state", "obs" or a function) as a function.

    Raises
    ------
    InputError
        `key` is none of these.
    """
    if key == "state":
        return lambda obs, infos, states: states
    if key == "obs":
        return lambda obs, infos, states: _parts(obs, len(states))
    if not callable(key):
        raise InputError(
            f'key must be "state", "obs" or a function of (obs, infos, states), got {key!r}'
        )
    function: Key = key
    return function


def digests(keys: Any, count: int) -> list[Any]:
    """Return N hashable keys; a row of an array becomes a digest of 16 bytes.

    Raises
    ------
    InputError
        The number of keys is not N, or they are not hashable.

    Examples
    --------
    >>> one, two, three = digests(np.array([[1, 2], [3, 4], [1, 2]]), 3)
    >>> one == three, one == two
    (True, False)
    """
    try:
        number = len(keys)
    except TypeError as error:
        raise InputError(
            f"key must return an array (N, ...) or N hashable objects, got {keys!r}"
        ) from error
    if number != count:
        raise InputError(f"key returned {number} keys for {count} states")
    if isinstance(keys, np.ndarray) and keys.dtype != object:
        rows = np.ascontiguousarray(keys)
        return [blake2b(row.tobytes(), digest_size=16).digest() for row in rows]
    for key in keys:
        try:
            hash(key)
        except TypeError as error:
            raise InputError(f"key must return hashable objects, got {key!r}") from error
    return list(keys)


def _parts(obs: Any, count: int) -> Any:
    """Return N observations as one array, or as N hashable objects."""
    if isinstance(obs, np.ndarray):
        return obs
    if isinstance(obs, list):
        return [_frozen(one) for one in obs]
    parts = obs.values() if isinstance(obs, dict) else obs
    return list(zip(*(digests(_parts(part, count), count) for part in parts), strict=True))


def _frozen(value: Any) -> Any:
    """Return a hashable object that is equal for equal values."""
    if isinstance(value, dict):
        return tuple((name, _frozen(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(part) for part in value)
    return value.tobytes() if isinstance(value, np.ndarray) else value


def _mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """Return the tree of what `function` returns for the parts of trees of dicts and tuples."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: _mapped(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(_mapped(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def stacked(observation: Any) -> Any:
    """Return an observation as a batch of one, as `PlanEnv.step_batch` returns it.

    >>> stacked({"at": 3, "told": "a"})
    {'at': array([3]), 'told': ['a']}
    """
    numbers = np.ndarray | np.generic | int | float
    return _mapped(
        lambda part: np.asarray(part)[None] if isinstance(part, numbers) else [part], observation
    )


def joined(batches: list[Any]) -> Any:
    """Return batches of observations as one batch."""

    def join(*parts: Any) -> Any:
        return list(chain(*parts)) if isinstance(parts[0], list) else np.concatenate(parts)

    return _mapped(join, *batches)


def rows_of(observations: Any, rows: Ints) -> Any:
    """Return `rows` of a batch of observations (an array, a list, or a tree of arrays and lists).

    >>> rows_of({"at": np.array([3, 4, 5]), "told": ["a", "b", "c"]}, np.array([0, 2]))
    {'at': array([3, 5]), 'told': ['a', 'c']}
    """

    def chosen(part: Any) -> Any:
        return [part[row] for row in rows] if isinstance(part, list) else part[rows]

    return _mapped(chosen, observations)

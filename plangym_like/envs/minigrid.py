"""MiniGrid and BabyAI: grids of objects, in rows of one to a few thousand bytes.

A row holds the episode as it was when it was first saved (the grid, its objects, rooms and
instructions), and what has changed since: the agent, cells, doors, objects that were moved, and
how far instructions are carried out. Steps replace such attributes and never change their values in
place, so an attribute has changed if it is another object. The objects of recent episodes are kept,
and a row of one of these episodes is restored by setting only what differs.
"""

from __future__ import annotations

import functools
import importlib.metadata
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import attrgetter, is_not
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Dict, Discrete
from minigrid.core.actions import Actions
from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall, WorldObj
from minigrid.envs.babyai.core.verifier import ActionInstr, ObjDesc, SeqInstr
from minigrid.minigrid_env import MiniGridEnv as MiniGridBase
from numpy.typing import NDArray

from plangym_like.envs.codec import Attribute, AttributeCodec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chains import CONSTANT
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.known_wrappers import visible
from plangym_like.states.rows import Row

# The longest side of a grid whose cells have numbers of 16 bits.
_WIDEST = 128
# The number of episodes whose objects are kept, up to 100 kB each.
_EPISODES = 64
# Attributes that the bytes of an episode leave out: the agent, which has fields of its own; the
# generator, which the simulator saves; and what only images need.
_AGENT = ("step_count", "agent_dir", "agent_pos")
_LEFT_OUT = frozenset(
    [*CONSTANT, *_AGENT, "_np_random", "_np_random_seed", "window", "clock", "render_size"]
)
# The attributes that steps may replace, by class.
_CHANGING: tuple[tuple[type, tuple[str, ...]], ...] = (
    (MiniGridBase, ("carrying",)),
    (Door, ("is_open", "is_locked")),
    (Key, ("init_pos", "cur_pos")),
    (Ball, ("init_pos", "cur_pos")),
    (Box, ("init_pos", "cur_pos")),
    (ObjDesc, ("obj_poss",)),
    (ActionInstr, ("lastStepMatch", "preCarrying")),
    (SeqInstr, ("a_done", "b_done")),
)
# Values of such attributes as codes of two bytes: one of these words, ...
_WORDS: tuple[Any, ...] = (None, False, True, "success", "failure", "continue")
# ... the number of an object, a list of positions, or a position of one of these kinds.
_OBJECT, _LIST, _PLACE = range(len(_WORDS), len(_WORDS) + 3)
_KINDS = ((int, int), (np.int64, np.int64), (int, np.int64), (np.int64, int))
_NUMBERS = (int, np.int64)
_ATOMS = frozenset((type(None), bool, int, float, str))
# The attributes of a grid. Python 3.11 reads the attributes of an object more slowly once its dict
# has been asked for, and each step reads those of the grid 50 times.
_GRID = tuple(sorted(vars(Grid(3, 3))))
# The usual types of values that refer to no objects of MiniGrid.
_OTHERS = _ATOMS | {np.random.Generator, Discrete, Dict, type(Actions), dict, EnvSpec}
# Most cells are empty, or hold an object without attributes that steps may replace.
_UNCHANGING = frozenset((type(None), Wall, Floor, Goal, Lava))
_NOTHING = bytes(2)
_MISSING: Any = object()
_SIZE = struct.Struct("<q")


class MiniGridCodec(AttributeCodec):
    """Saves a MiniGrid environment: the agent, the episode, and what has changed in it.

    Parameters
    ----------
    base : minigrid.minigrid_env.MiniGridEnv
        The environment, reset at least once.
    capacity : int, optional
        Bytes for the episode and its changes; by default, more than twice what they need now.
    """

    def __init__(self, base: Any, capacity: int | None) -> None:
        self._episode: Episode | None = None
        self._recent: OrderedDict[bytes, Episode] = OrderedDict()
        numbers = (*_AGENT[:2], "agent_x", "agent_y", "agent_kinds")
        own = [Attribute(name, np.int64) for name in numbers]
        self._base = base
        super().__init__(base, [*own, Attribute("episode"), Attribute("changes")], capacity)
        self.columns = {}

    def fingerprint_fields(self) -> Mapping[str, Any]:
        return {
            "class": qualified_name(type(self._base)),
            "minigrid": importlib.metadata.version("minigrid"),
            "generator": "behind the episode",
        }

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``step_count`` and ``agent_dir``, ``(N,)``, and ``agent_pos`` ``(N, 2)``."""
        fields = self.fields(payloads)
        places = np.stack([fields["agent_x"], fields["agent_y"]], axis=-1)
        return {**{name: fields[name] for name in _AGENT[:2]}, "agent_pos": places}

    def reseed(self, seed: int) -> None:
        """Do nothing: ``np_random`` is the only generator."""

    def values(self) -> Sequence[Any]:
        base, episode = self._base, self._episode
        changes = None if episode is None else episode.changes(base)
        if episode is None or changes is None:
            episode = Episode(base)
            changes = episode.changes(base)
        if self._recent.get(episode.data) is not episode:
            self._keep(episode)
        place = _place(base.agent_pos)
        if place is None or type(base.agent_dir) not in _NUMBERS:
            raise SnapshotError(
                f"the agent is at {base.agent_pos!r}, direction {base.agent_dir!r}: these are not "
                "two numbers and a number"
            )
        kinds = 2 * place[0] + _NUMBERS.index(type(base.agent_dir))
        return base.step_count, base.agent_dir, *place[1:3], kinds, episode.data, changes

    def put(self, values: Sequence[Any]) -> None:
        base, episode = self._base, self._episode
        base.step_count, direction, x, y, kinds, data, changes = values
        if episode is not None and self._recent.get(episode.data) is not episode:
            self._keep(episode)
        if episode is None or episode.data != data:
            episode = self._recent.get(data)
            episode = self._keep(Episode.decoded(base, data) if episode is None else episode)
        try:
            episode.restore(base, changes)
            base.agent_dir = _NUMBERS[kinds % 2](direction)
            base.agent_pos = _position(kinds // 2, x, y)
        except (IndexError, KeyError, TypeError, struct.error) as error:
            raise StateFormatError(f"a state row is damaged: {error!r}") from error

    def begin(self) -> None:
        """Record the state after a reset as the beginning of the episode."""
        self._episode = Episode(self._base)

    def encoded(self, values: Sequence[Any]) -> bytes:
        *_, episode, changes = values
        return b"".join((_SIZE.pack(len(episode)), episode, changes))

    def decoded(self, data: bytes, sized: Sequence[Any] = ()) -> Sequence[Any]:
        end = _SIZE.size + _SIZE.unpack_from(data)[0] if len(data) >= _SIZE.size else 0
        return data[_SIZE.size : end], data[end:]

    def clear_caches(self) -> None:
        """Drop the objects of recent episodes."""
        self._recent.clear()
        self._episode = None

    def _keep(self, episode: Episode) -> Episode:
        self._recent[episode.data] = episode
        self._recent.move_to_end(episode.data)
        if len(self._recent) > _EPISODES:
            self._recent.popitem(last=False)
        self._episode = episode
        return episode


class Episode:
    """The objects of one episode, with the values that their attributes had at first.

    A new episode is recorded at every reset, but few resets are followed by a save. So the
    constructor only finds and copies what steps may replace; all else is done when it is first
    needed.

    Parameters
    ----------
    base : minigrid.minigrid_env.MiniGridEnv
        The environment.
    attributes : dict, optional
        The environment's attributes at the beginning of the episode; by default, the present ones.
    objects : list, optional
        The environment, and all of MiniGrid's objects that its attributes refer to; by default,
        they are found.
    data : bytes, optional
        The attributes of all objects; by default, they are encoded when they are first needed.
    """

    def __init__(
        self,
        base: Any,
        attributes: dict[str, Any] | None = None,
        objects: list[Any] | None = None,
        data: bytes | None = None,
    ) -> None:
        attributes = dict(vars(base)) if attributes is None else attributes
        self._base, self._data, self._all = base, data, attributes
        self._grid: Any = attributes["grid"]
        self._cells: list[Any] = list(self._grid.grid)
        if objects is None:
            things = [*{thing: None for thing in self._cells if type(thing) not in _UNCHANGING}]
            self._found = _held_by(base, attributes, things)
            things += self._found
        else:
            self._objects, things = objects, objects[1:]
        # Each object with attributes that steps may replace, and their values.
        self._begun = [(each, read(each)) for each in things if (read := _reader(each.__class__))]

    @functools.cached_property
    def _first(self) -> list[tuple[Any, str, Any]]:
        """All attributes that steps may replace: the object, the name, and the first value."""
        base = self._base
        first = [(base, name, self._all[name]) for name in _changing(base.__class__)]
        for thing, values in self._begun:
            for name, value in zip(_changing(thing.__class__), values, strict=True):
                if value is not _MISSING:
                    # `changes` compares objects; of words that steps assign ("success"), one
                    # exists.
                    value = sys.intern(value) if type(value) is str else value
                    first.append((thing, name, value))
        return first

    @functools.cached_property
    def _objects(self) -> list[Any]:
        """The environment, its grid, what is in its cells, and then all other objects."""
        objects = (self._base, self._grid, *filter(None, self._cells), *self._found)
        return [*{id(thing): thing for thing in objects}.values()]

    @functools.cached_property
    def _attributes(self) -> dict[str, Any]:
        """The attributes of the environment that belong to the episode."""
        return _held(self._all)

    @functools.cached_property
    def _others(self) -> list[tuple[str, Any]]:
        """The attributes of the environment that steps do not replace, and their values."""
        changing = _changing(self._base.__class__)
        return [(n, value) for n, value in self._attributes.items() if n not in changing]

    @functools.cached_property
    def _numbers(self) -> dict[int, int]:
        """The number of each object, by its ``id``."""
        return {id(thing): number for number, thing in enumerate(self._objects)}

    # The bytes of an episode

    @property
    def data(self) -> bytes:
        """The attributes that all objects had at first."""
        if self._data is None:
            base, cells = self._base, self._grid.grid
            now, cells_now = dict(vars(base)), list(cells)
            values = [getattr(thing, name) for thing, name, _ in self._first]
            self.restore(base, _NOTHING)
            self._data = _encoded(self._objects)
            for (thing, name, _), value in zip(self._first, values, strict=True):
                setattr(thing, name, value)
            cells[:] = cells_now
            vars(base).clear()
            vars(base).update(now)
        return self._data

    @classmethod
    def decoded(cls, base: Any, data: bytes) -> Episode:
        """Return the episode that `data` describes, with new objects.

        Raise `StateFormatError` if the bytes are not those of an episode.
        """
        try:
            split = _SIZE.size + _SIZE.unpack_from(data)[0]
            classes, kinds = plain_data.decode(data[_SIZE.size : split])
            types = [_class(name) for name in classes]
            objects = [base, *(types[kind].__new__(types[kind]) for kind in kinds.tolist())]
            shapes, records, which = plain_data.decode(data[split:], objects)
            found: list[dict[str, Any]] = []
            for number in which.tolist():
                shape, *values = records[number]
                found.append(dict(zip(shapes[shape], values, strict=True)))
            for thing, attributes in zip(objects[1:], found[1:], strict=True):
                if isinstance(thing, Grid):
                    cells = attributes["grid"].tolist()
                    attributes["grid"] = [objects[cell] if cell else None for cell in cells]
                for name, value in attributes.items():
                    setattr(thing, name, value)
            own, held = vars(base), _held(vars(base))
            kept = {name: own[name] for name in own.keys() - held.keys()}
            return cls(base, {**kept, **found[0]}, objects, data)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise StateFormatError(f"a state row is damaged: {error!r}") from error

    # What has changed

    def changes(self, base: Any) -> bytes | None:
        """Return what has changed since the episode was first saved; ``None`` if it is another one.

        It is another one, too, if there is a new object, or a value without a code.
        """
        attributes, grid = vars(base), self._grid
        for name, value in self._others:
            if attributes.get(name) is not value:
                return None
        codes = [0]
        if grid.grid != self._cells:
            places = compress(range(len(self._cells)), map(is_not, grid.grid, self._cells))
            for place in places:
                thing = grid.grid[place]
                number = 0 if thing is None else self._numbers.get(id(thing))
                if number is None:
                    return None
                codes += (place, number)
            codes[0] = len(codes) // 2
        for number, (thing, name, first) in enumerate(self._first):
            value = getattr(thing, name)
            if value is not first:
                code = self._code(value)
                if code is None:
                    return None
                codes += (number, *code)
        return struct.pack(f"<{len(codes)}h", *codes)

    def restore(self, base: Any, changes: bytes) -> None:
        """Make this the episode of `base`, with `changes`."""
        attributes = vars(base)
        if attributes.keys() != self._all.keys():
            for name in _held(attributes).keys() - self._attributes.keys():
                del attributes[name]
        attributes.update(self._attributes)
        cells, first = self._grid.grid, self._first
        cells[:] = self._cells
        for thing, name, value in first:
            setattr(thing, name, value)
        if changes == _NOTHING:
            return
        codes, objects = struct.unpack(f"<{len(changes) // 2}h", changes), self._objects
        at = 1 + 2 * codes[0]
        for place, number in zip(codes[1:at:2], codes[2:at:2], strict=True):
            cells[place] = objects[number] if number else None
        while at < len(codes):
            thing, name, _ = first[codes[at]]
            value, at = self._value(codes, at + 1)
            setattr(thing, name, value)

    def _code(self, value: Any) -> Sequence[int] | None:
        """Return `value` as codes; ``None`` if that is not possible."""
        if value is None or type(value) in (bool, str):
            return (_WORDS.index(value),) if value in _WORDS else None
        if (number := self._numbers.get(id(value))) is not None:
            return _OBJECT, number
        if type(value) is list and {type(item) for item in value} <= {tuple}:
            places = [_place(item) for item in value]
            if all(place is not None and place[0] == 0 for place in places):
                return _LIST, len(value), *(number for item in value for number in item)
            return None
        place = _place(value)
        return None if place is None else (_PLACE + place[0], *place[1:])

    def _value(self, codes: Sequence[int], at: int) -> tuple[Any, int]:
        """Return the value that is encoded in `codes` from the index `at` on, and its end."""
        code = codes[at]
        if code < _OBJECT:
            return _WORDS[code], at + 1
        if code == _OBJECT:
            return self._objects[codes[at + 1]], at + 2
        if code == _LIST:
            end = at + 2 + 2 * codes[at + 1]
            return list(zip(codes[at + 2 : end : 2], codes[at + 3 : end : 2], strict=True)), end
        return _position(code - _PLACE, *codes[at + 1 : at + 3]), at + 3


class MiniGridSimulator(GymnasiumSimulator):
    """A simulator of one environment of MiniGrid or BabyAI.

    The arguments are as in `GymnasiumSimulator`; ``state_capacity`` is for the objects of an
    episode, too.
    """

    family = "MINI"
    checksum = True
    always_tried: ClassVar[bool] = True
    other_ways: ClassVar[tuple[str, ...]] = ("pickle", "replay")
    codec: MiniGridCodec

    def make_codec(self) -> MiniGridCodec:
        """Reset the environment, and return its codec."""
        if not isinstance(self.base, MiniGridBase):
            raise SnapshotError(
                f"{qualified_name(type(self.base))} is not an environment of MiniGrid; use "
                "plangym_like.PickledEnv for it"
            )
        if other := self._other_code():
            raise SnapshotError(
                f"{other} is not MiniGrid's, and may change anything in the grid; give "
                "snapshot='pickle'"
            )
        if max(self.base.width, self.base.height) > _WIDEST:
            raise SnapshotError(
                f"a side of the grid has more than {_WIDEST} cells: give snapshot='pickle'"
            )
        self.reset_once()
        return MiniGridCodec(self.base, self.state_capacity)

    def _other_code(self) -> str:
        """Return the name of a class that is neither MiniGrid's nor a known wrapper, if any."""
        wrappers = visible(self.env)
        others = [each for each in wrappers if type(each).__name__ in self._foreign_wrappers]
        kinds = map(type, (self.base, *others))
        names = (qualified_name(kind) for kind in kinds)
        return next((name for name in names if name.partition(".")[0] != "minigrid"), "")

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and its wrappers; without a seed, keep the random generator.

        Also record the beginning of the episode, so that rows do not depend on which of its states
        were saved.
        """
        result = super().reset(seed, options)
        self.codec.begin()
        return result

    def clear_caches(self) -> None:
        """Drop the objects of recent episodes."""
        self.codec.clear_caches()


class MiniGridEnv(FamilyEnv):
    """A `PlanEnv` of MiniGrid or BabyAI.

    >>> env = MiniGridEnv("MiniGrid-Empty-5x5-v0")
    >>> state, obs, info = env.reset(seed=0)
    >>> steps = env.step_batch([0, 1, 2], state)
    >>> env.view_state(steps.states)["agent_dir"]
    array([3, 1, 0])
    """

    simulator_class = MiniGridSimulator


def _place(value: Any) -> tuple[int, int, int] | None:
    """Return the kind of the position `value`, and its two numbers; ``None`` if it is another."""
    if type(value) is tuple and len(value) == 2:
        types = type(value[0]), type(value[1])
        return (_KINDS.index(types), int(value[0]), int(value[1])) if types in _KINDS else None
    if type(value) is np.ndarray and value.shape == (2,) and value.dtype == np.int64:
        return len(_KINDS), *value.tolist()
    return None


def _position(kind: int, x: int, y: int) -> Any:
    """Return the position of this kind, as it was given to `_place`."""
    if kind == len(_KINDS):
        return np.array([x, y])
    first, second = _KINDS[kind]
    return first(x), second(y)


def _held(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return those of an environment's `attributes` that belong to an episode, by name."""
    return {
        name: value
        for name, value in sorted(attributes.items())
        if name not in _LEFT_OUT and not isinstance(value, type)
    }


def _held_by(base: Any, attributes: dict[str, Any], things: list[Any]) -> list[Any]:
    """Return the objects that `attributes`, those of `base`, and `things` refer to, in fixed order.

    `things` are left out.
    """
    found: list[Any] = []
    seen = {id(base), id(attributes["grid"]), *map(id, things)}
    names = [n for n, v in attributes.items() if type(v) not in _OTHERS and n not in _LEFT_OUT]
    values = [attributes[name] for name in sorted(names)]
    _note_objects(values, seen, found)
    for thing in things:
        if thing.contains is not None:
            _note_objects([thing.contains], seen, found)
    for thing in found:
        if isinstance(thing, WorldObj):
            _note_objects([thing.contains], seen, found)
        else:
            owned = vars(thing)
            _note_objects([owned[name] for name in sorted(owned)], seen, found)
    return found


def _note_objects(values: list[Any], seen: set[int], found: list[Any]) -> None:
    """Append the objects in `values` that are not `seen` to `found`; append to `values`, too."""
    for value in values:
        kind: Any = value.__class__
        if kind in _ATOMS:
            continue
        if kind is list or kind is tuple:
            values += value
        elif id(value) not in seen and _is_own(kind):
            seen.add(id(value))
            found.append(value)


def _encoded(objects: list[Any]) -> bytes:
    """Return the attributes of all `objects` as bytes, each of many equal objects only once."""
    classes: dict[str, int] = {}
    shapes: dict[tuple[str, ...], int] = {}
    records: list[tuple[Any, ...]] = []
    known: dict[Any, int] = {}
    kinds, which = [], []
    numbers = {id(thing): number for number, thing in enumerate(objects)}
    for thing in objects:
        kind: Any = type(thing)
        if thing is not objects[0] and not _is_own(kind):
            raise SnapshotError(
                f"{qualified_name(kind)} is not a class of MiniGrid; give snapshot='pickle'"
            )
        if kind is Grid:
            owned = {name: getattr(thing, name) for name in _GRID}
        else:
            owned = _held(vars(thing)) if thing is objects[0] else vars(thing)
        names = tuple(sorted(owned))
        values = [owned[name] for name in names]
        if type(thing) is Grid:
            cells = [0 if cell is None else numbers[id(cell)] for cell in thing.grid]
            values[names.index("grid")] = np.array(cells, np.uint16)
        record = shapes.setdefault(names, len(shapes)), *values
        types = (*map(type, record),)
        key = (record, types) if _ATOMS.issuperset(types) else len(records)
        if key not in known:
            known[key] = len(records)
            records.append(record)
        which.append(known[key])
        kinds.append(classes.setdefault(qualified_name(type(thing)), len(classes)))
    # The decoder has the environment, so its class is left out.
    head = plain_data.encode(((*classes,), np.array(kinds[1:], np.uint16)))
    try:
        body = plain_data.encode(((*shapes,), records, np.array(which, np.uint16)), objects)
    except SnapshotError as error:
        raise SnapshotError(
            f"{error}, or was put into a list or a box after the reset; give snapshot='pickle'"
        ) from error
    return _SIZE.pack(len(head)) + head + body


@functools.cache
def _changing(kind: Any) -> tuple[str, ...]:
    """Return the attributes of objects of a class that steps may replace."""
    return tuple(n for each, names in _CHANGING if issubclass(kind, each) for n in names)


@functools.cache
def _reader(kind: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return what reads the attributes of an object that steps may replace, if there are any."""
    names = _changing(kind)
    if not names or issubclass(kind, WorldObj):
        return attrgetter(*names) if names else None  # faster; such objects have all of them
    return lambda thing: tuple(getattr(thing, name, _MISSING) for name in names)


@functools.cache
def _is_own(kind: Any) -> bool:
    return str(kind.__module__).startswith("minigrid.")


def _class(name: str) -> type:
    """Return MiniGrid's class `name`; raise `ValueError` if there is none."""
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    if not isinstance(found, type) or not _is_own(found):
        raise ValueError(f"{name} is not a class of MiniGrid")
    return found

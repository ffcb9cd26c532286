"""`CarriedState`: what a wrapper chain takes over from one episode into the next.

A replayed episode begins in a new chain. In Gymnasium, a chain is reset, and keeps what ``reset``
does not replace: the statistics of normalisers, counters of episodes, random generators of
wrappers, and settings of the environment that a wrapper has changed. So each log begins with these
values, and they are written into the new chain before it is reset.

The environment inside the wrappers begins each episode as new, unless wrappers from outside
Gymnasium may have changed it. Then a number, a text, ``None`` or a tuple of them in one of its
attributes is taken over, if the environment alone does not set this attribute in a reset and a
dozen steps.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chain_state import StateOwner, WrapperValues
from plangym_like.snapshots.chains import ATOMS, CONSTANT, innermost, links, put
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.known_wrappers import foreign_wrappers, is_known
from plangym_like.states.rows import padded

# The attributes of Gymnasium's wrappers that each reset replaces.
_RESET = frozenset(
    [
        *("_elapsed_steps", "autoreset", "episode_returns", "episode_lengths", "observation_queue"),
        *("obs_queue", "timesteps", "last_action", "is_sticky_actions", "num_repeats"),
        "repeats_taken",
    ]
)
# After so many steps, it is known which attributes an environment sets itself.
_PLAYED = 12

_Env = gymnasium.Env[Any, Any]
# The values of an object's attributes, and the names of those that it has lost.
_Part = tuple[dict[str, Any], list[str]]


class _Owners(WrapperValues):
    """The objects in the wrappers of one chain that own state, by their names.

    What the environment inside the wrappers holds in its own attributes belongs to it.
    """

    def __init__(self, env: _Env) -> None:
        held = vars(innermost(env)).values()
        self._held = {id(value) for value in held if not isinstance(value, (*ATOMS, tuple))}
        super().__init__(env)
        self.named: dict[str, StateOwner] = {}
        for owner in self.owners:
            name = owner.place
            while name in self.named:
                name += "'"
            self.named[name] = owner

    def _walk_link(self, owner: StateOwner, link: Any) -> None:
        self._links |= self._held
        super()._walk_link(owner, link)

    def states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the attributes of each owner; leave out what each reset replaces."""
        for place, owner in self.named.items():
            known = is_known(owner.locate())
            yield (
                place,
                {
                    name: value
                    for name, value in owner.items(owner.read())
                    if not (known and name in _RESET) and id(value) not in self._held
                },
            )


class CarriedState:
    """Reads what a chain takes over into the next episode, and writes it into a new chain.

    Parameters
    ----------
    first : gymnasium.Env
        A chain that has never been reset.
    used : gymnasium.Env, optional
        Another such chain. The constructor resets and steps it, to find out what resets replace.
        Without it, only `is_empty` may be read.

    Attributes
    ----------
    nbytes : int
        Bytes to reserve in each row, if the state has this size or up to twice its size.
    is_empty : bool
        Whether no wrapper has state that a reset keeps, and none can change the environment.

    Raises
    ------
    SnapshotError
        A wrapper makes an object in its first reset and keeps it in later ones, or holds state that
        cannot be kept in a row; the message names the attribute.
    """

    def __init__(self, first: _Env, used: _Env | None = None) -> None:
        self._first = _Owners(first)
        self._places = dict(self._first._references)
        foreign = bool(foreign_wrappers(first))
        self.is_empty = not foreign and not any(found for _, found in self._first.states())
        self.nbytes = 0
        # The encoded attributes that all new chains have in common, by owner.
        self._new: dict[str, dict[str, bytes]] = {}
        # Numbers and text of a new environment; the names of attributes that it sets itself, or
        # ``None`` if no wrapper may change it.
        self._settings: dict[str, bytes] = {}
        self._own: frozenset[str] | None = None
        if used is None:
            return
        other = _encoded(_Owners(used))
        for place, found in _encoded(self._first).items():
            there = other.get(place, {})
            self._new[place] = {k: data for k, data in found.items() if there.get(k) == data}
        if foreign:
            self._settings = _atoms_of(innermost(first))
            self._own = _own_names(innermost(first), innermost(used))
        self._find_objects(used)

    def _find_objects(self, used: _Env) -> None:
        """Learn which objects the first reset of wrappers makes."""
        used.reset(seed=1)
        owners = _Owners(used)
        for place, thing in owners._references.items():
            self._places.setdefault(place, thing)
        self.nbytes = padded(owners._needed(len(self.read(used) or b"")))
        made = {
            place: owner.locate()
            for place, owner in owners.named.items()
            if place not in self._first.named
        }
        if not made:
            return
        used.reset(seed=1)
        after = _Owners(used)
        for place, thing in made.items():
            owner = after.named.get(place)
            if owner is not None and owner.locate() is thing:
                raise SnapshotError(
                    f"{place} cannot be saved: the wrapper makes it in its first reset and keeps "
                    "it in later ones; make it in the constructor, or in each reset"
                )

    def read(self, env: _Env, changed: Iterable[tuple[int, str]] = ()) -> bytes | None:
        """Return what the chain `env` takes over, as bytes; ``None`` if nothing.

        Parameters
        ----------
        env : gymnasium.Env
        changed : iterable of (int, str)
            The attributes that code outside the chain has changed (see `Change`).

        Raises
        ------
        SnapshotError
            An attribute cannot be saved.
        """
        changed = sorted(changed)
        if self.is_empty and not changed:
            return None
        owners = _Owners(env)
        parts: dict[str, _Part] = {}
        for place, found in owners.states():
            new = self._new.get(place, {})
            kept = {
                k: value for k, value in found.items() if k not in new or new[k] != _data_of(value)
            }
            lost = [name for name in new if name not in found]
            if kept or lost:
                parts[place] = kept, lost
        settings = self._changed_settings(vars(innermost(env)))
        outside = _values_of(links(env), changed)
        if not parts and not settings and not outside:
            return None
        try:
            return plain_data.encode((parts, settings, outside), self._known(owners))
        except Exception as error:
            values = [owner.read() for owner in owners.owners]
            raise owners._refused(values, error) from error

    def write(self, env: _Env, data: bytes) -> set[tuple[int, str]]:
        """Write `data`, which `read` returned, into `env`, a chain that has not been reset.

        Return the attributes in it that code outside the chain has changed.

        Raises
        ------
        StateFormatError
            The bytes are damaged, or belong to another chain.
        """
        owners = _Owners(env)
        try:
            parts, settings, outside = plain_data.decode(data, self._known(owners))
            for place, (kept, lost) in parts.items():
                # An object that is missing here is made by the reset.
                if place in owners.named:
                    _write(owners.named[place], kept, lost)
            vars(innermost(env)).update(settings)
            found = links(env)
            for at, name, value in outside:
                put(found[at], name, value)
            return {(at, name) for at, name, _ in outside}
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise StateFormatError(
                f"a state row does not belong to this chain of wrappers: {error}"
            ) from error

    def _changed_settings(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return those of the environment's `attributes` that wrappers have changed."""
        if self._own is None:
            return {}
        return {
            name: value
            for name, value in attributes.items()
            if name not in self._own
            and name not in CONSTANT
            and _atom(value) not in (None, self._settings.get(name))
        }

    def _known(self, owners: _Owners) -> list[Any]:
        """Return the objects that are encoded as references, the same ones for all chains."""
        base: Any = innermost(owners._env)
        own = vars(base).get("_np_random")
        references = [owners._references.get(name, here) for name, here in self._places.items()]
        return [base if own is None else own, *references]


def _encoded(owners: _Owners) -> dict[str, dict[str, bytes]]:
    """Return the attributes that are plain data, encoded, by owner."""
    return {
        place: {k: data for k, value in found.items() if (data := _data_of(value)) is not None}
        for place, found in owners.states()
    }


def _write(owner: StateOwner, kept: dict[str, Any], lost: list[str]) -> None:
    thing = owner.locate()
    for name in lost:
        vars(thing).pop(name, None)
    for name, value in kept.items():
        target, *rest = name.split(".")
        if rest:
            setattr(getattr(thing, target), rest[0], value)
        else:
            put(thing, name, value)


def _values_of(found: list[Any], changed: list[tuple[int, str]]) -> list[tuple[int, str, Any]]:
    """Return link, name and value of each attribute that code outside the chain has changed."""
    values = [(at, name, vars(found[at])[name]) for at, name in changed if name in vars(found[at])]
    for at, name, value in values:
        if _data_of(value) is None:
            raise SnapshotError(
                f"{type(found[at]).__name__}.{name} cannot be taken over into the next episode: it "
                f"was set from outside, and is an object of class {qualified_name(type(value))}, "
                "which is not plain data; set it in reset of a wrapper"
            )
    return values


def _own_names(new: Any, used: Any) -> frozenset[str]:
    """Return the names of the attributes that an environment sets itself.

    `used` is another new environment; it is reset and stepped without wrappers. An
    attribute that differs between the two, such as the number of a connection, is counted too.
    """
    before = _atoms_of(new)
    actions = copy.deepcopy(used.action_space)
    actions.seed(0)
    with contextlib.suppress(Exception):
        used.reset(seed=0)
        for _ in range(_PLAYED):
            if any(used.step(actions.sample())[2:4]):
                break
    after = _atoms_of(used)
    return frozenset(k for k in {**before, **after} if before.get(k) != after.get(k))


def _atoms_of(env: Any) -> dict[str, bytes]:
    """Return the numbers and text in attributes of `env` and its class, encoded, by name."""
    found: dict[str, Any] = {}
    for attributes in (*map(vars, reversed(type(env).__mro__)), vars(env)):
        found.update(attributes)
    encoded = ((k, _atom(v)) for k, v in found.items() if k not in CONSTANT and k[:2] != "__")
    return {name: data for name, data in encoded if data is not None}


def _atom(value: Any) -> bytes | None:
    """Return `value`, encoded, if it is a number, text, ``None`` or a tuple of them."""
    return _data_of(value) if _is_atom(value) else None


def _is_atom(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_atom, value))
    return isinstance(value, ATOMS) and not isinstance(value, bytearray)


def _data_of(value: Any) -> bytes | None:
    try:
        return plain_data.encode(value)
    except SnapshotError:
        return None

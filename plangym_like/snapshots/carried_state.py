"""`CarriedState`: what a wrapper chain takes over from one episode into the next.

A replayed episode begins in a new chain. In Gymnasium, a chain is reset, and keeps what ``reset``
does not replace: the statistics of normalisers, counters of episodes, random generators of
wrappers, and settings of the environment that a wrapper has changed. So each log begins with these
values, and they are written into the new chain before it is reset.

The environment inside the wrappers begins each episode as new. Only those of its attributes are
taken over that its own class sets in no method but the constructor, so that somebody else has
changed them, and only numbers, text, ``None`` and tuples of them.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.row_errors import not_exiting
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chain_state import ChainState
from plangym_like.snapshots.chains import innermost, links
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.in_place import put
from plangym_like.snapshots.known_wrappers import foreign_wrappers, is_known
from plangym_like.snapshots.reachable import ATOMS
from plangym_like.snapshots.state_owner import CONSTANT, StateOwner
from plangym_like.snapshots.wrapper_state import WrapperState
from plangym_like.states import padded

# The attributes of Gymnasium's wrappers that each reset replaces.
_RESET = frozenset(
    [
        *("_elapsed_steps", "autoreset", "episode_returns", "episode_lengths", "observation_queue"),
        *("obs_queue", "timesteps", "last_action", "is_sticky_actions", "num_repeats"),
        "repeats_taken",
    ]
)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, np.generic)

_Env = gymnasium.Env[Any, Any]
# The values of an object's attributes, and the names of those that it has lost.
_Part = tuple[dict[str, Any], list[str]]


class _Owners(WrapperState):
    """The objects in the wrappers of one chain that own state, by their names.

    What the environment inside the wrappers holds in its own attributes belongs to it.
    """

    def __init__(self, env: _Env) -> None:
        self.unordered, self.strict = "", False
        held = vars(innermost(env)).values()
        self._held = {id(value) for value in held if not isinstance(value, (*ATOMS, tuple))}
        ChainState.__init__(self, env, base=False)
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
    second : gymnasium.Env or None
        Another such chain, if there can be two.

    Attributes
    ----------
    nbytes : int
        Bytes to reserve in each row, if the state has this size or up to twice its size.
    is_empty : bool
        Whether no wrapper has state that a reset keeps, and none can change the environment.

    Raises
    ------
    SnapshotError
        A wrapper holds state that cannot be kept in a row; the message names the attribute.
    """

    def __init__(self, first: _Env, second: _Env | None) -> None:
        self._first = _Owners(first)
        self._places = dict(self._first._references)
        self._settings: dict[str, bytes] = {}
        if foreign_wrappers(first):
            self._settings = _settings_of(innermost(first))
        self.is_empty = not any(found for _, found in self._first.states()) and not self._settings
        # The encoded attributes that all new chains have in common, by owner.
        self._new: dict[str, dict[str, bytes]] = {}
        if second is not None:
            other = _encoded(_Owners(second))
            for place, found in _encoded(self._first).items():
                there = other.get(place, {})
                self._new[place] = {k: data for k, data in found.items() if there.get(k) == data}
        self.nbytes = 0

    def adapt(self, used: _Env, reset_again: Callable[[], object]) -> None:
        """Learn from `used`, a chain that has been reset, which objects the first reset makes.

        Parameters
        ----------
        used : gymnasium.Env
        reset_again : callable
            Resets `used` once more; called only if the first reset made objects.

        Raises
        ------
        SnapshotError
            A wrapper makes an object in its first reset and keeps it in later ones, or holds state
            that cannot be kept in a row.
        """
        owners = _Owners(used)
        self.is_empty = self.is_empty and not any(found for _, found in owners.states())
        for place, thing in owners._references.items():
            self._places.setdefault(place, thing)
        if not self.is_empty:
            self.nbytes = padded(owners._needed(len(self.read(used) or b"")))
        made = {
            place: owner.locate()
            for place, owner in owners.named.items()
            if place not in self._first.named
        }
        if not made:
            return
        reset_again()
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
        settings = self._changed_settings(env, changed)
        if not parts and not settings:
            return None
        known = self._known(owners)
        try:
            return plain_data.encode((parts, settings), known)
        except Exception as error:
            not_exiting(error)
            for place, (kept, _) in parts.items():
                for name, value in kept.items():
                    _check(owners, f"{place}.{name}", value, known)
            raise

    def write(self, env: _Env, data: bytes) -> set[tuple[int, str]]:
        """Write `data`, which `read` returned, into `env`, a chain that has not been reset.

        Return those attributes in `changed` that were written.

        Raises
        ------
        StateFormatError
            The bytes are damaged, or belong to another chain.
        """
        owners = _Owners(env)
        try:
            parts, settings = plain_data.decode(data, self._known(owners))
            for place, (kept, lost) in parts.items():
                # An object that is missing here is made by the reset.
                if place in owners.named:
                    _write(owners.named[place], kept, lost)
            found = links(env)
            for at, name, value, _ in settings:
                put(found[at], name, value)
            return {(at, name) for at, name, _, is_outside in settings if is_outside}
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise StateFormatError(
                f"a state row does not belong to this chain of wrappers: {error}"
            ) from error

    def _changed_settings(
        self, env: _Env, changed: list[tuple[int, str]]
    ) -> list[tuple[int, str, Any, bool]]:
        """Return link, name and value of each changed setting, and whether it is in `changed`."""
        found = links(env)
        base = len(found) - 1
        attributes = vars(found[-1])
        names = [
            (base, name)
            for name, data in self._settings.items()
            if name in attributes and _data_of(attributes[name]) != data
        ]
        kept = []
        for at, name in dict.fromkeys([*changed, *names]):
            if name not in vars(found[at]):
                continue
            value = vars(found[at])[name]
            if _data_of(value) is None:
                raise SnapshotError(
                    f"{type(found[at]).__name__}.{name} cannot be taken over into the next "
                    f"episode: somebody changed it to an object of class "
                    f"{qualified_name(type(value))}, which is not plain data; set it in each reset"
                )
            kept.append((at, name, value, (at, name) in changed))
        return kept

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


def _check(owners: _Owners, place: str, value: Any, known: list[Any]) -> None:
    try:
        plain_data.encode(value, known)
    except Exception as error:
        not_exiting(error)
        raise owners._unsaveable(place, value, error) from error


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


def _settings_of(base: Any) -> dict[str, bytes]:
    """Return the encoded attributes of `base` that only other code than its own can change."""
    kind: Any = type(base)
    own = _assigned(kind)
    found = {}
    for name, value in vars(base).items():
        if name not in CONSTANT and name not in own and _is_atom(value):
            data = _data_of(value)
            if data is not None:
                found[name] = data
    return found


@functools.cache
def _assigned(kind: type) -> frozenset[str]:
    """Return the names that the methods of `kind`, except its constructor, assign on any object."""
    found = {"_np_random", "_np_random_seed"}
    for cls in kind.__mro__:
        for name, member in vars(cls).items():
            if name != "__init__":
                for code in _codes_of(member):
                    found |= {
                        step.argval
                        for step in dis.get_instructions(code)
                        if step.opname in ("STORE_ATTR", "DELETE_ATTR")
                    }
    return frozenset(found)


def _codes_of(member: Any) -> Iterator[types.CodeType]:
    """Yield the code objects of a member of a class, and those inside them."""
    if isinstance(member, property):
        todo = [part for part in (member.fget, member.fset, member.fdel) if part is not None]
    else:
        todo = [getattr(member, "__func__", member)]
    codes = [getattr(function, "__code__", None) for function in todo]
    while codes:
        code = codes.pop()
        if isinstance(code, types.CodeType):
            yield code
            codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]


def _is_atom(value: Any) -> bool:
    return all(map(_is_atom, value)) if type(value) is tuple else isinstance(value, _ATOMS)


def _is_new(data: bytes | None, value: Any) -> bool:
    return data is not None and data == _data_of(value)


def _data_of(value: Any) -> bytes | None:
    try:
        return plain_data.encode(value)
    except SnapshotError:
        return None

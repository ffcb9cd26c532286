"""`ReplayedChain`: the outermost wrapper of a replayed chain of wrappers, and its copies.

`ReplayedChain` forwards calls to the copy of the chain that is in the current state, and logs them.
So a copy changes only by what its log holds.

A replayed episode begins in a new chain. In Gymnasium, a chain is reset, and keeps what ``reset``
does not replace: the statistics of normalisers, counters of episodes, random generators of
wrappers, and settings of the environment that a wrapper has changed. So each log begins with these
values (`CarriedState`), and they are written into the new chain before it is reset.

The environment inside the wrappers begins each episode as new, unless wrappers from outside
Gymnasium may have changed it. Then a number, a text, ``None`` or a tuple of them in one of its
attributes is taken over, if the environment alone does not set this attribute in a reset and a
dozen steps.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from plangym_like.batch.simulator import as_step
from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.action_log import ActionLogFormat, Change, Start
from plangym_like.snapshots.chain_state import WrapperValues
from plangym_like.snapshots.chains import ATOMS, CONSTANT, innermost, links
from plangym_like.snapshots.configuration import is_ordinary, kind_of
from plangym_like.snapshots.known_wrappers import Forwarding, StateOwner, foreign_wrappers, is_known
from plangym_like.snapshots.replay import CachedCopy, ReplayCache
from plangym_like.snapshots.trial import while_quick
from plangym_like.states import random_state
from plangym_like.states.rows import padded

# The attributes of the proxy itself; all others belong to the current copy.
_OWN = frozenset(
    [
        *("env", "cache", "seeds_only", "_first", "_current", "_action_space"),
        *("_observation_space", "_metadata", "_cached_spec", "_saved_kwargs"),
    ]
)
# The attributes of Gymnasium's wrappers that each reset replaces.
_RESET = frozenset(
    [
        *("_elapsed_steps", "autoreset", "episode_returns", "episode_lengths", "observation_queue"),
        *("obs_queue", "timesteps", "last_action", "is_sticky_actions", "num_repeats"),
        "repeats_taken",
    ]
)

# After so many steps, it is known which attributes an environment sets itself, and which objects a
# wrapper makes late.
_PLAYED, _PLAYED_IN_WRAPPERS = 12, 3

_Env = gymnasium.Env[Any, Any]


class ReplayedChain(Forwarding):
    """Forwards calls to the copy of a wrapper chain that is in the current state.

    Parameters
    ----------
    env : gymnasium.Env
        The first copy of the chain. It must not have been reset.
    logs : ActionLogFormat

    Attributes
    ----------
    cache : ReplayCache
        The cache of all copies.
    seeds_only : bool
        Whether an episode can be repeated only from a seed, because the environment or a wrapper
        has random generators that no row holds; an unseeded reset then draws a seed.
    """

    def __init__(self, env: _Env, logs: ActionLogFormat) -> None:
        super().__init__(env)
        self.cache: ReplayCache
        self.seeds_only = False
        self._first = self._current = CachedCopy(env, logs, alive=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "env" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.env, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or isinstance(getattr(type(self), name, None), property):
            super().__setattr__(name, value)
        else:
            self._set(0, name, value)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the first link of the chain that has it, as Gymnasium does.

        The change is logged, and lasts over resets.

        Raises
        ------
        SnapshotError
            The value is not plain data.
        """
        self._ensure_copy()
        owners = [at for at, link in enumerate(links(self.env)) if hasattr(link, name)]
        if owners or force:
            self._set(owners[0] if owners else 0, name, value)
        return bool(owners or force)

    def _set(self, at: int, name: str, value: Any) -> None:
        try:
            if self._current.log:
                self.cache.log_change(self._current, Change(at, name, value))
            else:  # before the first reset, which takes the changed attributes over
                plain_data.encode(value)
        except SnapshotError as error:
            raise SnapshotError(
                f"{name} cannot be set to {kind_of(value)}, which the action log of a replayed "
                "environment cannot hold; set it in reset of a wrapper, or pass it to make"
            ) from error
        self._current.changed.add((at, name))
        setattr(links(self.env)[at], name, value)

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec of the chain, without the entry that `gymnasium.Wrapper` adds for a wrapper."""
        return self.env.spec

    @property
    def log_and_digest(self) -> tuple[bytes, bytes]:
        """`CachedCopy.reached` of the current state; it may be written into a row."""
        current = self._current
        current.is_saved = True
        return current.reached

    def keep(self) -> None:
        """Note that the current state is saved, and may be restored soon."""
        self.cache.keep(self._current)

    def try_images(self, count: int) -> bool:
        """Return whether `count` steps have the same results again after an image was put back.

        If they do not, or if there is no current state, there will be no images.
        """
        if not self._current.alive:
            return True
        space = copy.deepcopy(self.env.action_space)
        space.seed(2)
        return self.cache.try_images(self._current, (space.sample() for _ in range(count)))

    def restore(self, log: bytes, trace_digest: bytes) -> None:
        """Restore the state that `log` leads to; the replay must give `trace_digest` again."""
        before = self._current.reached
        if self._current.alive and before == (log, trace_digest):
            return
        try:
            self._show(self.cache.restore(log, trace_digest))
        except BaseException:
            # The restore may have stepped the copy that was current.
            self._current = CachedCopy(self.env, self._first.logs, before, alive=False)
            raise

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed, keep the random generator of the last episode."""
        generator = spawner = None
        if seed is None:
            self._ensure_copy()
            own: Any = vars(innermost(self.env)).get("_np_random")
            if not isinstance(own, np.random.Generator):
                own = np.random.default_rng()
            generator = random_state.save_generator(own)
            spawner = random_state.spawner_of(own)
            if self.seeds_only:
                drawn = random_state.load_generator(generator, None)
                assert drawn is not None
                seed, generator, spawner = int(drawn.integers(2**31)), None, None
        current = self._current
        carried = self.cache.carried.read(self.env, current.changed)
        is_needed = current.is_saved or not current.alive
        start = Start(seed, generator, options, spawner, carried)
        cached, obs, info = self.cache.begin(start, None if is_needed else current)
        self._show(cached)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the current copy."""
        # Each attribute of a class with `__getattr__` takes long to read.
        own = self.__dict__
        current = own["_current"]
        if not current.alive:
            self._ensure_copy()
            current = own["_current"]
        event, logs = action, current.logs
        if type(action) is not logs.number:
            # A copy: the environment may keep the action, and the caller may change it later.
            event, action = logs.action(action)
        current.image = None
        try:
            result = current.env.step(action)
            if type(result) is not tuple or len(result) != 5:
                result = as_step(result)
            current.note(event, result)
        except BaseException:
            own["cache"].discard(current)
            raise
        return result  # type: ignore[no-any-return]

    def reseed(self, seed: int) -> None:
        """Replace the random generators of the current copy with generators made from `seed`."""
        self.cache.reseed(self._current, seed)

    def renew(self) -> None:
        """Close all copies, and return to the first one, which has never been reset.

        It gets the attributes that `set_wrapper_attr` has set in the current copy.
        """
        here, there = links(self.env), links(self._first.env)
        for at, name in self._current.changed:
            setattr(there[at], name, getattr(here[at], name))
        self._first.changed |= self._current.changed
        self._show(self._first)
        self.cache.clear()

    def forget(self) -> None:
        """Close all copies, so that the next restore replays its whole log."""
        reached, changed = self._current.reached, self._current.changed
        first = self._first
        self._show(CachedCopy(first.env, first.logs, reached, alive=False, changed=changed))
        self.cache.clear()

    def render(self) -> Any:
        """Return what the current copy renders."""
        self._ensure_copy()
        return self.env.render()

    def close(self) -> None:
        """Close all copies."""
        self.cache.close()
        self._first.env.close()

    def _ensure_copy(self) -> None:
        """If the current copy has left the cache, restore another copy to the current state."""
        if not self._current.alive and self._current.log:
            self._show(self.cache.restore(self._current.log, self._current.trace_digest))

    def _show(self, cached: CachedCopy) -> None:
        # Assigned together, so that no interrupt comes between them.
        self.__dict__.update(_current=cached, env=cached.env)


# From one episode to the next


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
        while any(other.place == owner.place for other in self.owners if other is not owner):
            owner.place += "'"
        super()._walk_link(owner, link)

    def locate(self, place: str) -> Any:
        """Return the object that is called `place`; ``None`` if only a reset makes it."""
        if place in self.named:
            return self.named[place].locate()
        # In a wrapper of Gymnasium to which another wrapper has added an attribute, each object
        # owns its state; in a new one, the state is named attributes of these objects.
        outer, _, name = place.rpartition(".")
        found = getattr(self.named[outer].locate(), name, None) if outer in self.named else None
        return found if is_ordinary(type(found)) else None

    def states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the attributes of each owner; leave out what each reset replaces."""
        for place, owner in self.named.items():
            known = is_known(owner.locate())
            found = {
                name: value
                for name, value in owner.items(owner.read())
                if not (known and name in _RESET) and id(value) not in self._held
            }
            if found:
                yield place, found


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
    lost : str
        The name of an object that is not taken over although resets keep it, because a wrapper
        makes it after its construction; empty if none was found.

    Raises
    ------
    SnapshotError
        A wrapper holds state that cannot be kept in a row; the message names the attribute.
    """

    def __init__(self, first: _Env, used: _Env | None = None) -> None:
        new = _Owners(first)
        self._places = dict(new._references)
        foreign = bool(foreign_wrappers(first))
        self.is_empty = not foreign and not any(new.states())
        self.nbytes, self.lost = 0, ""
        # Numbers and text of a new environment; the names of attributes that it sets itself, or
        # ``None`` if no wrapper may change it.
        self._settings: dict[str, Any] = {}
        self._own: frozenset[str] | None = None
        if used is None:
            return
        if foreign:
            self._settings = atoms_of(innermost(first))
            self._own = own_names(innermost(used), self._settings)
        used.reset(seed=1)
        owners = _Owners(used)
        for place, thing in owners._references.items():
            self._places.setdefault(place, thing)
        self.nbytes = padded(owners._needed(len(self.read(used, ()) or b"")))
        if foreign:
            self.lost = _kept_late(new, used)

    def read(self, env: _Env, changed: Collection[tuple[int, str]]) -> bytes | None:
        """Return what the chain `env` takes over, as bytes; ``None`` if nothing.

        Parameters
        ----------
        env : gymnasium.Env
        changed : collection of (int, str)
            The attributes that `ReplayedChain.set_wrapper_attr` has set (see `Change`).

        Raises
        ------
        SnapshotError
            An attribute cannot be saved.
        """
        if self.is_empty and not changed:
            return None
        owners, found = _Owners(env), links(env)
        settings = {}
        if self._own is not None:
            settings = {
                name: value
                for name, value in atoms_of(found[-1]).items()
                if name not in self._own and not is_same(value, self._settings.get(name))
            }
        outside = [(at, name, getattr(found[at], name)) for at, name in sorted(changed)]
        parts = dict(owners.states())
        if not parts and not settings and not outside:
            return None
        try:
            return plain_data.encode((parts, settings, outside), self._known(owners))
        except Exception as error:
            values = [owner.read() for owner in owners.owners]
            raise owners._refused(values, error) from error

    def write(self, env: _Env, data: bytes) -> set[tuple[int, str]]:
        """Write `data`, which `read` returned, into `env`, a chain that has not been reset.

        Return the attributes in it that `ReplayedChain.set_wrapper_attr` has set.

        Raises
        ------
        StateFormatError
            The bytes are damaged, or belong to another chain.
        """
        owners, found = _Owners(env), links(env)
        try:
            parts, settings, outside = plain_data.decode(data, self._known(owners))
            for place, kept in parts.items():
                thing = owners.locate(place)
                if thing is not None:
                    _write(thing, kept)
            vars(found[-1]).update(settings)
            for at, name, value in outside:
                setattr(found[at], name, value)
            return {(at, name) for at, name, _ in outside}
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise StateFormatError(
                f"a state row does not belong to this chain of wrappers: {error}"
            ) from error

    def _known(self, owners: _Owners) -> list[Any]:
        """Return the objects that are encoded as references, the same ones for all chains."""
        base: Any = innermost(owners._env)
        own = vars(base).get("_np_random")
        references = [owners._references.get(name, here) for name, here in self._places.items()]
        return [base if own is None else own, *references]


def _kept_late(new: _Owners, used: _Env) -> str:
    """Return the name of an object in `used` that resets keep, and that `new` does not have.

    The name is empty if there is none. The chain `used` has been reset; it takes a few steps, is
    reset again, and takes a few more. An object whose attributes are still what they were when it
    was made is left out: another one does the same.
    """
    owners = _Owners(used)
    made = _late(new, owners)
    for _ in _steps(used, _PLAYED_IN_WRAPPERS):
        owners = _Owners(used)
        made = {**_late(new, owners), **made}
    late = {place: owners.locate(place) for place in _late(new, owners)}
    if not late:
        return ""
    used.reset(seed=2)
    owners = _Owners(used)
    kept = [place for place, thing in late.items() if owners.locate(place) is thing]
    for _ in _steps(used, _PLAYED_IN_WRAPPERS):
        pass
    now = _late(new, _Owners(used))
    return next((each for each in kept if not made[each] or now.get(each) != made[each]), "")


def _late(new: _Owners, owners: _Owners) -> dict[str, bytes]:
    """Return the attributes of the objects that `new` does not have, as bytes, by name.

    There are no bytes for attributes that cannot be saved.
    """
    found = {}
    for place, owner in owners.named.items():
        if new.locate(place) is None:
            found[place] = b""
            with contextlib.suppress(Exception):
                found[place] = owners._encode([owner.read()])
    return found


def _write(thing: Any, kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        target, _, attribute = name.partition(".")
        if attribute:
            setattr(getattr(thing, target), attribute, value)
        else:
            setattr(thing, name, value)


# What an environment sets itself


def own_names(used: Any, new: dict[str, Any]) -> frozenset[str]:
    """Return the names of the attributes with numbers or text that an environment sets itself.

    Parameters
    ----------
    used : gymnasium.Env
        The environment without wrappers. It is reset, and takes a dozen steps, or fewer if they are
        slow.
    new : dict
        What `atoms_of` returned for a new environment. An attribute that differs from it, such as
        the number of a connection, is counted too.
    """
    with contextlib.suppress(Exception):
        used.reset(seed=0)
    for _ in _steps(used, _PLAYED):
        pass
    after = atoms_of(used)
    names = {**new, **after}
    return frozenset(name for name in names if not is_same(new.get(name), after.get(name)))


def _steps(env: Any, count: int) -> Iterator[None]:
    """Take `count` steps, or fewer if they are slow, raise an error, or end the episode.

    Yield after each step.
    """
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    with contextlib.suppress(Exception):
        for _ in while_quick(range(count)):
            over = any(env.step(actions.sample())[2:4])
            yield
            if over:
                break


def atoms_of(env: Any) -> dict[str, Any]:
    """Return the numbers and text in attributes of `env`, by name."""
    return {k: value for k, value in vars(env).items() if k not in CONSTANT and _is_atom(value)}


def _is_atom(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_atom, value))
    return isinstance(value, ATOMS) and not isinstance(value, bytearray)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two numbers or texts are the same."""
    return type(one) is type(other) and bool(one == other)

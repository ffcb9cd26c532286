"""After the trial, restore the state that a wrapper chain had before its first reset.

Making a simulator resets the environment, and the trial steps it. Both change wrappers that keep
data across episodes (running statistics, counters), and advance random generators. So wrappers and
generators are restored before the user's first episode.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.ownership import releases
from plangym_like.snapshots.array_layout import copies
from plangym_like.snapshots.chains import links
from plangym_like.snapshots.configuration import FUNCTIONS, is_configuration, is_ordinary
from plangym_like.snapshots.impure_functions import held_objects
from plangym_like.snapshots.known_wrappers import TRANSPARENT
from plangym_like.snapshots.named_objects import named_objects
from plangym_like.snapshots.reachable import reachable
from plangym_like.snapshots.state_owner import CONSTANT, StateOwner, always


def restorer(env: gymnasium.Env[Any, Any], *, base: bool = False) -> Callable[[], None]:
    """Save the attributes of the wrappers of `env`; return a function that restores them.

    The function may be called several times. It also restores the environment inside the wrappers:
    all of its attributes if `base` is true, otherwise only its random generators, except
    ``np_random``. Arrays that share memory still share it afterwards. Attributes that cannot be
    copied are not restored.
    """
    *wrappers, inner = links(env)
    generators = [] if base else _generators(inner)
    wrappers = [wrapper for wrapper in wrappers if type(wrapper) not in TRANSPARENT]
    things = [*wrappers, *_held(wrappers), *([inner] if base else ())]
    # Objects in `shared` are not copied: they may refer to each other, or be compared by identity.
    named = [thing for _, thing in named_objects(env)]
    things += _never_copied(things, {id(thing) for thing in (*links(env), *named)})
    things = list({id(thing): thing for thing in things}.values())
    shared = {id(thing): thing for thing in (*links(env), *things, *named)}
    owners = [
        StateOwner(type(thing).__name__, type(thing), always(thing), None) for thing in things
    ]
    memo = shared | copies(_arrays(owner.read() for owner in owners))
    kept: list[tuple[StateOwner, dict[str, Any]]] = []
    for owner in owners:
        copied = {}
        for name, value in owner.items(owner.read()):
            try:
                within = (thing for _, thing in reachable(value, name, set(shared)))
                if is_configuration(value) or any(map(releases, within)):
                    raise TypeError(f"{name} is configuration, or releases something")
                copied[name] = copy.deepcopy(value, memo)
            except Exception:
                owner.exclude(name, value)
        kept.append((owner, copied))

    def restore() -> None:
        again = shared | copies(_arrays(copied for _, copied in kept))
        for owner, copied in kept:
            owner.write(copy.deepcopy(copied, again))
        for name, generator, put, state in generators:
            vars(inner)[name] = generator
            put(state)

    return restore


def _held(wrappers: list[Any]) -> list[Any]:
    """Return the ordinary objects that are held by functions in attributes of `wrappers`."""
    return [
        held
        for wrapper in wrappers
        for name, value in vars(wrapper).items()
        if name not in CONSTANT and isinstance(value, FUNCTIONS)
        for held in held_objects(value)
        if is_ordinary(type(held)) and not isinstance(held, gymnasium.Env)
    ]


def _never_copied(things: list[Any], seen: set[int]) -> list[Any]:
    """Return the ordinary objects in attributes of `things` that ``deepcopy`` returns uncopied.

    Objects whose ids are in `seen` are left out.
    """
    return [
        inner
        for thing in things
        for name, value in vars(thing).items()
        if name not in CONSTANT
        for _, inner in reachable(value, name, seen)
        if is_ordinary(type(inner)) and _is_own_copy(inner)
    ]


def _is_own_copy(thing: Any) -> bool:
    if not hasattr(type(thing), "__deepcopy__") or releases(thing):
        return False
    try:
        return copy.deepcopy(thing) is thing
    except Exception:
        return False


def _arrays(states: Iterable[dict[str, Any]]) -> list[NDArray[Any]]:
    """Return all arrays in `states`, which are dicts of attributes."""
    return [
        value
        for state in states
        for name, held in state.items()
        for _, value in reachable(held, name)
        if type(value) is np.ndarray
    ]


def _generators(base: Any) -> list[tuple[str, Any, Callable[[Any], None], Any]]:
    """Return name, object, setter and state of each random generator in an attribute of `base`.

    The attribute ``_np_random`` is left out. Generators are restored in place, because other
    objects may hold them too.
    """
    found: list[tuple[str, Any, Callable[[Any], None], Any]] = []
    for name, value in vars(base).items():
        if name == "_np_random" or is_configuration(value):
            continue
        if isinstance(value, np.random.Generator):
            bits: Any = value.bit_generator
            found.append((name, value, partial(setattr, bits, "state"), bits.state))
        elif isinstance(value, np.random.RandomState):
            found.append((name, value, value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            found.append((name, value, value.setstate, value.getstate()))
    return found

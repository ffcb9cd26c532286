"""What a chain of environments remembers before its first reset, to be given back after trials.

Making a simulator resets the environment, and trials and batches step it. Wrappers that remember
across episodes (running statistics, counters) would tell, and generators would go on from there:
the user's first episode has to be the first that they see.
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

from plangym_like.snapshots.array_layout import copies
from plangym_like.snapshots.configuration import (
    FUNCTIONS,
    is_configuration,
    is_handle,
    is_ordinary,
)
from plangym_like.snapshots.known_wrappers import TRANSPARENT
from plangym_like.snapshots.memory_holder import CONSTANT
from plangym_like.snapshots.outside_memory import held_objects
from plangym_like.snapshots.reachable import reachable


def fresh_memory(env: gymnasium.Env[Any, Any], *, base: bool = False) -> Callable[[], None]:
    """Return a function that gives the wrappers of `env` the attributes that they have now.

    It may be called again. Of the environment inside the wrappers, generators in attributes are
    given back; with `base`, all attributes. Arrays go on sharing memory. Attributes that cannot be
    copied stay as they are.
    """
    links: list[Any] = []
    link: Any = env
    while isinstance(link, gymnasium.Wrapper):
        links.append(link)
        link = link.env
    generators = [] if base else _generators(link)
    links += _held(links)
    # Links that point to each other must go on doing so.
    memo: dict[int, Any] = {id(thing): thing for thing in (*links, link)}
    shared = dict(memo)
    if base:
        links.append(link)
    links = list({id(thing): thing for thing in links}.values())
    memo |= copies(
        _arrays(
            (name, held)
            for thing in links
            for name, held in vars(thing).items()
            if thing is link or name not in CONSTANT
        )
    )
    kept = []
    for thing in links:
        if type(thing) in TRANSPARENT:
            continue
        attributes = {}
        for name, value in vars(thing).items():
            if (thing is not link and name in CONSTANT) or is_configuration(value):
                continue
            try:
                if is_handle(value):
                    shared[id(value)] = attributes[name] = value
                else:
                    attributes[name] = copy.deepcopy(value, memo)
            except Exception:
                continue
        kept.append((thing, attributes, set(vars(thing))))

    def give_back() -> None:
        held = (pair for _, attributes, _ in kept for pair in attributes.items())
        again = shared | copies(_arrays(held))
        for thing, attributes, names in kept:
            for name in set(vars(thing)) - names:
                if not is_handle(vars(thing)[name]):
                    del vars(thing)[name]
            vars(thing).update(copy.deepcopy(attributes, again))
        for name, generator, put, memory in generators:
            vars(link)[name] = generator
            put(memory)

    return give_back


def _held(links: list[Any]) -> list[Any]:
    """Return the ordinary objects that functions in attributes of wrappers hold."""
    return [
        held
        for thing in links
        if type(thing) not in TRANSPARENT
        for name, value in vars(thing).items()
        if name not in CONSTANT and isinstance(value, FUNCTIONS)
        for held in held_objects(value)
        if is_ordinary(type(held)) and not isinstance(held, gymnasium.Env)
    ]


def _arrays(attributes: Iterable[tuple[str, Any]]) -> list[NDArray[Any]]:
    """Return the arrays within attributes."""
    return [
        value
        for name, held in attributes
        for _, value in reachable(held, name)
        if type(value) is np.ndarray
    ]


def _generators(base: Any) -> list[tuple[str, Any, Callable[[Any], None], Any]]:
    """Return each generator in an attribute of `base`: name, itself, what restores it, its memory.

    They are restored in place, since others may hold them too.
    """
    found: list[tuple[str, Any, Callable[[Any], None], Any]] = []
    for name, value in vars(base).items():
        if name == "_np_random":
            continue
        if isinstance(value, np.random.Generator):
            bits: Any = value.bit_generator
            found.append((name, value, partial(setattr, bits, "state"), bits.state))
        elif isinstance(value, np.random.RandomState):
            found.append((name, value, value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            found.append((name, value, value.setstate, value.getstate()))
    return found

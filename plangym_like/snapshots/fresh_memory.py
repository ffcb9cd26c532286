"""What a chain of wrappers remembers before its first reset, to be given back after trying it out.

Making a simulator resets the environment once. Wrappers that remember across episodes (running
statistics, counters) would tell: the user's first episode has to be the first that they see.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from plangym_like.snapshots.array_layout import copies
from plangym_like.snapshots.configuration import is_configuration, is_handle
from plangym_like.snapshots.known_wrappers import TRANSPARENT
from plangym_like.snapshots.memory_holder import CONSTANT
from plangym_like.snapshots.reachable import reachable


def fresh_memory(env: gymnasium.Env[Any, Any], *, base: bool = False) -> Callable[[], None]:
    """Return a function that gives the wrappers of `env` the attributes that they have now.

    With `base`, the environment inside them as well. Arrays go on sharing memory. Attributes that
    cannot be copied stay as they are.
    """
    links: list[Any] = []
    link: Any = env
    while isinstance(link, gymnasium.Wrapper):
        links.append(link)
        link = link.env
    # Links that point to each other must go on doing so.
    memo: dict[int, Any] = {id(thing): thing for thing in (*links, link)}
    if base:
        links.append(link)
    arrays = [
        value
        for thing in links
        for name, held in vars(thing).items()
        if thing is link or name not in CONSTANT
        for _, value in reachable(held, name)
        if type(value) is np.ndarray
    ]
    memo |= copies(arrays)
    kept = []
    for thing in links:
        if type(thing) in TRANSPARENT:
            continue
        attributes = {}
        for name, value in vars(thing).items():
            if (thing is not link and name in CONSTANT) or is_configuration(value):
                continue
            try:
                attributes[name] = value if is_handle(value) else copy.deepcopy(value, memo)
            except Exception:
                continue
        kept.append((thing, attributes, set(vars(thing))))

    def give_back() -> None:
        for thing, attributes, names in kept:
            for name in set(vars(thing)) - names:
                if not is_handle(vars(thing)[name]):
                    del vars(thing)[name]
            vars(thing).update(attributes)

    return give_back

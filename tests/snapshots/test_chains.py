"""The walk visits each object once, in one order, under names that hold in every process."""

import functools
import weakref
from collections import deque
from typing import Any

import gymnasium

from plangym_like.snapshots.chains import reachable


class Thing:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def _names(root: Any, **options: Any) -> list[str]:
    return [place for place, _ in reachable(root, "root", **options)]


def test_places_name_attributes_keys_and_positions() -> None:
    inner = Thing()
    root = Thing(table={"a": inner, 7: [inner, Thing()]}, queue=deque([3, Thing()]), text="x")
    assert _names(root) == [
        *("root", "root.table", "root.table['a']", "root.table[7]", "root.table[7][1]"),
        *("root.queue", "root.queue[1]"),
    ]


def test_configuration_is_yielded_but_not_walked_into() -> None:
    function = functools.partial(max, [1])
    space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})
    assert _names([function, space, Thing]) == ["root", "root[0]", "root[1]", "root[2]"]


def test_circles_end_and_what_was_seen_is_left_out() -> None:
    root = Thing()
    root.me = [root]
    assert _names(root) == ["root", "root.me"]
    assert _names(root, seen={id(root.me)}) == ["root"]


class MadeUp:
    """Has no `__dict__`, and any other attribute, as a library loaded by llvmlite does."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self


def test_attributes_that_are_made_up_and_weak_proxies_are_not_walked() -> None:
    thing = Thing()
    root = {"made up": MadeUp(), "proxy": weakref.proxy(thing)}
    assert _names(root) == ["root", "root['made up']"]
    del thing
    assert _names(root) == ["root", "root['made up']"]

"""The walk visits each object once, in one order, under names that hold in every process."""

import enum
import functools
import weakref
from collections import deque
from typing import Any

import gymnasium

from plangym_like.snapshots.chains import reachable


class Colour(enum.IntEnum):
    RED = 1


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


def test_objects_without_a_name_are_numbered() -> None:
    names = _names({Thing(): Thing(), (1, Colour.RED): None})
    assert names == [
        *("root", "root.keys[0]", "root[test_chains.Thing 0]"),
        *("root.keys[1]", "root.keys[1][1]"),
    ]


def test_the_items_of_a_set_come_in_one_order() -> None:
    items = [("b", 2), ("a", 1), ("c", 3)]
    for order in (items, items[::-1]):
        found = [thing for _, thing in reachable(set(order), "root")][1:]
        assert found == sorted(items)


def test_configuration_is_yielded_but_not_walked_into() -> None:
    function = functools.partial(max, [1])
    space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})
    assert _names([function, space, Thing]) == ["root", "root[0]", "root[1]", "root[2]"]


class Walker:
    def __init__(self) -> None:
        self.legs = [Colour.RED] * 2

    def walk(self) -> None: ...


def test_a_method_leads_to_its_object() -> None:
    names = _names(Walker().walk)
    assert names == ["root", "root.__self__", "root.__self__.legs", "root.__self__.legs[0]"]


def test_circles_end_and_what_was_seen_is_left_out() -> None:
    root = Thing()
    root.me = [root]
    assert _names(root) == ["root", "root.me"]
    assert _names(root, seen={id(root.me)}) == ["root"]


def test_containers_alone() -> None:
    kept = Thing(inner=Thing())
    root = [kept, {"set": weakref.WeakSet([kept])}]
    assert _names(root, into_objects=False) == ["root", "root[0]", "root[1]", "root[1]['set']"]


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



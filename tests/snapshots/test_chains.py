"""The walk visits each object once, in one order, under names that hold in every process."""

import weakref
from typing import Any

from plangym_like.snapshots.chains import reachable


class Thing:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def _names(root: Any, **options: Any) -> list[str]:
    return [place for place, _ in reachable(root, "root", **options)]


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

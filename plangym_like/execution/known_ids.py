"""The registered ids and settings that workers need to make the same environments."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from plangym_like.processes.wire import dumps_by_value

# A function that tells whether a family handles a name, and the family.
UserFamily = tuple[Callable[[Any], bool], Callable[..., Any]]

# The families that `plangym_like.register` was given, the latest first.
user_families: list[UserFamily] = []


class KnownIds(NamedTuple):
    """The registered ids that a worker needs to make the same environments as its owner.

    Attributes
    ----------
    specs : list of EnvSpec
        The specs that are registered with Gymnasium. This includes Gymnasium's own ids, because a
        program may have registered them again, for example with another time limit.
    families : list
        The families that are registered with `plangym_like.register`.
    torch_dtype : str
        Torch's default dtype; empty if torch is not imported.
    """

    specs: list[EnvSpec]
    families: list[UserFamily]
    torch_dtype: str = ""


def known_ids(name: Any = None) -> KnownIds:
    """Return the ids that another process needs to make `name`, or any id if `name` is ``None``.

    An environment of Gymnasium itself needs only its own spec. Any other environment may make
    further environments by their ids. Specs and families that cannot be pickled are left out,
    except the spec of `name`.
    """
    torch: Any = sys.modules.get("torch")
    dtype = "" if torch is None else str(torch.get_default_dtype()).removeprefix("torch.")
    own = gymnasium.registry.get(name) if isinstance(name, str) else None
    if own is not None and not user_families and str(own.entry_point).startswith("gymnasium."):
        return KnownIds([own], [], dtype)
    known = KnownIds(list(gymnasium.registry.values()), list(user_families), dtype)
    if _is_picklable(known):
        return known
    specs = [spec for spec in known.specs if spec is own or _is_picklable(spec)]
    return KnownIds(specs, list(filter(_is_picklable, known.families)), dtype)


def _is_picklable(value: Any) -> bool:
    try:
        dumps_by_value(value)
    except Exception:  # pickling a user's class may raise any type
        return False
    return True


def know(ids: KnownIds) -> None:
    """Register `ids`, even if they are already registered for something else; set torch's dtype.

    If a package that registers these ids is imported later, Gymnasium warns that it overrides
    them. So this process ignores this warning from now on.
    """
    warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
    gymnasium.registry.update({spec.id: spec for spec in ids.specs})
    user_families[:0] = [family for family in ids.families if family not in user_families]
    if ids.torch_dtype and (ids.torch_dtype != "float32" or "torch" in sys.modules):
        torch: Any = importlib.import_module("torch")
        torch.set_default_dtype(getattr(torch, ids.torch_dtype))

"""Environments outside the known families, saved by the first method that is exact.

When an environment is made, three methods are tried in this order: the environment's own
``save_state`` and ``load_state``, a pickle of its attributes, and a replay of its actions.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from plangym_like.batch.simulator import Simulator, name_of
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.errors import (
    ChangedSettingError,
    PlangymError,
    SnapshotError,
    StateCapacityError,
)
from plangym_like.snapshots.open_libraries import close_copy
from plangym_like.snapshots.trial_outcomes import TrialOutcome, known_trials

# Method -> ``"module:class"`` of its environments, and the options that only this method takes.
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "native": ("save_load_env:OwnEnv", ()),
    "pickle": ("pickled:PickledEnv", ("allow_pickle",)),
    "replay": ("replayed:ReplayedEnv", ("replay_capacity", "live_prefixes")),
}


def auto_simulator(name: Any, **kwargs: Any) -> Simulator:
    """Return a simulator for `name`, made with the first method that is exact.

    If none is exact, the first method that works at all is used.

    See `_tried` for arguments and errors.
    """
    known = _known_simulator(name, kwargs)
    return known or _first_exact(list(WAYS), [], name, kwargs)


def wrapped_simulator(family: Callable[..., Simulator], name: Any, **kwargs: Any) -> Simulator:
    """Return ``family(name, **kwargs)``, the simulator of a family.

    If wrappers change what rows of the family do not hold, the first other method that is exact is
    used; see `_tried`.
    """
    known = _known_simulator(name, kwargs)
    if known is not None:
        return known
    try:
        return family(name, **kwargs)
    except ChangedSettingError as error:
        return _first_exact(["pickle", "replay"], [f"by native: {error}"], name, kwargs)


def _known_simulator(name: Any, kwargs: dict[str, Any]) -> Simulator | None:
    """Return a simulator made with the method that trials have chosen already, or ``None``."""
    known = known_trials().find("auto", (name, kwargs))
    if known is None:
        return None
    simulator = _make(known.way, name, kwargs)
    simulator.snapshot_note = known.note
    return simulator


def _first_exact(
    ways: list[str], reasons: list[str], name: Any, kwargs: dict[str, Any]
) -> Simulator:
    """Return a simulator whose method is chosen by trials; see `_tried`."""
    simulator = _tried(ways, reasons, name, kwargs)
    outcome = TrialOutcome("auto", simulator.snapshot_note, way=simulator.snapshot)
    known_trials().note(outcome, (name, kwargs))
    return simulator


def _tried(ways: list[str], reasons: list[str], name: Any, kwargs: dict[str, Any]) -> Simulator:
    """Return a simulator for `name`, made with the first of the methods `ways` that is exact.

    If none is exact, the first method that works at all is used.

    Parameters
    ----------
    ways : list of str
        The methods to try, in this order.
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    reasons : list of str
        Why other methods cannot be used.
    kwargs
        Arguments of the simulators. An option that belongs to one method is passed only to the
        simulator of that method.

    Raises
    ------
    SnapshotError
        No method works; the message gives the reason for each.
    """
    approximate: Simulator | None = None
    with contextlib.ExitStack() as unused:
        for way in ways:
            simulator = _attempt(way, reasons, name, kwargs)
            if simulator is None:
                continue
            simulator.snapshot_note = "; ".join([*reasons, f"{way} is the first that is exact"])
            if simulator.exactness == "exact":
                return simulator
            reasons.append(f"by {way}: only approximately, {simulator.exactness_note}")
            if approximate is None:
                approximate = simulator
                unused.callback(close_copy, simulator)
            else:
                close_copy(simulator)
        unused.pop_all()
    if approximate is None:
        listed = "\n".join(f"- {reason}" for reason in reasons)
        raise SnapshotError(
            f"{name_of(name)} cannot be saved exactly, so it cannot be planned over:\n{listed}"
        )
    approximate.snapshot_note = "; ".join([*reasons, "no method is exact"])
    return approximate


def _attempt(way: str, reasons: list[str], name: Any, kwargs: dict[str, Any]) -> Simulator | None:
    """Return a simulator for `name`, made with one method.

    Return ``None``, and add the reason to `reasons`, if the method does not work.
    """
    try:
        return _make(way, name, kwargs)
    except (SnapshotError, StateCapacityError) as error:
        reasons.append(f"by {way}: {error}")
    except Exception as error:
        # Only replay can fail because of a second copy; other errors are the user's own.
        if way != "replay" or isinstance(error, PlangymError):
            raise
        reasons.append(f"by {way}: a second copy raised {type(error).__name__}: {error}")
    return None


def _make(way: str, name: Any, kwargs: dict[str, Any]) -> Simulator:
    module, _, env_class = WAYS[way][0].partition(":")
    foreign = {option for other, (_, options) in WAYS.items() if other != way for option in options}
    found = getattr(importlib.import_module(f"plangym_like.envs.{module}"), env_class)
    own = {key: value for key, value in kwargs.items() if key not in foreign}
    simulator: Simulator = found.simulator_class(name, **own)
    return simulator


class AnyEnv(FamilyEnv):
    """A `PlanEnv` for any Gymnasium environment.

    States are saved by the first method that is found to be exact or, if none is, by the first
    method that works; see `auto_simulator`.

    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> env = AnyEnv(PendulumEnv)
    >>> env.snapshot, env.exactness
    ('pickle', 'exact')
    """

    simulator_class = staticmethod(auto_simulator)

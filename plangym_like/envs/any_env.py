"""An environment that no family claims: saved by the first way that is exact.

The ways are tried in this order: the environment's own ``save_state`` and ``load_state``, a pickle
of its attributes, its history. Each is tried out on the environment when it is made, and none is
taken on faith.
"""

from __future__ import annotations

import importlib
from typing import Any

from plangym_like.errors import SnapshotError, StateCapacityError
from plangym_like.made_env import name_of
from plangym_like.plan_env import PlanEnv
from plangym_like.simulator import Simulator

# Way -> module, simulator, and the options that no other way has.
WAYS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "native": ("own", "OwnSimulator", ()),
    "pickle": ("pickled", "PickledSimulator", ("allow_pickle",)),
    "replay": ("replayed", "ReplayedSimulator", ("replay_capacity", "live_prefixes")),
}


def any_simulator(name: Any, **kwargs: Any) -> Simulator:
    """Return the first simulator that saves `name` exactly, else the first that saves it.

    Parameters
    ----------
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    kwargs
        What the simulators take; each gets its own options.

    Raises
    ------
    SnapshotError
        There is none; the message holds what was wrong with each way.
    """
    reasons: list[str] = []
    approximate: Simulator | None = None
    for way in WAYS:
        try:
            simulator = _make(way, name, kwargs)
        except (SnapshotError, StateCapacityError) as error:
            reasons.append(f"by {way}: {error}")
            continue
        simulator.snapshot_note = "; ".join([*reasons, f"{way} is the first that is exact"])
        if simulator.exactness == "exact":
            if approximate is not None:
                approximate.close()
            return simulator
        reasons.append(f"by {way}: only approximately, {simulator.exactness_note}")
        if approximate is None:
            approximate = simulator
        else:
            simulator.close()
    if approximate is None:
        told = "\n".join(f"- {reason}" for reason in reasons)
        raise SnapshotError(
            f"{name_of(name)} cannot be saved exactly, so it cannot be planned over:\n{told}"
        )
    approximate.snapshot_note = "; ".join([*reasons, "there is no way that is exact"])
    return approximate


def _make(way: str, name: Any, kwargs: dict[str, Any]) -> Simulator:
    module, kind, _ = WAYS[way]
    foreign = {
        option for other, (*_, options) in WAYS.items() if other != way for option in options
    }
    simulator: Simulator = getattr(importlib.import_module(f"plangym_like.envs.{module}"), kind)(
        name, **{key: value for key, value in kwargs.items() if key not in foreign}
    )
    return simulator


class AnyEnv(PlanEnv):
    """Plan over whatever Gymnasium environment, saved by the first way that is exact.

    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> env = AnyEnv(PendulumEnv)
    >>> env.snapshot, env.exactness
    ('pickle', 'exact')
    """

    simulator_class = staticmethod(any_simulator)

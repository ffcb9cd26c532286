"""`FamilyEnv`: the base class of environment classes; `AnyEnv` is that of all other environments.

If an environment belongs to no family, three methods of saving its states are tried when it is
made, in this order: its own ``save_state`` and ``load_state``, a pickle of its attributes, and a
replay of its actions. The first that is exact is used. `suggest_state_attributes` says how much
faster the first would be.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np

from plangym_like.batch.simulator import Simulator
from plangym_like.env import PlanEnv
from plangym_like.envs.wrapping import as_wrappers
from plangym_like.errors import PlangymError, SnapshotError, StateCapacityError
from plangym_like.processes.child import is_worker
from plangym_like.snapshots.chains import close_copy, innermost
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.trial import TrialResult, known_trials, while_quick
from plangym_like.states.rows import Row
from plangym_like.support.arguments import name_of, unknown_option

logger = logging.getLogger("plangym_like")
# The classes that `suggest_state_attributes` has measured.
_seen: set[type] = set()
# What saving and restoring listed attributes takes, and from which gain on the hint is given.
_LISTED_SECONDS, _LEAST_GAIN = 4e-5, 1.3
# The entries of `kwargs` that `PlanEnv` takes; the simulator takes all others.
_OWN_OPTIONS = ("return_image", "audit", "audit_every", "out_of_bounds")
# Method -> ``"module:class"`` of its environments, and the options that only this method takes.
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "native": ("save_load_env:OwnEnv", ()),
    "pickle": ("pickled:PickledEnv", ("allow_pickle",)),
    "replay": ("replayed:ReplayedEnv", ("replay_capacity", "live_prefixes")),
}


class FamilyEnv(PlanEnv):
    """A `PlanEnv` without workers; its simulator is an instance of ``simulator_class``.

    Parameters
    ----------
    name : str or callable
        A registered Gymnasium id, or a callable that returns a `gymnasium.Env`.
    frameskip, autoreset, delay_setup
        As in `make`.
    fallback : callable, optional
        ``fallback(simulator_class, name, **kwargs)`` makes the simulator, which may be of another
        class if rows of the family cannot hold the wrappers, or what they change. By default, this
        is an error.
    kwargs
        Other options that `make` documents, except those of workers and ``snapshot``; arguments of
        the simulator and of the environment itself.
    """

    simulator_class: ClassVar[Callable[..., Simulator]]

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        frameskip: int | tuple[int, int] | None = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        *,
        fallback: Callable[..., Simulator] | None = None,
        **kwargs: Any,
    ) -> None:
        if "wrappers" in kwargs:  # the caller may change the list afterwards
            kwargs["wrappers"] = as_wrappers(kwargs["wrappers"])
        own = {key: kwargs[key] for key in _OWN_OPTIONS if key in kwargs}
        rest = {key: kwargs[key] for key in kwargs if key not in own}
        make: Callable[..., Simulator] = type(self).simulator_class
        if fallback is not None:
            make = partial(fallback, make)
        try:
            super().__init__(
                partial(make, name, frameskip=frameskip, **rest),
                name=name,
                autoreset=autoreset,
                delay_setup=delay_setup,
                **own,
            )
        except TypeError as error:
            unknown = unknown_option(error, rest)
            if unknown is None:
                raise
            raise unknown from error
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        if fallback is not None:
            env_kwargs["fallback"] = fallback
        self.recipe = (type(self), name, env_kwargs)


def auto_simulator(name: Any, **kwargs: Any) -> Simulator:
    """Return a simulator for `name`, made with the first method that is exact.

    If none is exact, the first method that works at all is used; see `_first_exact`.
    """
    return _known_simulator(name, kwargs) or _first_exact(list(WAYS), [], name, kwargs)


def wrapped_simulator(family: Callable[..., Simulator], name: Any, **kwargs: Any) -> Simulator:
    """Return ``family(name, **kwargs)``, the simulator of a family.

    If it cannot save the wrappers, or what they change, the first other method that is exact is
    used; see `_first_exact`.
    """
    known = _known_simulator(name, kwargs)
    if known is not None:
        return known
    try:
        return family(name, **kwargs)
    except SnapshotError as error:
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
    """Return a simulator for `name`, made with the first of the methods `ways` that is exact.

    If none is exact, the first method that works at all is used.

    Parameters
    ----------
    ways : list of str
        The methods to try, in this order.
    reasons : list of str
        Why other methods cannot be used.
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    kwargs
        Arguments of the simulators. An option that belongs to one method is passed only to the
        simulator of that method.

    Raises
    ------
    SnapshotError
        No method works; the message gives the reason for each.
    """
    chosen: Simulator | None = None
    approximate: list[Simulator] = []
    try:
        for way in ways:
            simulator = _attempt(way, reasons, name, kwargs)
            if simulator is None:
                continue
            if simulator.exactness == "exact":
                chosen, note = simulator, f"{way} is the first that is exact"
                break
            reasons.append(f"by {way}: only approximately, {simulator.exactness_note}")
            approximate.append(simulator)
        else:
            if approximate:
                chosen, note = approximate.pop(0), "no method is exact"
    finally:
        for simulator in approximate:
            close_copy(simulator)
    if chosen is None:
        listed = "\n".join(f"- {reason}" for reason in reasons)
        raise SnapshotError(
            f"{name_of(name)} cannot be saved exactly, so it cannot be planned over:\n{listed}"
        )
    chosen.snapshot_note = "; ".join([*reasons, note])
    if "native" in ways and chosen.snapshot != "native" and _declares_state(chosen):
        logger.warning("What the class declares as its state is not used: %s", reasons[0])
    result = TrialResult("auto", chosen.snapshot_note, way=chosen.snapshot)
    known_trials().note(result, (name, kwargs))
    return chosen


def _declares_state(simulator: Any) -> bool:
    """Return whether the class of the environment, or a method of it, says what its state is."""
    base = innermost(simulator.env)
    return not is_worker() and any(
        getattr(base, name, None) is not None for name in ("state_attributes", "save_state")
    )


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
    if way == "native":
        own["requires_step_states"] = False
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


# What another method would save


def suggest_state_attributes(simulator: Simulator, base: Any, saved_as: str) -> None:
    """Log how much time ``state_attributes`` would save, if that is much.

    Each class is measured once. An installed one is not, because its user cannot change it.

    Parameters
    ----------
    simulator : Simulator
        A simulator with a current state, which takes a few steps.
    base : gymnasium.Env
        The environment in it, without wrappers.
    saved_as : str
        How messages call its rows, such as ``"a pickle"``.
    """
    kind = type(base)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if is_worker() or kind in _seen or getattr(kind, "state_attributes", None) is not None:
        return
    if file.startswith(sysconfig.get_path("purelib")):
        return
    _seen.add(kind)
    row: Row = np.zeros(simulator.payload_nbytes, np.uint8)
    action = copy.deepcopy(simulator.action_space).sample()
    # If the environment raises an error, there is nothing to suggest.
    with contextlib.suppress(Exception):
        parts: list[Callable[[], Any]] = [
            lambda: simulator.read(row),
            lambda: simulator.step(action, 1),
            lambda: simulator.write(row),
        ]
        # The first time, much is done that later calls do not do.
        rounds = [[_seconds(part) for part in parts] for _ in while_quick(range(3))]
        reading, step, writing = map(min, *rounds)
        saving = reading + writing
        gain = (step + saving) / (step + _LISTED_SECONDS)
        if gain > _LEAST_GAIN:
            logger.warning(
                "%s is saved as %s. Stepping it from a state takes %.0f us here, %.0f us of them "
                "for saving and restoring. It is about %.1f times as fast if its class lists all "
                "attributes that steps and resets change, and says the dtype and shape of "
                "C-contiguous arrays: "
                "state_attributes = ['score', ('board', np.int64, (4, 4)), ...]",
                *(qualified_name(kind), saved_as),
                *(1e6 * (step + saving), 1e6 * saving, gain),
            )


def _seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun

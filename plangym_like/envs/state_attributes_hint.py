"""The hint that `make` gives to authors of an environment whose states take long to save."""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from plangym_like.batch.simulator import Simulator
from plangym_like.processes.child import is_worker
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.states.rows import Row

logger = logging.getLogger("plangym_like")
# The classes that `suggest_state_attributes` has measured.
_seen: set[type] = set()


def suggest_state_attributes(simulator: Simulator, base: Any, saved_as: str) -> None:
    """Log how much time ``state_attributes`` would save, if that is more than a step takes.

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
    if is_worker() or kind in _seen or hasattr(kind, "state_attributes"):
        return
    if file.startswith(sysconfig.get_path("purelib")):
        return
    _seen.add(kind)
    row: Row = np.zeros(simulator.payload_nbytes, np.uint8)
    action = copy.deepcopy(simulator.action_space).sample()
    # If the environment raises an error, there is nothing to suggest.
    with contextlib.suppress(Exception):
        reading = min(_seconds(lambda: simulator.read(row)) for _ in range(3))
        step = _seconds(lambda: simulator.step(action, 1))
        writing = _seconds(lambda: simulator.write(row))
        saving = reading + writing
        if saving > step:
            logger.warning(
                "%s is saved as %s. Stepping it from a state takes %.0f us here, %.0f us of them "
                "for saving and restoring. It can be up to %.1f times as fast if its class lists "
                "all attributes that steps and resets change: state_attributes = ['name', ...]",
                *(qualified_name(kind), saved_as),
                *(1e6 * (step + saving), 1e6 * saving, 1 + saving / step),
            )


def _seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun

"""Notice that lanes give other results in a worker than in the caller's process.

Workers import modules anew. If the program has changed a module after importing it (a patched
method, a class attribute, ``config.SCALE = 3``), workers do not have the change. So the caller
takes a few steps after a seeded reset, and each worker repeats them before it is used.

The comparison leaves out infos, which may hold times and process ids. Floats may differ a little,
because numerical libraries use one thread in workers and several in the caller.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from plangym_like.errors import DifferentWorkerError

# An episode has at most eight steps; after three, it ends once it has taken so many seconds.
_FEWEST_STEPS, _STEPS, _SECONDS = 3, 8, 0.05
# Of larger arrays, only so many elements are compared.
_MOST_ELEMENTS = 1024
# Differences between floats that do not count, relative to the largest element of the array, by
# the size of a float in bytes.
_TOLERANCES = {2: 1e-2, 4: 1e-5}
_TOLERANCE = 1e-6
_FIELDS = ("observation", "reward", "terminated", "truncated")


class ShortEpisode(NamedTuple):
    """The results of a few steps.

    Attributes
    ----------
    outcomes : list
        The observation of the reset; after it, the observation, reward and flags of each step.
    """

    outcomes: list[list[Any]]


def play(env: Any) -> ShortEpisode:
    """Take a few steps in `env`, like a `gymnasium.Env`, after a reset with seed 0.

    The episode ends early if the environment raises an exception.
    """
    outcomes: list[list[Any]] = []
    with global_generators_seeded(), contextlib.suppress(Exception):
        outcomes.append([_leaves(env.reset(seed=0, options=None)[0])])
        _take_steps(env.step, env.action_space, outcomes)
    return ShortEpisode(outcomes)


def _take_steps(step: Callable[[Any], Any], space: Any, outcomes: list[list[Any]]) -> None:
    """Step with random actions, and append the results to `outcomes`.

    The actions are those with which a trial begins (see `plangym_like.snapshots.trial`).
    """
    space = copy.deepcopy(space)
    space.seed(0)
    begun = time.perf_counter()
    for number in range(_STEPS):
        if number >= _FEWEST_STEPS and time.perf_counter() - begun > _SECONDS:
            break
        outcome = tuple(step(space.sample()))[:4]
        outcomes.append([_leaves(value) for value in outcome])
        if outcome[2] or outcome[3]:
            break


def check(expected: ShortEpisode, found: ShortEpisode) -> None:
    """Compare the results of a worker, `found`, with those of the caller.

    Raises
    ------
    DifferentWorkerError
        They differ.
    """
    difference = first_difference(expected, found)
    if difference is None:
        return
    place, before, after = difference
    raise DifferentWorkerError(
        "the environment gives other results in a worker than in the process that made it: after "
        f"the same actions, {place} is {after} in the worker, but {before} in that process. "
        "Probably the program has changed an imported module after the import: it patched a "
        "method, or set a class attribute or a variable of a module. Workers import modules anew. "
        "Make such changes inside the function that makes the environment, or use "
        "start_method='fork', which copies the process. Otherwise, the environment may depend on "
        "the order of a set of strings, which differs between processes unless the variable "
        "PYTHONHASHSEED is set",
        0,
        place,
        f"{before} and {after}",
    )


def first_difference(
    one: ShortEpisode, other: ShortEpisode, *, exact: bool = False
) -> tuple[str, str, str] | None:
    """Return where two episodes first differ, and both values there; ``None`` if nowhere.

    Steps that only one of them has are left out. If `exact` is false, floats may differ a little.
    """
    for step, outcomes in enumerate(zip(one.outcomes, other.outcomes, strict=False)):
        when = f"of step {step}" if step else "of the reset"
        for name, before, after in zip(_FIELDS, *outcomes, strict=False):
            for pair in zip_longest(before, after, fillvalue="nothing"):
                if (values := _difference(*pair, exact=exact)) is not None:
                    return f"the {name} {when}", *values
    return None


@contextlib.contextmanager
def global_generators_seeded() -> Iterator[None]:
    """Seed the global random generators during the block, and restore them at its end."""
    torch = sys.modules.get("torch")
    saved = random.getstate(), np.random.get_state(legacy=False)
    torch_state = None if torch is None else torch.get_rng_state()
    random.seed(0)
    np.random.seed(0)
    if torch is not None:
        torch.random.default_generator.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
        if torch is not None:
            torch.set_rng_state(torch_state)


def _leaves(value: Any) -> list[Any]:
    """Return copies of the texts and arrays in `value` that can be sent; leave out other objects.

    Keys of dicts are among them, so that other keys are a difference.
    """
    if isinstance(value, (str, bytes)):
        return [value]
    if isinstance(value, Mapping):
        keys = sorted(value, key=str)
        return [leaf for key in keys for leaf in (str(key), *_leaves(value[key]))]
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in _leaves(part)]
    if not isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return []
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return []
    apart = max(1, -(-array.size // _MOST_ELEMENTS))
    return [f"of shape {array.shape}", array.reshape(-1)[::apart].copy()]


def _difference(before: Any, after: Any, *, exact: bool) -> tuple[str, str] | None:
    """Return two leaves as texts if they differ, otherwise ``None``."""
    if not (isinstance(before, np.ndarray) and isinstance(after, np.ndarray)):
        one, other = str(before), str(after)
        return None if one == other else (one, other)
    if before.dtype.kind in "fc" or after.dtype.kind in "fc":
        finite = [part[np.isfinite(part)] for part in (before, after)]
        largest = max((float(np.abs(part).max()) for part in finite if part.size), default=0.0)
        tolerances = [_TOLERANCES.get(part.dtype.itemsize, _TOLERANCE) for part in (before, after)]
        tolerance = 0.0 if exact else max(tolerances) * largest
        same = np.isclose(before, after, rtol=0.0, atol=tolerance, equal_nan=True)
    else:
        same = before == after
    if same.all():
        return None
    place = int(np.argmin(same))
    return str(before[place]), str(after[place])

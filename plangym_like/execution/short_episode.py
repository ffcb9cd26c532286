"""Notice that an environment gives other results in a worker than in the caller's process.

Workers import modules anew. If the program has changed a module after importing it (a patched
method, a class attribute, ``config.SCALE = 3``), workers do not have the change. So the caller
plays a short episode, and each worker repeats it before it is used.

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
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import DifferentWorkerError
from plangym_like.processes.forked_copy import result_in_copy
from plangym_like.processes.messages import dumps, loads
from plangym_like.row_errors import errors_suppressed

# The caller takes at least three steps, at most eight, and after the third none after so many
# seconds.
_FEWEST_STEPS, _STEPS, _SECONDS = 3, 8, 0.05
# Of larger arrays, only so many elements are compared.
_MOST_ELEMENTS = 1024
# Differences between floats that do not count, relative to the largest element of the array.
_TOLERANCES = {2: 1e-2, 4: 1e-5}
_TOLERANCE = 1e-6
# How long a copy of this process may take to make and play an environment.
_COPY_SECONDS = 5.0
_FIELDS = ("observation", "reward", "terminated", "truncated")


class ShortEpisode(NamedTuple):
    """The results of a short episode with seed 0.

    Attributes
    ----------
    outcomes : list of list
        For the reset, the observation; for each step, the observation, reward and flags.
    text_hash : int
        The hash of a text, which differs between processes that hash strings differently.
    """

    outcomes: list[list[Any]]
    text_hash: int


def play(env: Any, most: int = _STEPS, seconds: float = _SECONDS) -> ShortEpisode:
    """Play a short episode with seed 0 in `env`, and return its results.

    The episode ends early if the environment raises an exception. The global random generators are
    the same at the end as at the beginning.

    Parameters
    ----------
    env : object
        Has ``reset``, ``step`` and ``action_space`` like a `gymnasium.Env`.
    most : int
        The maximum number of steps.
    seconds : float
        After this time, no more steps are taken than three.
    """
    episode = ShortEpisode([], hash("plangym_like"))
    with global_generators_seeded(), errors_suppressed():
        space = copy.deepcopy(env.action_space)
        space.seed(0)
        begun = time.perf_counter()
        episode.outcomes.append([_plain(env.reset(seed=0, options=None)[0])])
        for step in range(most):
            if step >= _FEWEST_STEPS and time.perf_counter() - begun > seconds:
                break
            obs, reward, terminated, truncated = tuple(env.step(space.sample()))[:4]
            episode.outcomes.append(list(map(_plain, (obs, reward, terminated, truncated))))
            if terminated or truncated:
                break
    return episode


def compare(env: Any, expected: ShortEpisode) -> None:
    """Repeat the episode `expected` of the caller in `env`, in a worker.

    Raises
    ------
    DifferentWorkerError
        The results differ.
    """
    found = play(env, len(expected.outcomes) - 1, float("inf"))
    difference = first_difference(expected, found)
    if difference is not None:
        raise _error(*difference, hashes_differ=expected.text_hash != found.text_hash)


def first_difference(one: ShortEpisode, other: ShortEpisode) -> tuple[str, str, str] | None:
    """Return where two episodes first differ, and both values there; ``None`` if nowhere."""
    for step, outcomes in enumerate(zip(one.outcomes, other.outcomes, strict=False)):
        when = f"of step {step}" if step else "of the reset"
        for name, before, after in zip(_FIELDS, *outcomes, strict=False):
            if (values := _difference(before, after)) is not None:
                return f"the {name} {when}", *values
    return None


def _error(place: str, before: str, after: str, *, hashes_differ: bool) -> DifferentWorkerError:
    hashes = (
        " Otherwise, the environment may depend on the order of a set of strings, which differs "
        "between processes unless the variable PYTHONHASHSEED is set."
    )
    return DifferentWorkerError(
        "the environment gives other results in a worker than in the process that made it: in a "
        f"short episode with seed 0, {place} is {after} in the worker, but {before} in that "
        "process. Probably the program has changed an imported module after the import: it patched "
        "a method, or set a class attribute or a variable of a module. Workers import modules "
        "anew. Make such changes inside the function that makes the environment, or use "
        f"start_method='fork', which copies the process{'.' + hashes if hashes_differ else ''}",
        0,
        place,
        f"{before} and {after}",
    )


def episode_in_copy(
    make_episode: Callable[[], ShortEpisode | None], seconds: float = _COPY_SECONDS
) -> ShortEpisode | None:
    """Return ``make_episode()``, called in a forked copy of this process.

    So no environment can harm this process. The copy is not used once JAX is imported, because
    JAX's threads make such copies hang. Return ``None`` if there is no result.
    """
    if "jax" in sys.modules:
        return None
    found = result_in_copy(lambda: dumps(make_episode()), seconds)
    return None if found is None else cast(ShortEpisode | None, loads(found))


# The results that a process uses instead of its own: on a node of a cluster, those of the driver.
_given: ContextVar[tuple[ShortEpisode | None] | None] = ContextVar("given", default=None)


def given_episode() -> tuple[ShortEpisode | None] | None:
    """Return the argument of the enclosing `episode_given` in a tuple, or ``None`` if none."""
    return _given.get()


@contextlib.contextmanager
def episode_given(expected: ShortEpisode | None) -> Iterator[None]:
    """During the block, let workers be compared with `expected`, not with this process."""
    token = _given.set((expected,))
    try:
        yield
    finally:
        _given.reset(token)


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


def _plain(value: Any) -> Any:
    """Return a copy of `value` that can be sent and compared; other objects become ``None``."""
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if not isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return None
    apart = -(-array.size // _MOST_ELEMENTS)
    return array.shape, array.reshape(-1)[:: max(1, apart)].copy()


def _difference(before: Any, after: Any) -> tuple[str, str] | None:
    """Return two different parts of the same place as text, or ``None`` if there are none."""
    if isinstance(before, tuple) and isinstance(after, tuple):
        if before[0] != after[0]:
            return f"of shape {before[0]}", f"of shape {after[0]}"
        return _difference_of_arrays(before[1], after[1])
    if type(before) is not type(after):
        return _shown(before), _shown(after)
    if isinstance(before, dict):
        if before.keys() != after.keys():
            return f"with keys {list(before)}", f"with keys {list(after)}"
        pairs = [(before[key], after[key]) for key in before]
    elif isinstance(before, list):
        if len(before) != len(after):
            return f"of length {len(before)}", f"of length {len(after)}"
        pairs = list(zip(before, after, strict=True))
    else:
        return None if before == after else (repr(before), repr(after))
    return next((found for pair in pairs if (found := _difference(*pair)) is not None), None)


def _difference_of_arrays(before: NDArray[Any], after: NDArray[Any]) -> tuple[str, str] | None:
    if before.dtype.kind in "fc" or after.dtype.kind in "fc":
        finite = [part[np.isfinite(part)] for part in (before, after)]
        largest = max((float(np.abs(part).max()) for part in finite if part.size), default=0.0)
        tolerance = max(
            _TOLERANCES.get(each.dtype.itemsize, _TOLERANCE) for each in (before, after)
        )
        same = np.isclose(before, after, rtol=0.0, atol=tolerance * largest, equal_nan=True)
    else:
        same = before == after
    if same.all():
        return None
    place = int(np.argmin(same))
    return str(before[place]), str(after[place])


def _shown(value: Any) -> str:
    return "a number" if isinstance(value, tuple) else type(value).__name__

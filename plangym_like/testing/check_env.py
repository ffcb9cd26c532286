"""`check_env`: tests whether the states of a user's environment are saved exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from plangym_like import registry
from plangym_like.constructors import ParallelEnv
from plangym_like.env import PlanEnv
from plangym_like.errors import (
    EnvApiError,
    InputError,
    ObservationError,
    PlangymError,
    RewardError,
    SnapshotError,
    StateCapacityError,
)
from plangym_like.support.arguments import as_count, name_of
from plangym_like.testing.check_context import CheckContext, DifferenceFound
from plangym_like.testing.checks import CHECKS
from plangym_like.testing.report import FailedCheck, Report


def check_env(
    env_or_name: Any,
    *,
    states: int = 16,
    steps: int = 20,
    seed: int = 0,
    workers: Sequence[int] = (1, 2, 3),
    **make_kwargs: Any,
) -> Report:
    """Test whether an environment is saved, restored and stepped exactly; report the first fault.

    The test plays random episodes without interruption. It then restores their states in random
    order and repeats the steps: in other copies, in batches, and in worker processes.
    It also tests seeds, ``dt``, resets without a seed, and Gymnasium's wrappers, and whether
    observations, rewards and flags are what Gymnasium's API and the spaces promise. It compares
    observations, rewards, flags, infos and the next states to the last bit, and stops at the first
    check that fails. Faults that show only after more steps are not found.

    Parameters
    ----------
    env_or_name : str, callable, gymnasium.Env or PlanEnv
        The first argument of `plangym_like.make`, or an environment, of which copies are made.
    states : int
        How many states to restore and continue from.
    steps : int
        How many steps to take from each state. Episodes are four times as long; if they end
        earlier, more are played. Use more steps to find rare or late faults.
    seed : int
        The seed of all episodes and actions.
    workers : sequence of int
        The numbers of worker processes to test; if empty, or if the platform is not Linux, no
        workers are started.
    make_kwargs
        Passed to `plangym_like.make`.

    Returns
    -------
    Report
        ``report.ok`` is true if no check failed; ``print(report)`` shows which check failed, where,
        and what to do.

    Examples
    --------
    >>> report = check_env("CartPole-v1", states=4, steps=5, workers=())
    >>> report.ok, report.snapshot, report.state_nbytes
    (True, 'native', 112)
    """
    states, steps = as_count("states", states), as_count("steps", steps)
    name, make, make_parallel = _makers(env_or_name, make_kwargs)
    report = Report(name)
    context = CheckContext(make, make_parallel, states, steps, seed, tuple(workers))
    try:
        try:
            env = context.fresh()
        except (SnapshotError, EnvApiError, ObservationError, RewardError) as error:
            report.failed.append(FailedCheck("made", None, "it is refused", str(error)))
            return report
        report.snapshot, report.snapshot_note = env.snapshot, env.snapshot_note
        report.exactness, report.exactness_note = env.exactness, env.exactness_note
        report.state_nbytes = env.state_nbytes
        report.passed.append("made")
        for check, run in CHECKS.items():
            try:
                if run(context):
                    report.passed.append(check)
            except DifferenceFound as failed:
                report.failed.append(FailedCheck(check, *failed.args))
                break
            except InputError:
                raise
            except PlangymError as error:
                failed_check = check
                is_unsaved = isinstance(error, SnapshotError | StateCapacityError)
                if is_unsaved and check != "wrappers":
                    # A later state cannot be saved, which is not what this check tests.
                    failed_check = "made"
                    report.passed.remove("made")
                report.failed.append(FailedCheck(failed_check, None, "it is refused", str(error)))
                break
        report.states, report.steps = len(context.chosen), context.continued
        if report.ok:
            report.save_us, report.restore_us, report.step_us = context.measure()
    finally:
        context.close()
    return report


_Makers = tuple[str, Callable[..., PlanEnv], Callable[[int], Any]]


# The checks report differences themselves, so the audit must not raise errors for them.
_OPTIONS = {"autoreset": False, "audit": "off"}


def _makers(env_or_name: Any, kwargs: dict[str, Any]) -> _Makers:
    """Return the env's name, a function that makes the env, and one to make it with workers."""
    given = env_or_name
    kind: Callable[..., PlanEnv]
    name: Any
    if isinstance(given, PlanEnv):
        if given.recipe is None:
            raise InputError(f"{given!r} cannot be copied: pass the callable that makes it")
        kind, name, own = given.recipe
        own = {**own, **_OPTIONS, **kwargs}
    else:
        name, own = given, {**_OPTIONS, **kwargs}
        if isinstance(given, gymnasium.Env):
            if given.spec is None:
                raise InputError(
                    f"{type(given).__name__} has no registered id, so no copy of it can be made: "
                    "give the callable that makes it"
                )
            name, own = given.spec.id, {**given.spec.kwargs, **own}
        kind = registry.family_of(name, own.pop("snapshot", "auto"))

    def make(wrappers: tuple[Any, ...] = ()) -> PlanEnv:
        if not wrappers:
            return kind(name, **own)
        return kind(name, **{**own, "wrappers": (*(own.get("wrappers") or ()), *wrappers)})

    def make_parallel(count: int) -> Any:
        return ParallelEnv(kind, name, n_workers=count, isolate=True, **own)

    return name_of(name), make, make_parallel

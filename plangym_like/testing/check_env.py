"""`check_env`: tests on a user's own environment whether its states are saved exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from plangym_like import registry
from plangym_like.errors import InputError, SnapshotError, StateError
from plangym_like.execution.parallel_env import ParallelEnv
from plangym_like.made_env import name_of
from plangym_like.plan_env import PlanEnv
from plangym_like.testing.promises import CHECKS, Broken, Evidence
from plangym_like.testing.report import BrokenPromise, Report
from plangym_like.testing.timing import measure
from plangym_like.testing.variations import VARIATIONS


def check_env(
    env_or_name: Any,
    *,
    states: int = 16,
    steps: int = 20,
    seed: int = 0,
    workers: Sequence[int] = (1, 2, 3),
    **make_kwargs: Any,
) -> Report:
    """Test whether an environment is saved, restored and stepped exactly, or say where it is not.

    Random episodes are played without ever stopping; then again in other copies, from states
    restored in random order, in batches, from files, in child processes; with seeds, with ``dt``,
    from resets without a seed, and in wrappers of Gymnasium's. Everything is compared to the last
    bit: observations, rewards, flags, infos, and the states that follow. It stops at the first
    promise that is broken. What shows only after more steps than are taken here is not found.

    Parameters
    ----------
    env_or_name : str, callable, gymnasium.Env or PlanEnv
        What `plangym_like.make` takes; or an env, of which clones are made.
    states : int
        How many reached states to go on from.
    steps : int
        For how many steps; the episodes are four times as long, or more of them are played. Take
        more where something rare or late may be wrong.
    seed : int
        Of everything that is random here.
    workers : sequence of int
        Numbers of child processes that have to agree; empty: none is started.
    make_kwargs
        Passed to `plangym_like.make`.

    Returns
    -------
    Report
        ``report.ok``; ``print(report)`` says what holds, what broke, where, and what to do.

    >>> report = check_env("CartPole-v1", states=4, steps=5, workers=())
    >>> report.ok, report.snapshot, report.state_nbytes
    (True, 'native', 112)
    """
    if states < 1 or steps < 1:
        raise InputError(f"states and steps are at least 1, got {states} and {steps}")
    name, make, spread = _makers(env_or_name, make_kwargs)
    report = Report(name)
    evidence = Evidence(
        make, spread, states, steps, seed, tuple(workers), wrap=lambda more: make(more)
    )
    try:
        try:
            env = evidence.fresh()
        except SnapshotError as error:
            report.broken.append(BrokenPromise("made", None, "it is refused", str(error)))
            return report
        report.snapshot, report.snapshot_note = env.snapshot, env.snapshot_note
        report.exactness, report.exactness_note = env.exactness, env.exactness_note
        report.state_nbytes = env.state_nbytes
        report.kept.append("made")
        for promise, check in {**CHECKS, **VARIATIONS}.items():
            try:
                if check(evidence):
                    report.kept.append(promise)
            except Broken as broken:
                report.broken.append(BrokenPromise(promise, *broken.args))
                break
            except (SnapshotError, StateError) as error:
                report.broken.append(BrokenPromise(promise, None, "it is refused", str(error)))
                break
        report.states, report.steps = len(evidence.chosen), evidence.continued
        if report.ok:
            report.save_us, report.restore_us, report.step_us = measure(evidence)
    finally:
        evidence.close()
    return report


_Makers = tuple[str, Callable[..., PlanEnv], Callable[[int], Any]]


# Differences are to be found and told by the checks, not raised by the audit.
_OPTIONS = {"autoreset": False, "audit": "off"}


def _makers(env_or_name: Any, kwargs: dict[str, Any]) -> _Makers:
    """Return a name, what makes an env in this process, and what makes one on so many others."""
    given = env_or_name
    if isinstance(given, ParallelEnv):
        given = given.plan_env
    if isinstance(given, PlanEnv):
        kind, own = type(given), {**given._kwargs, **_OPTIONS, **kwargs}
        name: Any = given._name
    elif isinstance(given, gymnasium.Env):
        if given.spec is None:
            raise InputError(
                f"{type(given).__name__} is of no registered id, so no copy of it can be made: "
                "give the callable that makes it"
            )
        name, own = given.spec.id, {**given.spec.kwargs, **_OPTIONS, **kwargs}
        kind = registry.family_of(name, own.pop("snapshot", "auto"))  # type: ignore[assignment]
    else:
        name, own = given, {**_OPTIONS, **kwargs}
        kind = registry.family_of(name, own.pop("snapshot", "auto"))  # type: ignore[assignment]

    def make(wrappers: tuple[Any, ...] = ()) -> PlanEnv:
        if not wrappers:
            return kind(name, **own)
        return kind(name, **{**own, "wrappers": (*(own.get("wrappers") or ()), *wrappers)})

    def spread(count: int) -> Any:
        return ParallelEnv(kind, name, n_workers=count, isolate=True, **own)

    return name_of(name), make, spread

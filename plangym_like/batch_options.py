"""Types of the keyword arguments of `PlanEnv`, by which type checkers tell what a call returns."""

from __future__ import annotations

from typing import Any, Literal, Required, TypedDict


class ResetOptions(TypedDict, total=False):
    """Options of ``reset``."""

    seed: int | None
    options: dict[str, Any] | None


class Now(TypedDict, total=False):
    """Options of a batch whose result is waited for."""

    seeds: Any
    on_error: str
    blocking: Literal[True]


class Later(TypedDict, total=False):
    """Options of a batch whose future is returned."""

    seeds: Any
    on_error: str
    blocking: Required[Literal[False]]


class Sometime(TypedDict, total=False):
    """Options of a batch that may be waited for."""

    seeds: Any
    on_error: str
    blocking: bool


class NowByDefault(Now, total=False):
    """Options of ``step_batch``, which returns states if they were given."""

    return_state: None


class NowStates(Now, total=False):
    """Options of ``step_batch`` with states."""

    return_state: Required[Literal[True]]


class NowNoStates(Now, total=False):
    """Options of ``step_batch`` without states."""

    return_state: Required[Literal[False]]


class LaterByDefault(Later, total=False):
    """Options of ``step_batch``, whose future has states if they were given."""

    return_state: None


class LaterStates(Later, total=False):
    """Options of ``step_batch`` with states in the future's result."""

    return_state: Required[Literal[True]]


class LaterNoStates(Later, total=False):
    """Options of ``step_batch`` without states in the future's result."""

    return_state: Required[Literal[False]]


class RollNow(Now, total=False):
    """Options of ``rollout_batch`` if its result is waited for."""

    return_observations: bool


class RollLater(Later, total=False):
    """Options of ``rollout_batch`` if its future is returned."""

    return_observations: bool


class RollSometime(Sometime, total=False):
    """Options of ``rollout_batch`` if it may be waited for."""

    return_observations: bool

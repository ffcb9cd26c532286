"""Types of keyword arguments of `PlanEnv`'s methods; they show type checkers what is returned."""

from __future__ import annotations

from typing import Any, Literal, Required, TypedDict


class ResetOptions(TypedDict, total=False):
    """Options of ``reset`` other than ``return_state``."""

    seed: int | None
    options: dict[str, Any] | None


class _Batch(TypedDict, total=False):
    """Options that every batch accepts."""

    seeds: Any
    on_error: str


class Now(_Batch, total=False):
    """Options of a batch with ``blocking=True``."""

    blocking: Literal[True]


class Later(_Batch, total=False):
    """Options of a batch with ``blocking=False``."""

    blocking: Required[Literal[False]]


class Sometime(_Batch, total=False):
    """Options of a batch if the value of ``blocking`` is not known statically."""

    blocking: bool


class NowByDefault(Now, total=False):
    """Options of a blocking ``step_batch`` without ``return_state``."""

    return_state: None


class NowStates(Now, total=False):
    """Options of a blocking ``step_batch`` that returns states."""

    return_state: Required[Literal[True]]


class NowNoStates(Now, total=False):
    """Options of a blocking ``step_batch`` that returns no states."""

    return_state: Required[Literal[False]]


class LaterByDefault(Later, total=False):
    """Options of a non-blocking ``step_batch`` without ``return_state``."""

    return_state: None


class LaterStates(Later, total=False):
    """Options of a non-blocking ``step_batch`` that returns states."""

    return_state: Required[Literal[True]]


class LaterNoStates(Later, total=False):
    """Options of a non-blocking ``step_batch`` that returns no states."""

    return_state: Required[Literal[False]]


class RollNow(Now, total=False):
    """Options of ``rollout_batch`` with ``blocking=True``."""

    return_observations: bool


class RollLater(Later, total=False):
    """Options of ``rollout_batch`` with ``blocking=False``."""

    return_observations: bool


class RollSometime(Sometime, total=False):
    """Options of ``rollout_batch`` if the value of ``blocking`` is not known statically."""

    return_observations: bool

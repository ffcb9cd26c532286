"""Whether plans over an environment are right, refused, noticed or silently wrong."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from plangym_like.batch import spaces
from plangym_like.errors import ImpureEnvironmentError, PlangymError
from plangym_like.snapshots.differences import difference, without_clock

STEPS = 60
ROWS, BATCH = 2000, 100


class Verdict(NamedTuple):
    """`outcome` is "right", "refused", "declared", "noticed", "raised" or "silent"."""

    outcome: str
    reason: str


class Played(NamedTuple):
    """One step: what was given, and what came of it."""

    action: Any
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def play(env: gymnasium.Env[Any, Any], plan: list[Any]) -> list[Played]:
    """Step a Gymnasium environment along `plan` after a seeded reset; it is never restored."""
    env.reset(seed=0)
    played = []
    for action in plan:
        outcome = env.step(copy.deepcopy(action))
        played.append(Played(action, *copy.deepcopy(outcome)))
        if outcome[2] or outcome[3]:
            break
    return played


def judge(
    build: Callable[[], gymnasium.Env[Any, Any]], make: Callable[[], Any], rows: int = ROWS
) -> Verdict:
    """Judge how well ``make()`` plans over the environment that ``build()`` returns.

    The truth is a copy that is stepped and never restored. Where two such copies differ, the
    environment is random beyond its seed; then rows have to agree with the env's own steps.
    """
    env = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = make()
            return _judge(build, env, rows)
    except ImpureEnvironmentError as error:
        return Verdict("noticed", str(error))
    except (PlangymError, gymnasium.error.Error) as error:
        return Verdict("refused", f"{type(error).__name__}: {error}")
    except Exception as error:
        return Verdict("raised", f"{type(error).__name__}: {error}")
    finally:
        if env is not None:
            env.close()


def _judge(build: Callable[[], Any], env: Any, rows: int) -> Verdict:
    space = copy.deepcopy(env.action_space)
    space.seed(1)
    plan = [space.sample() for _ in range(STEPS)]
    truths = []
    for _ in range(2):
        raw = build()
        truths.append(play(raw, plan))
        raw.close()
    repeats = _differences(*truths) is None
    states, own = _walk(env, plan)
    wrong = _differences(truths[0], own) if repeats else None
    later = _step_rows(env, states, truths[0] if repeats else own, rows)
    wrong = wrong or later
    if wrong is None:
        return Verdict("right", "")
    if env.exactness != "exact":
        return Verdict("declared", env.exactness_note)
    return Verdict("silent", wrong)


def _walk(env: Any, plan: list[Any]) -> tuple[list[Any], list[Played]]:
    """Step along `plan` and keep the state before each step."""
    state, _, _ = env.reset(seed=0)
    states, played = [state], []
    for action in plan:
        result = env.step(action, states[-1])
        played.append(Played(action, *result[1:]))
        states.append(result.state)
        if result.terminated or result.truncated:
            break
    return states, played


def _step_rows(env: Any, states: list[Any], expected: list[Played], rows: int) -> str | None:
    """Step the moments of an episode again, in random order; return the first difference.

    Audits may notice it later than the row that differs, so the other rows are stepped, too.
    """
    random = np.random.default_rng(2)
    count = len(expected)
    wrong = None
    for _ in range(0, rows, BATCH):
        order = random.integers(0, count, BATCH)
        actions = [expected[index].action for index in order]
        given = copy.deepcopy(actions)
        batch = env.step_batch(actions, np.stack([states[index] for index in order]))
        if difference(actions, given, "action"):
            return "the actions that were given have been changed"
        for row, index in enumerate(order):
            got = Played(
                actions[row],
                spaces.take(batch.obs, row),
                float(batch.rewards[row]),
                bool(batch.terminateds[row]),
                bool(batch.truncateds[row]),
                batch.infos[row],
            )
            if wrong is None and (
                found := _difference(env.observation_space, expected[index], got)
            ):
                wrong = f"step {index + 1}: {found}"
    return wrong


def _differences(ones: list[Played], others: list[Played]) -> str | None:
    if len(ones) != len(others):
        return f"episodes of {len(ones)} and {len(others)} steps"
    for step, (one, other) in enumerate(zip(ones, others, strict=True), 1):
        if found := _difference(None, one, other):
            return f"step {step}: {found}"
    return None


def _difference(space: Any, one: Played, other: Played) -> str | None:
    if space is not None:
        holder = spaces.empty(space, (1,))
        spaces.put(space, holder, 0, one.obs)
        one = one._replace(obs=spaces.take(holder, 0))
    for name in ("obs", "reward", "terminated", "truncated"):
        if found := difference(_value(one, name), _value(other, name), name):
            return f"{found[0]}: {found[1]}"
    found = difference(_plain(one.info), _plain(other.info), "info")
    return None if found is None else f"{found[0]} {found[1]}"


def _value(played: Played, name: str) -> Any:
    """Return a part of a step, a number as a Python float."""
    value = getattr(played, name)
    if name == "obs":
        return value
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def _plain(info: Any) -> dict[str, Any]:
    """Return an info without what batches add, its NumPy scalars as Python's."""
    left = {key: info[key] for key in info if key not in ("n_step", "dt")}
    return {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in without_clock(left).items()
    }

"""Whether an environment does the same again after its state was restored."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium

from plangym_like import random_state
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.chain_pickle import ChainPickle
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.differences import difference

_STEPS = 12
_PARTS = ("observation", "reward", "terminated", "truncated", "info")

_HIDDEN = (
    "Its state was restored in between, so it keeps some of it where no pickle finds it (in its "
    "class, its module, a space, a global generator): keep all of it in attributes, and draw from "
    "self.np_random"
)

_Outcome = tuple[Any, ...]


def try_out(env: gymnasium.Env[Any, Any], memory: ChainPickle) -> tuple[int, str]:
    """Step `env` from restored states and compare; leave it as it was.

    Returns the length of the longest snapshot, and what differs in the infos (empty: nothing).

    Raises
    ------
    SnapshotError
        An observation, a reward or a flag was another the second time; the message says which,
        and at which step.
    """
    base: Any = env.unwrapped
    original = memory.dumps()
    base._np_random = random_state.seeded_generator(0)
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(2 * _STEPS)]
    try:
        first, states = _play(env, memory, actions[:_STEPS])
        _play(env, memory, actions[_STEPS:])
        note = ""
        for start in {0, len(first) // 2}:
            memory.restore(memory.loads(states[start]))
            again, _ = _play(env, memory, actions[start:_STEPS])
            note = compare(env, first[start:], again, start, _HIDDEN) or note
    finally:
        memory.restore(memory.loads(original))
    return max(map(len, states)), note


def _play(
    env: gymnasium.Env[Any, Any], memory: ChainPickle, actions: list[Any]
) -> tuple[list[_Outcome], list[bytes]]:
    outcomes: list[_Outcome] = []
    states = [memory.dumps()]
    for action in actions:
        try:
            outcome: _Outcome = env.step(copy.deepcopy(action))
        except Exception as error:
            # Some environments take only actions that are legal now; to refuse is an outcome too.
            outcomes.append((type(error).__name__, 0.0, True, False, {}))
            break
        outcomes.append(copy.deepcopy(outcome))
        states.append(memory.dumps())
        if outcome[2] or outcome[3]:
            break
    return outcomes, states


def compare(
    env: gymnasium.Env[Any, Any],
    first: list[_Outcome],
    again: list[_Outcome],
    start: int,
    reason: str,
) -> str:
    """Return what differs in the infos of two plays from step `start` on (empty: nothing).

    Raises
    ------
    SnapshotError
        An observation, a reward or a flag differs; the message ends with `reason`.
    """
    name = qualified_name(type(env.unwrapped))
    note = ""
    for step, (before, after) in enumerate(zip(first, again, strict=False), start + 1):
        for part, one, other in zip(_PARTS, before, after, strict=True):
            found = difference(one, other, part)
            if found is None:
                continue
            place, values = found
            if part == "info":
                note = f"{place} is not the same when a step is repeated: {values}"
                continue
            raise SnapshotError(
                f"{name} does not repeat itself: the {place} of step {step} was {values} the "
                f"second time. {reason}"
            )
    if len(first) != len(again):
        raise SnapshotError(f"{name} does not repeat itself: the episode ended at another step")
    return note

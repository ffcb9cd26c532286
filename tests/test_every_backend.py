"""Any sequence of calls gives the same bytes, or the same error, on every backend.

Each backend has one environment of each kind, on which all examples are tried.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from backends import make_on
from comparing import content, reached, sampler
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation
from hypothesis import given, settings
from hypothesis import strategies as st
from small_envs import Fuse, Labelled, Letter, Levers, Nested, Pair, Parcel, Scaled, Teller

import plangym_like
from plangym_like.errors import InputError, StateError

# What a kind tries: name, arguments of `make`.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {}),
    "limited": ("Pendulum-v1", {"remove_time_limit": False, "max_episode_steps": 15}),
    "strict": ("Pendulum-v1", {"out_of_bounds": "raise", "frameskip": 2}),
    "chance": ("FrozenLake-v1", {"is_slippery": True}),
    "game": ("ALE/Pong-v5", {"obs_type": "ram", "repeat_action_probability": 0.4}),
    "nested": (Nested, {}),
    "tree": (Labelled, {}),
    "text": (Teller, {}),
    "raising": (Fuse, {}),
    "integers": (Levers, {}),
    "wrapped": ("CartPole-v1", {"wrappers": [Scaled, (FrameStackObservation, {"stack_size": 2})]}),
    "pickled": (Nested, {"snapshot": "pickle"}),
    "replayed": (Nested, {"snapshot": "replay"}),
}
if importlib.util.find_spec("mujoco"):
    KINDS["robot"] = ("Hopper-v5", {"remove_time_limit": False})
KINDS |= {"tuple": (Pair, {}), "parcel": (Parcel, {}), "letter": (Letter, {})}
# Of each way in which results come back from another machine, one.
ON_RAY = ("nested", "tree", "raising", "game")
MOST_ROWS = 9
# A method, its arguments, and whether its result is asked for after all other calls.
Call = tuple[str, dict[str, Any], bool]
BAD: dict[str, list[Any]] = {
    "actions": [None, 2.5, [[[]]], "left", 10**6, [0, 10**400], {}, [float("nan")]],
    "dt": [0, -1, 1.5, True, None, "2", 2**63, [1, 0], [[1]], []],
    "seeds": [-1, 0.5, True, "1", [None], [[1, 2]], 2**70, []],
    "on_error": ["ignore", None, True],
}


class Subject:
    """One kind of environment, here and on a backend, and what to call both with."""

    def __init__(self, name: Any, kwargs: dict[str, Any], backend: str) -> None:
        self.here, self.there = make_on("serial", name, **kwargs), make_on(backend, name, **kwargs)
        space = sampler(self.here, 0)
        self.actions = [space.sample() for _ in range(MOST_ROWS)]
        if name in (Fuse, Labelled):
            self.actions[4] = 3  # raises an error
        begun = reached(self.here, MOST_ROWS, every=2)
        later = self.here.step_batch([space.sample() for _ in begun], begun, dt=9)
        # Some of these have ended.
        self.states = np.concatenate([begun, later.states])
        with plangym_like.make("Acrobot-v1") as other:
            self.alien = other.reset(seed=0).state
        self.is_compared = False

    def close(self) -> None:
        self.here.close()
        self.there.close()

    def bad_states(self) -> list[Any]:
        """Return what is given in place of states, and is none."""
        good, flipped = list(self.states[:3]), self.states[:3].copy()
        flipped[1, 8] ^= 1
        return [
            *(None, 7, "states", {}, [None] * 3, self.alien, flipped),
            *(good[0][:-1], good[0].astype(int), [*good[:2], None], np.zeros_like(good[0])),
        ]


def _rows(draw: Any, values: Any, count: int, *, one: bool = True) -> Any:
    """Draw a value for each row, or one for all."""
    if one and draw(st.booleans()):
        return draw(values)
    return draw(st.lists(values, min_size=count, max_size=count))


def _batch(draw: Any, subject: Subject) -> tuple[str, dict[str, Any]]:
    count = draw(st.integers(0, MOST_ROWS))
    pick = st.integers(0, MOST_ROWS - 1)
    picks = draw(st.lists(pick, min_size=count, max_size=count))
    actions: Any = [subject.actions[at] for at in picks]
    given: dict[str, Any] = {}
    rollout = draw(st.booleans())
    if rollout:
        horizon = draw(st.integers(1, 4))
        actions = [[subject.actions[(at + t) % MOST_ROWS] for t in range(horizon)] for at in picks]
        given["return_observations"] = draw(st.booleans())
    elif draw(st.integers(0, 4)) == 0:
        actions = subject.actions[draw(pick)]
    if isinstance(subject.here.action_space, spaces.Box | spaces.Discrete):
        kind = draw(st.sampled_from([list, np.float32, np.float64, np.int64, np.int8]))
        # No action is more than an int8 holds: it would become one outside the space.
        actions = actions if kind is list else np.minimum(actions, 127).astype(kind)
    given["actions"] = actions
    rows = draw(st.sampled_from(["none", "one", "many", "list"]))
    if rows == "one":
        given["states"] = subject.states[draw(pick)]
    elif rows != "none":
        at = draw(st.lists(st.integers(0, 2 * MOST_ROWS - 1), min_size=count, max_size=count))
        given["states"] = subject.states[at] if rows == "many" else list(subject.states[at])
    if draw(st.booleans()):
        given["dt"] = _rows(draw, st.integers(1, 5), count)
    if draw(st.booleans()):
        seeds = _rows(draw, st.integers(0, 2**64 - 1), count)
        given["seeds"] = np.array(seeds, np.uint64) if isinstance(seeds, list) else seeds
    if draw(st.booleans()):
        given["on_error"] = draw(st.sampled_from(["raise", "mask"]))
    if not rollout:
        given["return_state"] = draw(st.sampled_from([None, True, False]))
    if draw(st.integers(0, 4)) == 0:
        wrong = draw(st.sampled_from([*BAD, "states", "lengths"]))
        if wrong == "states":
            given["states"] = draw(st.sampled_from(subject.bad_states()))
        elif wrong == "lengths":
            given["dt"] = [1] * (count + 2)
        else:
            given[wrong] = draw(st.sampled_from(BAD[wrong]))
    return "rollout_batch" if rollout else "step_batch", given


@st.composite
def calls(draw: Any, subject: Subject) -> list[Call]:
    """Draw a few calls."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["batch"] * 4 + ["step", "reset", "set_state"]))
        if kind == "batch":
            made.append((*_batch(draw, subject), draw(st.booleans())))
            continue
        given: dict[str, Any] = {}
        state = subject.states[draw(st.integers(0, 2 * MOST_ROWS - 1))]
        if kind == "step":
            given["action"] = subject.actions[draw(st.integers(0, MOST_ROWS - 1))]
            given["state"] = draw(st.sampled_from([None, state]))
            given["dt"] = draw(st.sampled_from([1, 1, 2, 0]))
        elif kind == "reset":
            given["seed"] = draw(st.sampled_from([None, 0, 7, -1]))
        else:
            given["state"] = draw(st.sampled_from([state, state[:-1], subject.alien]))
        made.append((kind, given, False))
    return made


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the bytes of a result, or an error's class and words."""
    try:
        result = call()
    except Exception as error:
        return type(error), str(error)
    if result is None:
        return None
    infos = result[-1]
    failed = getattr(infos, "failed", None)
    return type(result), content(tuple(result)), content(failed)


def _outcomes(env: Any, made: list[Call]) -> list[Any]:
    """Make all calls, and return what came of each and of the current state after it."""
    found: list[Any] = []
    pending: list[tuple[int, Any]] = []
    for name, arguments, later in made:
        if name == "reset" and env.row_stepper.current.lost:
            # Without a seed, it would draw one: the generator was lost with the state.
            arguments = {"seed": arguments["seed"] or 0}
        call = partial(getattr(env, name), **arguments)
        if not later:
            found.append(_outcome(call))
        else:
            try:
                future = call(blocking=False)
            except Exception as error:
                found.append((type(error), str(error)))
            else:
                pending.append((len(found), future))
                found.append(None)
        found.append(_outcome(lambda: (env.get_state(),)))
    for place, future in pending:
        found[place] = _outcome(future)
    return found


def _compare(subject: Subject, made: list[Call]) -> None:
    subject.is_compared = True
    for env in (subject.here, subject.there):
        env.reset(seed=5)
    expected, found = _outcomes(subject.here, made), _outcomes(subject.there, made)
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        name, arguments, _ = made[place // 2]
        what = "the current state after" if place % 2 else "the result of"
        assert one == other, f"{what} call {place // 2}: {name}({arguments})"


def _pairs() -> Iterator[Any]:
    for number, kind in enumerate(KINDS):
        for backend in ("parallel", "isolated", "ray"):
            usual = kind in ON_RAY or backend == ("parallel", "isolated")[number % 2]
            yield pytest.param(kind, backend, marks=[] if usual else [pytest.mark.full])


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """What `on_every_backend` gives it."""
    return str(request.param)


@pytest.fixture(scope="module")
def subject(kind: str, backend: str) -> Iterator[Subject]:
    """The environments of one kind."""
    name, kwargs = KINDS[kind]
    made = Subject(name, kwargs, backend)
    yield made
    # Beside workers that are slow to start, this process may step all rows.
    if made.is_compared and made.there.executor.isolated:
        assert made.there.stats.rows_sent
    made.close()


on_every_backend = pytest.mark.parametrize(
    ("kind", "backend"), list(_pairs()), indirect=True, scope="module"
)


@on_every_backend
@settings(max_examples=20)
@given(data=st.data())
def test_any_calls_do_the_same(subject: Subject, data: st.DataObject) -> None:
    _compare(subject, data.draw(calls(subject)))


@pytest.mark.full
@on_every_backend
@settings(max_examples=2000)
@given(data=st.data())
def test_very_many_calls_do_the_same(subject: Subject, data: st.DataObject) -> None:
    _compare(subject, data.draw(calls(subject)))


@on_every_backend
def test_bad_arguments_are_not_sent(subject: Subject) -> None:
    sent, actions = subject.there.stats.rows_sent, subject.actions[:3]
    good = {"actions": actions, "states": subject.states[:3]}
    cases = [{name: value} for name, values in BAD.items() for value in values]
    cases += [{"states": states} for states in subject.bad_states()[1:]]
    for case in cases:
        one, other = (
            _outcome(lambda env=env, case=case: env.step_batch(**{**good, **case}))
            for env in (subject.here, subject.there)
        )
        assert one == other, case
        assert issubclass(one[0], InputError | StateError), (case, one)
    assert subject.there.stats.rows_sent == sent

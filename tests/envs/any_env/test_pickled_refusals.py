"""The generic snapshot refuses what it cannot save, with the reason."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from dungeon import ClassCounter, Dungeon, Shy

import plangym_like
from plangym_like.envs.pickled import PickledSimulator
from plangym_like.errors import SnapshotError

pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


# What is refused


class Reduced(Dungeon):
    def __reduce__(self) -> Any:
        return Reduced, ()


class Filed(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        self.file = Path(__file__).open()  # noqa: SIM115

    def close(self) -> None:
        self.file.close()


class Threaded(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        self.workers = [threading.Thread()]


class Parts:
    """What it works with is missing from a pickle."""

    def __init__(self) -> None:
        self.rooms = memoryview(bytearray(9))

    def __getstate__(self) -> Any:
        return {}


class Incomplete(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.parts.rooms[0] = 1
        return super().reset(seed=seed)


REFUSED = {
    Shy: "Shy is an EzPickle.*from a pickle in its initial state.*write a Simulator",
    Reduced: "Reduced has its own __reduce__",
    Filed: r"Filed\.file, an object of class _io\.TextIOWrapper, cannot be pickled",
    Threaded: r"Threaded\.workers, .*cannot be pickled: the work of a thread.*state_attributes",
    ClassCounter: r"ClassCounter does not repeat itself.*the reward of step",
    Incomplete: "after it was restored from a pickle, it raised AttributeError",
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_cannot_be_saved_is_refused_with_the_reason(kind: Any) -> None:
    with pytest.raises(SnapshotError, match=f"(?s){REFUSED[kind]}"):
        PickledSimulator(kind)


def test_replay_is_used_if_a_restored_copy_works_otherwise() -> None:
    with plangym_like.make(Incomplete) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact")
        raw = Incomplete()
        raw.reset(seed=0)
        state = env.reset(seed=0).state
        for _ in range(20):
            expected = raw.step(1)
            batch = env.step_batch([1, 2, 1], state)
            assert batch.rewards[0] == batch.rewards[2] == expected[1]
            np.testing.assert_array_equal(batch.obs[0], expected[0])
            state = batch.states[0]
            if expected[2]:
                break


class Steps(gymnasium.Env):
    """At its step 50, long after the trial, it does what a subclass says."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0
        self.extra: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.extra = 0, None
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 50:
            self.extra = self.late()
        bonus = self.extra() if callable(self.extra) else 0
        return np.array([self.steps + bonus], np.float64), 1.0, False, False, {}

    def late(self) -> Any:
        raise NotImplementedError


LATE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "generator": (lambda env: (n for n in range(3)), "Late.extra, .*generator"),
    "thread": (lambda env: threading.Thread(), "Late.extra, .*thread"),
}


def play(env: Any, count: int) -> Any:
    """Return the transition of the last of `count` steps, each from a state row."""
    state = env.reset(seed=0).state
    for _ in range(count):
        step = env.step(0, state)
        state = step.state
    return step


@pytest.mark.parametrize("kind", LATE)
def test_what_cannot_be_pickled_after_the_trial_is_named_with_a_way_out(kind: str) -> None:
    late, names = LATE[kind]
    late_class = type("Late", (Steps,), {"late": late, "__module__": __name__})
    with plangym_like.make(late_class) as env:
        assert env.snapshot == "pickle"
        with pytest.raises(SnapshotError, match=f"{names}.*snapshot='replay'"):
            play(env, 60)
    with plangym_like.make(late_class, snapshot="replay") as env:
        assert env.step_batch([0], play(env, 60).state).obs[0, 0] >= 61

"""The trial when an environment is made: what it finds, that it leaves no trace, what it shares."""

import random
from collections import Counter
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import plangym_like
from plangym_like.envs.pickled import PickledSimulator
from plangym_like.envs.replayed import ReplayedSimulator
from plangym_like.errors import InputError, SnapshotError
from plangym_like.snapshots.trial import (
    KnownTrials,
    TrialResult,
    compare_outcomes,
    ends,
    known_trials,
    outcome_of,
    trials_shared,
)


class Walk(gymnasium.Env):
    """Nothing is wrong with it; its generator is first used in a step."""

    observation_space = spaces.Box(-1000, 1000, (2,), np.float64)

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.time = 0.0, 0
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.x += float(action) - 1 + float(self.np_random.normal()) + self.more()
        return np.array([self.x, self.time]), self.x, self.time > 30, False, {}

    def more(self) -> float:
        return 0.0


class Stated(Walk):
    def save_state(self) -> Any:
        return np.array([self.x, self.time])

    def load_state(self, saved: Any) -> None:
        self.x, self.time = float(saved[0]), int(saved[1])


_engine = {"x": 0.0}


class SharedEngine(Walk):
    """All copies drive one simulator, which each reset starts again."""

    def reset(self, **kwargs: Any) -> Any:
        _engine["x"] = 0.0
        return super().reset(**kwargs)

    def more(self) -> float:
        _engine["x"] += 0.25
        return _engine["x"]


class UnusedDraw(Walk):
    """Draws from a global generator, and does not use it yet."""

    def more(self) -> float:
        return float(np.random.random() < 1e-12)


class UnusedSample(Walk):
    def more(self) -> float:
        return float(self.action_space.sample() > 5)


class SeedsGlobally(Walk):
    """Seeds a global generator in each reset, and draws from it there alone."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        if seed is not None:
            random.seed(seed)
        self.x = random.random()
        return np.array([self.x, 0.0]), found[1]


class DrawsInReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(np.random.random())
        return np.array([self.x, 0.0]), {}


class UnseededGenerator(Walk):
    """Without a seed it draws from a generator of the class."""

    generators: Any = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.lucky = seed is None
        return super().reset(seed=seed)

    def more(self) -> float:
        return float(self.generators.random()) if self.lucky else 0.0


@pytest.mark.parametrize("simulator", [PickledSimulator, ReplayedSimulator])
@pytest.mark.parametrize(
    "kind, reason",
    [
        (SharedEngine, "the observation.0. of step"),
        (UnusedDraw, "draw from the global generator of numpy.random"),
    ],
)
def test_what_does_not_repeat_itself_is_refused(simulator: Any, kind: Any, reason: str) -> None:
    with pytest.raises(SnapshotError, match=f"(?s)does not repeat itself.*{reason}"):
        simulator(kind)


def test_episodes_without_a_seed_are_tried_too() -> None:
    with pytest.raises(SnapshotError, match="does not repeat itself: the observation.0. of step"):
        PickledSimulator(UnseededGenerator)
    # A history begins with a seed that was drawn for it.
    env = plangym_like.make(UnseededGenerator)
    assert (env.snapshot, env.exactness) == ("replay", "exact")
    state = env.reset().state
    assert len(np.unique(env.step_batch([1] * 4, state).rewards)) == 1


def test_a_sample_of_the_environments_own_space_is_found_though_it_changes_nothing() -> None:
    reason = "draw from the generator of UnusedSample.action_space"
    with pytest.raises(SnapshotError, match=reason):
        PickledSimulator(UnusedSample)


def test_a_reset_that_seeds_the_global_generator_is_right() -> None:
    for make in (PickledSimulator, ReplayedSimulator):
        assert make(SeedsGlobally).exactness == "exact"


def test_a_reset_that_ignores_its_seed_is_said() -> None:
    env = plangym_like.make(DrawsInReset)
    assert (env.snapshot, env.exactness) == ("pickle", "approximate")
    assert "an episode with a seed is not the same in another copy" in env.exactness_note
    assert "It draws from the global generator of numpy.random" in env.exactness_note


def test_an_info_of_few_values_that_is_drawn_in_resets_is_always_found() -> None:
    class DrawsAFewInfos(Walk):
        def reset(self, **given: Any) -> Any:
            obs, info = super().reset(**given)
            return obs, {**info, "guess": random.randrange(5)}

    for _ in range(5):
        with plangym_like.make(DrawsAFewInfos) as env:
            assert env.exactness == "approximate"


@pytest.mark.parametrize(
    ("kind", "snapshot"),
    [(CartPoleEnv, "native"), (Stated, "native"), (Walk, "pickle"), (Walk, "replay")],
)
def test_numbers_that_another_thread_draws_while_an_environment_is_made_are_drawn_once(
    monkeypatch: pytest.MonkeyPatch, kind: Any, snapshot: str
) -> None:
    reset, drawn = kind.reset, []

    def interrupted(self: Any, **kwargs: Any) -> Any:
        if not drawn:  # another thread draws meanwhile
            drawn.append((random.random(), np.random.random()))
        return reset(self, **kwargs)

    monkeypatch.setattr(kind, "reset", interrupted)
    name = "CartPole-v1" if kind is CartPoleEnv else kind
    plangym_like.make(name, snapshot=snapshot).close()
    assert drawn and (random.random(), np.random.random()) not in drawn


class Counted(Walk):
    """Counts the calls of all copies."""

    calls: ClassVar[Counter[str]] = Counter()

    def reset(self, **kwargs: Any) -> Any:
        self.calls["reset"] += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.calls["step"] += 1
        return super().step(action)


class CountedStates(Counted, Stated):
    pass


class Unchanged(gymnasium.Wrapper):
    pass


# Whether there is a wrapper with foreign code, and how states are saved: the steps and resets.
QUICK = {"native": (24, 8), "pickle": (38, 7), "replay": (60, 10), "wrapped replay": (105, 16)}
SLOW = {"native": (10, 8), "pickle": (15, 7), "replay": (21, 10), "wrapped replay": (33, 16)}


@pytest.mark.parametrize(("seconds", "most"), [(1e9, QUICK), (0.0, SLOW)], ids=["quick", "slow"])
@pytest.mark.parametrize("case", QUICK)
def test_making_takes_no_more_steps_and_resets_than_the_documentation_says(
    monkeypatch: pytest.MonkeyPatch, case: str, seconds: float, most: Any
) -> None:
    monkeypatch.setattr("plangym_like.snapshots.trial.SECONDS", seconds)
    # The first environment of a class is also measured, to suggest `state_attributes`.
    monkeypatch.setattr("plangym_like.envs.family_env._seen", set())
    Counted.calls.clear()
    wrapped, _, snapshot = case.rpartition(" ")
    wrappers = [Unchanged] if wrapped else []
    with plangym_like.make(CountedStates, snapshot=snapshot, wrappers=wrappers) as env:
        assert env.exactness == "exact"
    steps, resets = most[case]
    assert Counted.calls["step"] <= steps
    assert Counted.calls["reset"] <= resets


@pytest.mark.parametrize("snapshot", ["auto", "pickle", "replay"])
@pytest.mark.parametrize("kind", [Walk, Stated])
def test_a_generator_that_was_never_used_is_in_the_rows(kind: Any, snapshot: str) -> None:
    env = plangym_like.make(kind, snapshot=snapshot)
    state = env.reset().state
    batch = env.step_batch([1] * 6, state)
    assert len(np.unique(batch.rewards)) == 1
    other = plangym_like.make(kind, snapshot=snapshot)
    assert other.reset().obs[1] == 0
    assert not np.array_equal(other.step(1)[0], batch.obs[0]), "all begin with the same generator"


@pytest.mark.parametrize("snapshot", ["auto", "native", "pickle", "replay"])
def test_a_callable_that_returns_one_object_is_refused(snapshot: str) -> None:
    one = Stated()
    with pytest.raises(InputError, match="returns the same environment each time"):
        plangym_like.make(lambda: one, snapshot=snapshot)


class OnlyOne(Stated):
    """Of which there can be one at a time; it counts its episodes."""

    living: ClassVar[int] = 0
    episodes = 0

    def __init__(self) -> None:
        if OnlyOne.living:
            raise RuntimeError("there is one already")
        OnlyOne.living = 1
        self.x, self.time = 0.0, 0
        super().__init__()

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        obs, info = super().reset(**kwargs)
        return obs, {**info, "episodes": self.episodes}

    def save_state(self) -> Any:
        return [self.x, self.time, self.episodes]

    def load_state(self, saved: Any) -> None:
        self.x, self.time, self.episodes = saved

    def close(self) -> None:
        OnlyOne.living = 0


@pytest.mark.parametrize("snapshot", ["native", "pickle"])
def test_an_only_environment_repeats_its_own_episodes(snapshot: str) -> None:
    with plangym_like.make(OnlyOne, snapshot=snapshot) as env:
        assert env.exactness == "exact"
        assert env.reset(seed=0).info == {"episodes": 1}
        env.step(2)
        state = env.get_state()
        batch = env.step_batch([1, 1, 0], state)
        assert batch.rewards[0] == batch.rewards[1] == env.step(1).reward
    assert not OnlyOne.living


# Outcomes of steps

SEEN = np.zeros(2)


def step(action: Any) -> tuple[Any, ...]:
    SEEN[0] += 1
    action.append(1)
    episode = {"r": 1.0, "l": 2, "t": SEEN[0]}
    return SEEN, 1.0, False, SEEN[0] > 2, {"episode": episode}


def test_an_outcome_belongs_to_the_caller() -> None:
    action: list[int] = []
    outcome = outcome_of(step, action)
    later = outcome_of(step, action)
    assert action == [] and not ends(outcome)
    assert outcome[0][0] == later[0][0] - 1
    assert outcome[4] == {"episode": {"r": 1.0, "l": 2}}
    assert compare_outcomes(outcome, later) == ("observation[0]", "1.0 and 2.0")
    assert compare_outcomes(outcome, outcome) is None
    assert ends(outcome_of(step, action))


# Results of trials are shared in a block, by kind and arguments

RESULT = TrialResult("Kind", "a note")


def test_blocks_inside_each_other_share_and_others_do_not() -> None:
    with trials_shared() as outer, trials_shared() as inner:
        assert inner is outer
        known_trials().note(RESULT, ())
        assert known_trials().find("Kind", ()) == RESULT
        with trials_shared(KnownTrials()):
            assert known_trials().find("Kind", ()) is None
    assert known_trials().find("Kind", ()) is None

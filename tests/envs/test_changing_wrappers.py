"""Wrappers that change their environment: equal to Gymnasium, refused, or noticed; never silent."""

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import changing_wrappers as changing
import gymnasium
import numpy as np
import pytest
from conftest import in_workers_too
from gymnasium.vector import SyncVectorEnv
from suite import CLIFF
from usual import first_of

import plangym_like
from plangym_like import registry
from plangym_like.errors import ChangedSettingError, ImpureEnvironmentError, SnapshotError

# A wrong result must be followed by an error within this many rows.
ROWS = 200
BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "workers": {"n_workers": 2},
    "isolated": {"n_workers": 1, "isolate": True},
}


class Subject(NamedTuple):
    """An environment: the first argument of `make`, its options, and what wrappers change in it."""

    source: Any
    where: str
    values: tuple[float, float]
    options: Mapping[str, Any] = MappingProxyType({})
    package: str = "gymnasium"


SUBJECTS = {
    "classic control": Subject("MountainCar-v0", "force", (0.0005, 0.003)),
    "toy text": Subject(CLIFF, "P", (-5, 5)),
    "robot's mass": Subject("HalfCheetah-v5", "model.body_mass", (1, 5), {}, "mujoco"),
    "Atari": Subject("ALE/Pong-v5", "_frameskip", (2, 7), {"obs_type": "ram"}, "ale_py"),
    "robot's gravity": Subject("Hopper-v5", "model.opt.gravity", (-9, -1), {}, "mujoco"),
    "dm_control's mass": Subject(
        "cheetah-run", "physics.model.ptr.body_mass", (1, 3), {}, "dm_control"
    ),
    "dm_control's task": Subject("cheetah-run", "suite_env._n_sub_steps", (2, 5), {}, "dm_control"),
    "own methods": Subject(changing.Saving, "g", (5, 15)),
    "pickle, object": Subject(changing.Windy, "weather.push", (0, 3)),
    # What wrappers change here is held by nothing but copies of the whole wrapper chain.
    "Box2D": Subject("LunarLander-v3", "wind_power", (0, 20), {"enable_wind": True}, "Box2D"),
    "replay, object": Subject(changing.Windy, "weather.push", (0, 3), {"snapshot": "replay"}),
    "robot": Subject("HalfCheetah-v5", "_ctrl_cost_weight", (0.1, 1), {}, "mujoco"),
}
REPLAYED = "Box2D", "replay, object", "robot"


def subject_named(name: str) -> Subject:
    subject = SUBJECTS[name]
    if importlib.util.find_spec(subject.package) is None:
        pytest.skip(f"{subject.package} is not installed")
    return subject


def raw_env(subject: Subject) -> Any:
    """Return the environment as Gymnasium makes it, without a time limit."""
    own = {key: value for key, value in subject.options.items() if key != "snapshot"}
    if callable(subject.source):
        return subject.source(**own)
    if subject.package == "dm_control":
        return plangym_like.make(subject.source).simulator.make_env()
    if subject.package == "ale_py":
        own["repeat_action_probability"] = 0.0
    spec = registry.find_spec(subject.source)
    return gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **own)


def with_wrapper(kind: Any, subject: Subject) -> tuple[Any, dict[str, Any]]:
    return kind, {"where": subject.where, "values": subject.values}


def played(name: str, kind: Any, count: int) -> tuple[list[Any], list[list[Any]]]:
    """Return actions, and the results of Gymnasium alone in two episodes of them."""
    subject = SUBJECTS[name]
    wrapper, options = with_wrapper(kind, subject)
    env = wrapper(raw_env(subject), **options)
    env.action_space.seed(0)
    actions, episodes = [env.action_space.sample() for _ in range(count)], []
    # A second episode shows what wrappers leave to it. Only in replay, each episode begins in a
    # new copy of the environment, so values that a step has put into its objects are not left.
    fresh = name in REPLAYED and kind in (changing.AfterStep, changing.Late)
    for seed in (1,) if fresh else (1, 2):
        env.reset(seed=seed)
        results = (env.step(action)[:4] for action in actions)
        episodes.append([(np.array(obs), *map(float, rest)) for obs, *rest in results])
    env.close()
    return actions, episodes


def judge(env: Any, actions: list[Any], episodes: list[list[Any]]) -> None:
    """Compare the results of `env` with Gymnasium's; wrong ones must be followed by an error."""
    kept: list[Any] = []
    wrong = ""
    for episode, steps in enumerate(episodes):
        state = env.reset(seed=1 + episode).state
        for action, wanted in zip(actions, steps, strict=True):
            kept.append((state, action, wanted))
            # One row continues the episode, and the other one is an earlier row again.
            rows = kept[-1], kept[len(kept) // 2]
            result = env.step_batch([row[1] for row in rows], np.stack([row[0] for row in rows]))
            for row, (_, _, expected) in enumerate(rows):
                found = [result[part][row] for part in range(1, 5)]
                if not all(map(np.array_equal, expected, found)):
                    wrong = wrong or f"{found} instead of {expected}"
            state = result.states[0]
        # The next reset continues from the end of this episode, as in Gymnasium.
        env.set_state(state)
    for count in range(ROWS if wrong else 0):
        state, action, _ = kept[count % len(kept)]
        env.step_batch([action], state)
    assert not wrong, wrong


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def named(error: Exception, subject: Subject, kind: Any) -> bool:
    """Return whether the message names what was changed, or the wrapper that did it."""
    return subject.where.split(".")[-1] in str(error) or kind.__name__ in str(error)


def outcome(name: str, kind: Any, backend: str) -> str:
    """Return "equal", "refused" or "noticed"; fail if the result is silently wrong."""
    subject = subject_named(name)
    late = issubclass(kind, changing.Late)
    with quiet():
        truth = played(name, kind, changing.LATE + 20 if late else 12)
        kwargs = {"wrappers": [with_wrapper(kind, subject)], **subject.options}
        try:
            env = plangym_like.make(subject.source, **kwargs, **BACKENDS[backend])
        except SnapshotError as error:
            assert named(error, subject, kind)
            return "refused"
        with env:
            if env.exactness != "exact":
                return "declared"
            try:
                judge(env, *truth)
            except ChangedSettingError as error:
                assert named(error, subject, kind)
                return "refused"
            except (ImpureEnvironmentError, SnapshotError):
                return "noticed"
    return "equal"


KINDS = [
    *(changing.AfterStep, changing.BeforeReset, changing.AfterReset, changing.BeforeStep),
    *(changing.Late, changing.BySetWrapperAttr),
]
FULL = pytest.mark.full
# In `make test`, each kind is tried over classic control, and all other environments with one kind.
CASES = [
    pytest.param(
        name,
        kind,
        marks=() if name == "classic control" or at % 2 == number else FULL,
    )
    for at, name in enumerate(SUBJECTS)
    for number, kind in enumerate(KINDS)
]
FAR = [("toy text", changing.Late, "workers"), ("robot", changing.BeforeReset, "isolated")]
FAR_FULL = [
    pytest.param(name, kind, backend, marks=FULL)
    for name in SUBJECTS
    for kind in KINDS
    for backend in ("workers", "isolated")
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_wrapper_that_changes_its_environment_is_never_silently_wrong(
    name: str, kind: Any
) -> None:
    outcome(name, kind, "serial")


@pytest.mark.parametrize(("name", "kind", "backend"), [*FAR, *FAR_FULL])
def test_nor_in_workers(name: str, kind: Any, backend: str) -> None:
    outcome(name, kind, backend)


def test_methods_that_seed_the_environment_are_part_of_the_state() -> None:
    assert outcome("own methods", changing.BySeeding, "serial") == "equal"


# Environment -> the ways in which domain randomisation by its wrappers is saved, and late changes.
SAVED = {"toy text": "pickle", "robot's mass": "native", "robot": "replay"}


@pytest.mark.parametrize("name", SAVED)
def test_auto_uses_the_first_way_that_holds_what_wrappers_change(name: str) -> None:
    subject = subject_named(name)
    wrappers = [with_wrapper(changing.BeforeReset, subject)]
    with quiet(), plangym_like.make(subject.source, wrappers=wrappers) as env:
        assert (env.snapshot, env.exactness) == (SAVED[name], "exact")
        if env.snapshot != "native":
            assert subject.where.split(".")[-1] in env.snapshot_note
            with pytest.raises(ChangedSettingError, match="changed"):
                plangym_like.make(subject.source, wrappers=wrappers, snapshot="native")


@in_workers_too
def test_a_late_change_is_an_error_before_a_wrong_result(backend: str) -> None:
    """Whichever process steps a row, the row that changes the attribute is the first to fail."""
    subject = SUBJECTS["classic control"]
    wrappers = [with_wrapper(changing.Late, subject)]
    options = {"audit": "off", **BACKENDS[backend]}
    with plangym_like.make(subject.source, wrappers=wrappers, **options) as env:
        state = env.reset(seed=0).state
        for _ in range(changing.LATE):
            state = env.step_batch([2, 2], state).states[0]
        match = r"MountainCarEnv\.force changed from 0\.001 to 0\.00\d+, .* snapshot='pickle'"
        with pytest.raises(ChangedSettingError, match=match):
            env.step_batch([2, 2], state)


def test_an_earlier_state_is_not_stepped_with_a_changed_setting() -> None:
    """A step without states saves none, so the change shows when the next state is set."""
    subject = SUBJECTS["classic control"]
    wrappers = [with_wrapper(changing.Late, subject)]
    with plangym_like.make(subject.source, wrappers=wrappers, audit="off") as env:
        state = env.reset(seed=0).state
        for _ in range(changing.LATE + 1):
            env.step(2)  # as in Gymnasium
        with pytest.raises(ChangedSettingError, match="force changed"):
            env.step(2, state, return_state=False)


@pytest.mark.parametrize(
    ("kind", "n_workers"),
    first_of([(kind, n) for n in (None, 2) for kind in (KINDS[0], KINDS[1], changing.Late)]),
)
def test_vectorised_robots_equal_gymnasiums(kind: Any, n_workers: int | None) -> None:
    subject = subject_named("robot's mass")
    wrapper = partial(kind, where=subject.where, values=subject.values)

    def build() -> Any:
        return wrapper(gymnasium.make(subject.source))

    steps = changing.LATE + 20 if kind is changing.Late else 30
    truth = SyncVectorEnv([build for _ in range(5)])
    wrappers = [with_wrapper(kind, subject)]
    envs = plangym_like.make_vec(subject.source, 5, n_workers=n_workers, wrappers=wrappers)
    with contextlib.closing(truth), contextlib.closing(envs), quiet():
        truth.action_space.seed(0)
        assert np.array_equal(truth.reset(seed=3)[0], envs.reset(seed=3)[0])
        for step in range(steps):
            actions = truth.action_space.sample()
            for wanted, found in zip(truth.step(actions)[:4], envs.step(actions)[:4], strict=True):
                assert np.array_equal(wanted, found), step
        if kind is changing.Late:
            with pytest.raises(ChangedSettingError, match="body_mass"):
                envs.get_states()
            return
        states, actions = envs.get_states(), truth.action_space.sample()
        first = envs.step(actions)
        envs.step(actions)
        envs.set_states(states)
        for wanted, found in zip(first[:4], envs.step(actions)[:4], strict=True):
            assert np.array_equal(wanted, found)

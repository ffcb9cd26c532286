"""`make_vec` is Gymnasium's SyncVectorEnv, with states."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics
from small_envs import Nested, Teller
from usual import first_of

import plangym_like
from plangym_like import make_vec
from plangym_like.envs.mujoco.env import MujocoSimulator
from plangym_like.errors import (
    ActionError,
    ClosedError,
    InputError,
    SnapshotError,
    StateFormatError,
)
from plangym_like.vector.kernel_lanes import KernelLanes, RowLanes
from plangym_like.vector.sequential_lanes import SequentialLanes

HAS_BOX2D = importlib.util.find_spec("Box2D") is not None
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__")


MODES = ["NextStep", "SameStep", "Disabled"]
ATARI = {"obs_type": "ram", "repeat_action_probability": 0.0, "frameskip": 4}
IDS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {}),
    ("CartPole-v1", {"max_episode_steps": 7}),
    ("Pendulum-v1", {}),
    ("MountainCarContinuous-v0", {}),
    ("Acrobot-v1", {}),
    ("FrozenLake-v1", {}),
    ("Blackjack-v1", {}),
    ("Hopper-v5", {}),
    ("HalfCheetah-v5", {"max_episode_steps": 30}),
    ("ALE/Pong-v5", ATARI),
    *([("LunarLander-v3", {})] if HAS_BOX2D else []),
]


def same(one: Any, other: Any) -> bool:
    """Return whether two results are equal in every byte; whole numbers may be Python's."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and one.dtype == object:
        return other.dtype == object and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        if one.dtype.kind == other.dtype.kind == "f":
            # Rows of MuJoCo keep all infos as float64, its environments have some as float32.
            other = other.astype(one.dtype)
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return bool(one == other)


def compare(theirs: Any, ours: Any, *, steps: int, mode: str, harmless: Any = None) -> int:
    """Step both by equal actions and compare all that they return; return how many ended."""
    space = theirs.action_space
    space.seed(3)
    ended, results = 0, theirs.reset(seed=5)
    assert same(results, ours.reset(seed=5))
    for _ in range(steps):
        if mode == "Disabled" and len(results) == 5 and (results[2] | results[3]).any():
            options = {"reset_mask": results[2] | results[3]}
            results = theirs.reset(options=dict(options)), ours.reset(options=options)
            assert same(*results)
        actions = space.sample() if harmless is None else harmless()
        results = theirs.step(actions)
        assert same(results, ours.step(actions))
        ended += int((results[2] | results[3]).sum())
    return ended


def _in_turn() -> Iterator[Any]:
    """Yield each id with all modes; in the usual run, with one of them in turn."""
    for number, (name, kwargs) in enumerate(IDS):
        for mode in MODES:
            marks = () if mode == MODES[number % 3] else pytest.mark.full
            yield pytest.param(name, kwargs, mode, id=f"{name}-{kwargs}-{mode}", marks=marks)


@pytest.mark.parametrize("count", first_of([5, 1, 3]))
@pytest.mark.parametrize(("name", "kwargs", "mode"), list(_in_turn()))
def test_it_returns_what_gymnasiums_own_returns(
    name: str, kwargs: dict[str, Any], mode: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MujocoSimulator, "fewest_rows", 5)
    if name.startswith("ALE/"):
        gymnasium.register_envs(pytest.importorskip("ale_py"))
    make = partial(gymnasium.make, name, **kwargs)
    theirs = SyncVectorEnv([make] * count, autoreset_mode=mode)
    ours = make_vec(name, count, autoreset_mode=mode, **kwargs)
    slow = name.startswith(("ALE", "Lunar", "Hopper", "Half"))
    try:
        steps = 8 if name.startswith("ALE") else 40 if slow else 60
        ended = compare(theirs, ours, steps=steps, mode=mode)
        assert (
            ended
            or name in ("ALE/Pong-v5", "Pendulum-v1", "LunarLander-v3", "Acrobot-v1")
            or (name.startswith("Mountain"))
        )
        assert ours.metadata == theirs.metadata and ours.render_mode == theirs.render_mode
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert ours.spec is not None and ours.spec.id == name
    finally:
        theirs.close()
        ours.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [Nested, Teller, lambda: gymnasium.make("CartPole-v1")])
def test_factories(make: Callable[[], Any], mode: str) -> None:
    theirs = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    ours = make_vec(make, 3, autoreset_mode=mode)
    assert compare(theirs, ours, steps=150, mode=mode) > 0
    assert not ours.has_states
    with pytest.raises(SnapshotError, match="no state rows"):
        ours.get_states()


def test_the_first_environment_of_atari_is_as_sticky_as_the_others() -> None:
    """Before, nothing has imported the package that registers the ids."""
    script = (
        "import gymnasium, plangym_like\n"
        "assert 'ALE/Pong-v5' not in gymnasium.registry\n"
        "for _ in range(2):\n"
        "    envs = plangym_like.make_vec('ALE/Pong-v5', 1, obs_type='ram')\n"
        "    print(envs.spec.id, *envs.get_attr('stickiness'))\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert (run.stdout, run.stderr) == ("ALE/Pong-v5 0.25\n" * 2, "")


def test_the_fastest_form_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MujocoSimulator, "fewest_rows", 12)  # 256 robots would take long to make
    forms = {
        ("CartPole-v1", 8): KernelLanes,
        ("HalfCheetah-v5", 12): RowLanes,
        ("HalfCheetah-v5", 8): KernelLanes,
        ("HalfCheetah-v5", 2): SequentialLanes,
        ("FrozenLake-v1", 8): SequentialLanes,
    }
    for (name, count), form in forms.items():
        with make_vec(name, count) as envs:
            assert type(envs._lanes) is form
        with make_vec(name, count, vectorise=False) as envs:
            assert type(envs._lanes) is SequentialLanes
    # Cheap steps stay in this process.
    with make_vec("CartPole-v1", 64, 2) as envs:
        assert type(envs._lanes) is KernelLanes
    with make_vec(Nested, 2, 2) as envs:
        assert type(envs._lanes) is SequentialLanes


# Seeds, options, masks


class Teaser(gymnasium.Env):
    """Observes what it was reset with, and hands out its own buffers."""

    observation_space = gymnasium.spaces.Box(-1, 99, (2,), np.int64)
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self) -> None:
        self.buffer = np.zeros(2, np.int64)
        self.info: dict[str, Any] = {}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.buffer[:] = -1 if seed is None else seed, (options or {}).get("level", 0)
        self.info.clear()
        self.info["given"] = options
        return self.buffer, self.info

    def step(self, action: Any) -> Any:
        self.buffer[1] += action
        if action == 3:
            self.info["tries"] = self.info.get("tries", 0) + 1
        return self.buffer, 1, bool(self.buffer[1] > 6), False, self.info


@pytest.mark.parametrize("mode", MODES)
def test_environments_that_hand_out_their_own_buffers(mode: str) -> None:
    theirs = SyncVectorEnv([Teaser] * 3, autoreset_mode=mode)
    ours = make_vec(Teaser, 3, autoreset_mode=mode)
    assert same(theirs.reset(seed=[4, None, 6]), ours.reset(seed=[4, None, 6]))
    kept = [ours.step(np.array([1, 2, 3])), ours.step(np.array([0, 3, 0]))]
    assert kept[0][0].tolist() == [[4, 1], [-1, 2], [6, 3]]
    assert kept[1][0].tolist() == [[4, 1], [-1, 5], [6, 3]]


def test_seeds() -> None:
    envs = make_vec(Teaser, 3)
    for seed in (7, np.int64(7), [7, 8, 9], np.array([7, 8, 9])):
        assert envs.reset(seed=seed)[0][:, 0].tolist() == [7, 8, 9]
    for wrong in ([1, 2], -1, [1, 2, -3], [1, 2, 0.5], 1.5, np.array(3), "3"):
        with pytest.raises(InputError):
            envs.reset(seed=wrong)
    assert make_vec("CartPole-v1", 2).np_random_seed != ()


def test_options_and_masks() -> None:
    envs = make_vec(Teaser, 3)
    options = {"level": 4, "reset_mask": np.array([True, True, True])}
    observations, infos = envs.reset(options=options)
    assert observations[:, 1].tolist() == [4, 4, 4] and "reset_mask" in options
    assert infos["given"]["level"].tolist() == [4, 4, 4]
    options = {"level": 2, "reset_mask": np.array([False, True, False])}
    observations, infos = envs.reset(seed=[1, 2, 3], options=options)
    assert observations.tolist() == [[-1, 4], [2, 2], [-1, 4]]
    assert infos["_given"].tolist() == [False, True, False]


def test_the_first_reset_resets_all() -> None:
    envs = make_vec("CartPole-v1", 2)
    with pytest.raises(ResetNeeded):
        envs.step([0, 0])
    with pytest.raises(ResetNeeded):
        envs.get_states()
    with pytest.raises(ValueError, match="all environments"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset()


def test_wrong_masks() -> None:
    envs = make_vec("CartPole-v1", 2)
    envs.reset(seed=1)
    states = envs.get_states()
    for mask, error in (
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([False, False]), ValueError),
        (np.array([True]), ValueError),
    ):
        with pytest.raises(error, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})
    assert same(states, envs.get_states())


@pytest.mark.parametrize("count", [2, 6, 8])
def test_wrong_actions_change_nothing(count: int) -> None:
    envs = make_vec("CartPole-v1", count)
    envs.reset(seed=1)
    states = envs.get_states()
    rest = [0] * (count - 1)
    for actions, error in (
        (0, TypeError),
        (rest, ValueError),
        ([*rest, 0, 0], ValueError),
        ([[0]] * count, ValueError),
        (["left"] * count, ValueError),
        ([*rest, 9], ActionError),
        ([*rest, -1], ActionError),
        (np.zeros(count), ActionError),
        (np.zeros(count, bool), ActionError),
    ):
        with pytest.raises(error):
            envs.step(actions)
        assert same(states, envs.get_states())


def test_autoreset_disabled_wants_resets() -> None:
    envs = make_vec("CartPole-v1", 2, autoreset_mode="Disabled", max_episode_steps=1)
    envs.reset(seed=1)
    assert envs.step([0, 0])[3].all()
    with pytest.raises(ResetNeeded, match="reset_mask"):
        envs.step([0, 0])


def test_without_copies_the_same_memory_is_returned() -> None:
    for copies in (True, False):
        envs = make_vec("CartPole-v1", 5, copy=copies)
        first = envs.reset(seed=1)[0]
        assert (envs.step([0] * 5)[0] is first) is not copies


# The environments


@pytest.mark.parametrize("count", [2, 6])
def test_attributes(count: int) -> None:
    theirs = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * count)
    ours = make_vec("CartPole-v1", count)
    assert ours.get_attr("gravity") == theirs.get_attr("gravity")
    compare(theirs, ours, steps=20, mode="NextStep")
    for envs in (theirs, ours):
        envs.set_attr("force_mag", 3.0)
    assert compare(theirs, ours, steps=60, mode="NextStep") > 0
    gravities = [1.0 + index for index in range(count)]
    for envs in (theirs, ours):
        envs.set_attr("gravity", gravities)
    assert ours.get_attr("gravity") == tuple(gravities)
    assert compare(theirs, ours, steps=60, mode="NextStep") > 0
    with pytest.raises(InputError, match="one entry for each"):
        ours.set_attr("gravity", [1.0])


def test_attributes_of_the_present_state() -> None:
    theirs = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 5)
    ours = make_vec("CartPole-v1", 5)
    for envs in (theirs, ours):
        envs.reset(seed=2)
        for _ in range(4):
            envs.step([1] * 5)
    assert same(tuple(map(tuple, theirs.get_attr("state"))), tuple(map(tuple, ours.call("state"))))
    assert ours.get_attr("_elapsed_steps") == (4,) * 5
    assert ours.np_random_seed == theirs.np_random_seed == (2, 3, 4, 5, 6)
    draws = [[generator.random() for generator in envs.np_random] for envs in (theirs, ours)]
    assert draws[0] == draws[1]


def test_rows_of_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MujocoSimulator, "fewest_rows", 8)
    with make_vec("HalfCheetah-v5", 9) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros((9, 6), np.float32))
        positions = [data.qpos.tolist() for data in envs.get_attr("data")]
        assert len({tuple(position) for position in positions}) == 9
        with pytest.raises(InputError, match="vectorise=False"):
            envs.set_attr("_reset_noise_scale", 0.5)


def test_gymnasiums_vector_wrappers() -> None:
    theirs: Any = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 4)
    ours: Any = make_vec("CartPole-v1", 4)
    for wrapper in (partial(RecordEpisodeStatistics, buffer_length=5), NormalizeObservation):
        theirs, ours = wrapper(theirs), wrapper(ours)
    theirs.reset(seed=3), ours.reset(seed=3)
    for number in range(60):
        one, other = (envs.step(np.full(4, number % 2)) for envs in (theirs, ours))
        for infos in (one[4], other[4]):
            if "episode" in infos:
                del infos["episode"]["t"]
        assert same(one, other)


@pytest.mark.parametrize("mode", ["different", "same"])
def test_observation_modes(mode: str) -> None:
    def bounded(high: float) -> Any:
        env = Teaser()
        env.observation_space = gymnasium.spaces.Box(-1, high, (2,), np.int64)
        return env

    factories = [partial(bounded, high) for high in (90, 95)]
    if mode == "same":
        with pytest.raises(RuntimeError, match="same observation space"):
            make_vec(factories, observation_mode=mode)
        return
    envs = make_vec(factories, observation_mode=mode)
    theirs = SyncVectorEnv(factories, observation_mode=mode)
    assert envs.observation_space == theirs.observation_space
    teaser = Teaser()
    teaser.action_space = gymnasium.spaces.Discrete(2)
    with pytest.raises(RuntimeError, match="action space"):
        make_vec([Teaser, lambda: teaser])


# States


def test_an_ended_episode_that_is_set_back_goes_on() -> None:
    envs = make_vec("CartPole-v1", 4, max_episode_steps=5)
    observations, _ = envs.reset(seed=4)
    states = envs.get_states()
    for _ in range(5):
        results = envs.step([0] * 4)
    assert results[3].all()
    envs.set_states(states[:2], [0, 1], observations=observations[:2])
    observations, rewards, _, truncated, _ = envs.step([0] * 4)
    assert rewards.tolist() == [1, 1, 0, 0] and not truncated.any()


def test_wrong_states_change_nothing() -> None:
    envs = make_vec("CartPole-v1", 4)
    envs.reset(seed=4)
    states = envs.get_states()
    with pytest.raises(StateFormatError):
        envs.set_states(states[:, :-8])
    for indices in ([0, 0], [4], [-1], [0.5], [[0]]):
        with pytest.raises(InputError):
            envs.set_states(states[:1], indices)
    with pytest.raises(InputError, match="indices must be a sequence of whole numbers"):
        envs.get_states(1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="for 3 lanes: give one for each, .* indices"):
        envs.set_states(states[:2], [0, 1, 2])
    assert same(states, envs.get_states())
    mask = np.array([False, True, False, True])
    assert same(states[mask], envs.get_states(mask))


# Mistakes


def test_numbers_of_environments() -> None:
    assert make_vec("CartPole-v1").num_envs == 1
    assert make_vec(["CartPole-v1", "CartPole-v1"]).num_envs == 2
    for count in (0, -1, True, 2.0, None):
        if count is not None:
            with pytest.raises(InputError, match="num_envs"):
                make_vec("CartPole-v1", count)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="n_workers"):
                make_vec("CartPole-v1", 4, count)  # type: ignore[arg-type]
    assert make_vec("CartPole-v1", np.int64(2), np.int32(1)).num_envs == 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2 entries"):
        make_vec(["CartPole-v1"] * 2, 3)


def test_arguments_of_other_constructors() -> None:
    cartpole = gymnasium.make("CartPole-v1")
    for source in (gymnasium.spec("CartPole-v1"), cartpole):
        with pytest.raises(InputError, match="source must be an id, a callable"):
            make_vec(source, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="callable"):
        make_vec([cartpole, cartpole])  # type: ignore[list-item]
    for name in ("vectorization_mode", "vector_kwargs", "shared_memory", "vectorize"):
        with pytest.raises(InputError, match=f"no argument {name}"):
            make_vec("CartPole-v1", 2, **{name: None})
    with pytest.raises(InputError, match="'NextStep', 'SameStep', 'Disabled', got 'same_step'"):
        make_vec("CartPole-v1", 2, autoreset_mode="same_step")


def test_use_after_close() -> None:
    envs = make_vec("CartPole-v1", 2)
    envs.reset()
    envs.close()
    envs.close()
    for call in (envs.reset, envs.get_states, partial(envs.step, [0, 0]), envs.render):
        with pytest.raises(ClosedError, match="make others"):
            call()
    for method, library in (("as_sb3", "stable_baselines3"), ("as_torchrl", "torchrl")):
        if importlib.util.find_spec(library):
            with pytest.raises(ClosedError):
                getattr(envs, method)()


@pytest.mark.parametrize(
    ("name", "count", "n_workers"),
    [("MountainCarContinuous-v0", 2, 2), ("HalfCheetah-v5", 5, None)],
)
def test_actions_out_of_bounds_are_treated_as_by_make(
    name: str, count: int, n_workers: int | None
) -> None:
    with plangym_like.make(name, remove_time_limit=False, out_of_bounds="clip") as env:
        state = env.reset(seed=0).state
        action = np.full(env.action_space.shape, 5, np.float32)
        expected = env.step(action, state).reward
    actions = np.stack([action] * count)
    with make_vec(name, count, n_workers, out_of_bounds="clip") as envs:
        envs.reset(seed=0)
        envs.set_states(state)
        assert envs.step(actions)[1].tolist() == [expected] * count
    with make_vec(name, count, n_workers, out_of_bounds="raise") as envs:
        envs.reset(seed=0)
        with pytest.raises(ActionError):
            envs.step(actions)


def test_a_reset_ends_the_loss_of_a_state() -> None:
    with make_vec("CartPole-v1", 4) as envs:
        envs.reset(seed=0)
        states = envs.get_states()
        envs.set_states(states)
        simulator = envs._lanes.envs[1].simulator
        write = simulator.write

        def interrupted(payload: Any) -> None:
            simulator.write = write
            raise KeyboardInterrupt

        simulator.write = interrupted
        with pytest.raises(KeyboardInterrupt):
            envs.set_states(states)
        envs.reset(seed=1)
        with make_vec("CartPole-v1", 4) as twins:
            twins.reset(seed=1)
            assert same(envs.get_states(), twins.get_states())

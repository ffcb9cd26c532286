"""Lanes of what `plangym_like.make` returns: equal to Gymnasium, with state rows."""

from typing import Any

import numpy as np
import pytest
from small_envs import Sleds
from usual import first_of

import plangym_like
from plangym_like.batch.simulator import Simulator
from plangym_like.envs.mujoco.env import MujocoSimulator
from plangym_like.errors import ActionError
from plangym_like.vector import make_lanes as making
from plangym_like.vector.kernel_lanes import KernelLanes, RowLanes
from plangym_like.vector.lanes import Lanes, StepArrays
from plangym_like.vector.make_lanes import lanes_from
from plangym_like.vector.sequential_lanes import SequentialLanes

# Every form of lanes, and one without a kernel.
FORMS = {
    "CartPole-v1": KernelLanes,
    "Pendulum-v1": KernelLanes,
    "MountainCarContinuous-v0": KernelLanes,
    "HalfCheetah-v5": RowLanes,
    "Hopper-v5": RowLanes,
    "FrozenLake-v1": SequentialLanes,
}
SEEDS = [3, 4, 99]
VECTORISE = pytest.mark.parametrize("vectorise", first_of([True, False]))


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step so few lanes as rows, too."""
    for simulator in (Simulator, MujocoSimulator):
        monkeypatch.setattr(simulator, "fewest_rows", 1)
    monkeypatch.setattr(making, "_FEWEST_AT_ONCE", 1)


def _lanes(name: str, vectorise: bool = True) -> Lanes:
    if name in ("HalfCheetah-v5", "Hopper-v5"):
        pytest.importorskip("mujoco")
    return lanes_from(name, len(SEEDS), vectorise=vectorise)


def _step(lanes: Lanes, actions: Any, obs: Any, which: Any = None) -> tuple[Any, ...]:
    count = lanes.num_lanes
    results = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
    lanes.step(actions, StepArrays(obs, *results), which)
    return results


def _actions(lanes: Lanes, rng: np.random.Generator) -> Any:
    lanes.action_space.seed(int(rng.integers(2**31)))
    return np.stack([lanes.action_space.sample() for _ in range(lanes.num_lanes)])


@VECTORISE
@pytest.mark.parametrize("name", FORMS)
def test_lanes_go_on_from_given_states(name: str, vectorise: bool) -> None:
    lanes, rng = _lanes(name, vectorise), np.random.default_rng(1)
    obs = lanes.start(SEEDS)
    for _ in range(3):
        _step(lanes, _actions(lanes, rng), obs)
    states, before = lanes.get_states(), obs.copy()
    assert states.shape == (3, lanes.state_nbytes)
    plan = [_actions(lanes, rng) for _ in range(5)]  # no episode of CartPole ends before step 8

    def play() -> list[Any]:
        played = [[x.tobytes() for x in (*_step(lanes, actions, obs), obs)] for actions in plan]
        return [*played, lanes.get_states().tobytes()]

    first = play()
    lanes.set_states(states)
    obs[...] = before
    assert lanes.get_states().tobytes() == states.tobytes()
    assert play() == first
    # The same rows are those of a PlanEnv, and of lanes in any other form.
    env = plangym_like.make(name, remove_time_limit=False)
    result = env.step_batch(plan[0], states)
    other = _lanes(name, not vectorise)
    other.start()
    other.set_states(states)
    assert other.get_states([2, 0]).tobytes() == states[[2, 0]].tobytes()
    rewards, *_ = _step(other, plan[0], obs)
    assert obs.tobytes() == result.obs.tobytes() and rewards.tolist() == result.rewards.tolist()
    assert other.get_states().tobytes() == result.states.tobytes()


@VECTORISE
@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5", "FrozenLake-v1"])
def test_only_the_named_lanes_get_states(name: str, vectorise: bool) -> None:
    lanes = _lanes(name, vectorise)
    obs = lanes.start(SEEDS)
    states = lanes.get_states()
    _step(lanes, _actions(lanes, np.random.default_rng(0)), obs, [0, 1])
    after = lanes.get_states()
    assert after[2].tobytes() == states[2].tobytes()
    lanes.set_states(states[2], [0])
    assert lanes.get_states().tolist() == [states[2].tolist(), *after[1:].tolist()]
    assert lanes.get_states([1, 0]).tolist() == [after[1].tolist(), states[2].tolist()]
    lanes.reset(obs, [0], seeds=[SEEDS[1]])
    assert lanes.get_states([0]).tobytes() == states[1].tobytes()


def test_lanes_that_begin_without_seeds_share_no_noise() -> None:
    for vectorise in (True, False):
        lanes = _lanes("Hopper-v5", vectorise)
        obs = [lanes.start()]
        for _ in range(2):
            obs.append(np.empty_like(obs[0]))
            lanes.reset(obs[-1])
        assert len({row.tobytes() for rows in obs for row in rows}) == 9


def test_only_lanes_that_are_stepped_need_a_valid_action() -> None:
    lanes, actions = _lanes("FrozenLake-v1"), np.array([0, 9, 0])
    obs, (over, cut) = lanes.start(seeds=SEEDS), np.zeros((2, 3), bool)
    out = StepArrays(obs, np.zeros(3), over, cut)
    lanes.step(actions, out, ended=np.array([False, True, False]))
    with pytest.raises(ActionError):
        lanes.step(actions, out, ended=np.array([True, False, False]))


def test_an_environment_of_the_users_is_stepped_by_its_step_states() -> None:
    lanes = lanes_from(lambda: plangym_like.make(Sleds), 3)
    assert isinstance(lanes, RowLanes)
    twins = [Sleds() for _ in SEEDS]
    obs = lanes.start(SEEDS)
    for lane, twin in enumerate(twins):
        assert twin.reset(seed=SEEDS[lane])[0].tobytes() == obs[lane].tobytes()
    for action in (0, 2, 2):
        rewards, *_ = _step(lanes, np.full(3, action), obs)
        for lane, twin in enumerate(twins):
            theirs = twin.step(action)
            assert (theirs[0].tobytes(), theirs[1]) == (obs[lane].tobytes(), rewards[lane])


class Levels(Sleds):
    """Begins each episode faster than the one before."""

    def __init__(self) -> None:
        self.x = np.zeros(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        speed = self.x[1].round() + 1.0
        super().reset(seed=seed)
        self.x[1] = speed
        return self.x.astype(np.float32), {}


@pytest.mark.parametrize(
    "options", [{"snapshot": "native"}, {"snapshot": "pickle", "n_workers": 2}]
)
def test_episodes_of_lanes_do_not_follow_those_of_other_lanes(options: dict[str, Any]) -> None:
    lanes = lanes_from(lambda: plangym_like.make(Levels, **options), 3)
    assert isinstance(lanes, RowLanes)
    twins = [Levels() for _ in SEEDS]
    obs = lanes.start(SEEDS)
    for _ in range(2):
        expected = [twin.reset(seed=seed)[0] for twin, seed in zip(twins, SEEDS, strict=True)]
        assert obs.tobytes() == np.stack(expected).tobytes()
        lanes.reset(obs, seeds=SEEDS)
    lanes.close()


def test_lanes_of_an_environment_with_workers_are_stepped_by_them() -> None:
    def play(**options: Any) -> list[Any]:
        lanes = lanes_from(lambda: plangym_like.make("FrozenLake-v1", **options), 3)
        assert type(lanes) is (RowLanes if options else SequentialLanes)
        played, obs = [], lanes.start(SEEDS)
        for t in range(30):
            _, terminated, truncated = _step(lanes, np.array([1, 2, t % 4]), obs)
            played.append([*obs, *terminated, *truncated])
            lanes.reset(obs, np.flatnonzero(terminated | truncated))
        states = lanes.get_states().tobytes()
        lanes.close()
        return [played, states]

    assert play(n_workers=2) == play()

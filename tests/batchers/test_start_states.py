"""Episodes of all three batchers begin in the states that they are given."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from suite import TAXI
from usual import first_of

import plangym_like
from plangym_like.batchers import episodes, workspaces
from plangym_like.batchers.episodes import DictTensor
from plangym_like.batchers.rollout import BaseActorModule, evaluate, multi, same, single
from plangym_like.errors import InputError, SnapshotError, StateMismatchError
from plangym_like.vector.start_states import StartStates

IDS = pytest.mark.parametrize("env_id", first_of([TAXI, "CartPole-v1", "Pendulum-v1"]))
COUNT = 4


def maker(env_id: str) -> Callable[[], Any]:
    return lambda: plangym_like.make(env_id, remove_time_limit=False)


def branch(env_id: str) -> tuple[tuple[Any, Any], Any]:
    """Return states some steps into an episode, and what one more step leads to."""
    env = maker(env_id)()
    state, _, _ = env.reset(seed=3)
    for _ in range(2):
        actions = np.stack([np.asarray(env.sample_action()) for _ in range(COUNT)])
        first = env.step_batch(actions, states=state)
        state = first.states
    after = env.step_batch(np.zeros_like(actions), states=first.states)
    return (first.states, first.obs), after


class Idle(BaseActorModule):
    """Answers 0."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> Any:
        return torch.zeros(*fin.shape, *self.shape, dtype=self.dtype), (), {}


def idle(env_id: str) -> Idle:
    space = gymnasium.make(env_id).action_space
    assert space.shape is not None
    return Idle(space.shape, torch.from_numpy(np.empty(0, space.dtype)).dtype)


class IdleAgent(episodes.Agent):
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def __call__(self, state: Any, observation: Any, agent_info: Any = None, history: Any = None):
        action = torch.zeros(observation.n_elems(), *self.shape, dtype=self.dtype)
        return DictTensor(), DictTensor({"action": action}), DictTensor()


@IDS
@pytest.mark.parametrize("n_workers", first_of([2, 0]))
def test_rollouts(env_id: str, n_workers: int) -> None:
    states, after = branch(env_id)
    options: dict[str, Any] = {"seed": 0, "states": states, "ordered": True}
    sizes = {"n_actors": 2, "n_per_actor": 2, "n_buffers": 2, "n_per_batch": 2}
    actor = idle(env_id)
    with multi.rollout(maker(env_id), actor, 3, **sizes, workers=n_workers, **options) as it:
        fragment = next(it)
    assert np.array_equal(fragment.state.obs[0], states[1])
    assert np.array_equal(fragment.state.obs[1], after.obs)
    assert np.array_equal(fragment.state.rew[0], after.rewards.astype(np.float32))
    assert fragment.state.stepno[:, 0].tolist() == [0, 1, 2] and fragment.before.fin.all()


def test_the_other_rollouts_and_evaluate() -> None:
    states, after = branch("CartPole-v1")
    actor = idle("CartPole-v1")
    make = maker("CartPole-v1")
    with single.rollout(make, actor, 3, COUNT, seed=0, states=states, workers=0) as it:
        one = next(it)
    with same.rollout([make() for _ in range(COUNT)], actor, 3, seed=0, states=states) as it:
        other = next(it)
    for fragment in (one, other):
        assert np.array_equal(fragment.state.obs[1], after.obs)
    rewards = evaluate([make() for _ in range(COUNT)], actor, n_steps=1, states=states)
    assert np.array_equal(rewards[0], after.rewards.astype(np.float32))


@IDS
@pytest.mark.parametrize("n_threads", first_of([0, 2]))
def test_whole_episodes(env_id: str, n_threads: int) -> None:
    states, after = branch(env_id)
    actor = idle(env_id)
    arguments = {"shape": actor.shape, "dtype": actor.dtype}

    def create_env(seed: int) -> Any:
        return episodes.GymEnv(maker(env_id), seed, num_envs=2)

    with episodes.EpisodeBatcher(
        30, 4, n_threads, [0, 100], IdleAgent, arguments, create_env, {}
    ) as batcher:
        # More episodes than environments.
        rows = np.arange(7) % COUNT
        batcher.execute(7, states=(states[0][rows], states[1][rows]))
        first = batcher.get()
        batcher.reexecute()
        again = batcher.get()
    for found in (first, again):
        assert found is not None
        assert np.array_equal(found["frame"][:, 0], states[1][rows])
        assert np.array_equal(found["_frame"][:, 0], after.obs[rows])
        assert found["initial_state"][:, 0].all() and not found["initial_state"][:, 1:].any()


class Zero(workspaces.Agent):
    def __init__(self, action: torch.Tensor) -> None:
        super().__init__()
        self.action = action

    def forward(self, t: int, **kwargs: Any) -> None:
        self.set(("action", t), self.action)


@IDS
def test_workspaces(env_id: str) -> None:
    states, after = branch(env_id)
    actor = idle(env_id)
    env = workspaces.ParallelGymAgent(maker(env_id), COUNT, seed=0)
    zero = Zero(torch.zeros(COUNT, *actor.shape, dtype=actor.dtype))
    agent = workspaces.TemporalAgent(workspaces.Agents(env, zero))
    for _ in range(2):
        workspace = workspaces.Workspace()
        agent(workspace, n_steps=3, states=states)
        assert np.array_equal(workspace["env/env_obs"][0], states[1])
        assert np.array_equal(workspace["env/env_obs"][1], after.obs)
        assert workspace["env/timestep"][:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", [0, None])
def test_lanes_that_begin_in_one_state_go_on_with_different_episodes(seed: int | None) -> None:
    (rows, obs), _ = branch("CartPole-v1")
    states = rows[:1].repeat(COUNT, 0), obs[:1].repeat(COUNT, 0)
    options: dict[str, Any] = {"seed": seed, "states": states, "workers": 0}

    def beginnings() -> Any:
        with multi.rollout(
            maker("CartPole-v1"), idle("CartPole-v1"), 40, 2, 2, 2, 2, ordered=True, **options
        ) as it:
            state = next(it).state
        ends = [int(state.fin[:, lane].int().argmax()) for lane in range(COUNT)]
        assert len(set(ends)) == 1, "the same state and actions"
        return state.obs[ends[0] + 1]

    found = beginnings()
    assert len(found.unique(dim=0)) == COUNT
    assert (seed is None) or torch.equal(found, beginnings())


def test_states_that_do_not_fit_are_refused() -> None:
    (rows, obs), _ = branch("CartPole-v1")
    make, actor = maker("CartPole-v1"), idle("CartPole-v1")
    for wrong, message in (
        (rows, "must be a pair"),
        ((rows.astype(int), obs), "must be uint8"),
        ((rows, obs[:2]), "4 state rows came with observations"),
        ((rows[:3], obs[:3]), "3 states were given for 4 environments"),
    ):
        with pytest.raises(InputError, match=message):
            same.rollout([make() for _ in range(COUNT)], actor, 3, states=wrong)
    envs = [gymnasium.make("CartPole-v1") for _ in range(COUNT)]
    with pytest.raises(SnapshotError, match="no state rows"):
        next(same.rollout(envs, actor, 3, states=(rows, obs)))
    with pytest.raises(InputError, match="shape"):
        next(same.rollout([make() for _ in range(COUNT)], actor, 3, states=(rows, obs[:, :2])))
    others = [maker("Acrobot-v1")() for _ in range(COUNT)]
    with pytest.raises(StateMismatchError):
        next(same.rollout(others, actor, 3, states=(rows, obs)))
    assert StartStates.of(None) is None

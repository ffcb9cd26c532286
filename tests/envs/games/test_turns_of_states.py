"""Games that tell the turns of many states at once are played out in one call."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import plangym_like
from plangym_like.envs.save_load_env import OwnEnv
from plangym_like.errors import (
    ActionError,
    EnvApiError,
    ImpureEnvironmentError,
    InputError,
    SnapshotError,
)
from plangym_like.planners import UCT


class Heap(gymnasium.Env[Any, Any]):
    """Two players take 1 to 4 stones from a heap of 20; who takes the last one wins.

    Who takes more than there are loses. The state is the heap, and who moves.
    """

    action_space = spaces.Discrete(4)
    observation_space = spaces.Box(0, 20, (2,), np.int64)
    state_attributes = (("heap", np.int64, (2,)),)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.heap = np.array([20, 0])
        return self.heap.copy(), self.info()

    def info(self) -> dict[str, Any]:
        legal, to_play = self.turns_of_states(self.heap[None])
        return {"action_mask": legal[0], "to_play": int(to_play[0])}

    def step(self, action: Any) -> Any:
        heaps, obs, rewards, ended, _ = self.step_states(self.heap[None], np.array([action]))
        self.heap = heaps[0]
        return obs[0].copy(), float(rewards[0]), bool(ended[0]), False, self.info()

    def step_states(self, heaps: Any, actions: Any) -> Any:
        left = heaps[:, 0] - actions - 1
        heaps = np.stack([np.maximum(left, 0), 1 - heaps[:, 1]], axis=1)
        rewards = np.where(left < 0, -1.0, left == 0)
        return heaps, heaps, rewards, left <= 0, np.zeros(len(heaps), bool)

    def turns_of_states(self, heaps: Any) -> Any:
        return np.arange(4) < heaps[:, :1], heaps[:, 1]


class WrongTurns(Heap):
    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = super().turns_of_states(heaps)
        return legal, to_play if len(heaps) == 1 else 1 - to_play


class ShortMasks(Heap):
    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = super().turns_of_states(heaps)
        return legal if len(heaps) == 1 else legal[:, :3], to_play


class FewPlayers(Heap):
    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = super().turns_of_states(heaps)
        return legal, to_play if len(heaps) == 1 else to_play[:1]


class SilentSteps(Heap):
    def info(self) -> dict[str, Any]:
        return {}


class ThreePlayers(Heap):
    def step_states(self, heaps: Any, actions: Any) -> Any:
        _, _, *rest = super().step_states(heaps, actions)
        left = np.maximum(heaps[:, 0] - actions - 1, 0)
        heaps = np.stack([left, (heaps[:, 1] + 1) % 3], axis=1)
        return heaps, heaps, *rest


class FromOne(Heap):
    """Its players are 1 and 2."""

    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = super().turns_of_states(heaps)
        return legal, to_play + 1


class Scored(Heap):
    def info(self) -> dict[str, Any]:
        return {**super().info(), "score": 7}


class Together(Heap):
    """Its actions are arrays, so it gives no infos."""

    action_space = spaces.MultiDiscrete([4])

    def info(self) -> dict[str, Any]:
        return {}

    def step(self, action: Any) -> Any:
        return super().step(action[0])

    def step_states(self, heaps: Any, actions: Any) -> Any:
        return super().step_states(heaps, actions.reshape(-1))


class Taking(Heap):
    """Its actions are the numbers of stones, from 1."""

    action_space = spaces.Discrete(4, start=1)

    def step_states(self, heaps: Any, actions: Any) -> Any:
        return super().step_states(heaps, actions - 1)


class Stuck(Heap):
    """It has no legal action when 7 stones are left."""

    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = super().turns_of_states(heaps)
        return legal & (heaps[:, :1] != 7), to_play


class Numbers(Heap):
    """Its masks are numbers, not bools."""

    def info(self) -> dict[str, Any]:
        found = super().info()
        return {**found, "action_mask": found["action_mask"].astype(np.int8)}


@pytest.mark.parametrize(("kind", "dtype"), [(Heap, bool), (Numbers, np.int8)])
def test_masks_have_the_same_dtype_in_batches(kind: Any, dtype: Any) -> None:
    with plangym_like.make(kind) as env:
        first = env.reset(seed=0)
        batch = env.step_batch([0, 1], first.state)
        masks = (first.info, env.step(1).info, batch.infos, batch.infos[0])
        assert [found["action_mask"].dtype for found in masks] == [dtype] * 4


def test_played_games_are_the_moves_that_they_report() -> None:
    env = plangym_like.make(Heap, audit_every=1)
    state = env.reset(seed=0).state
    starts = np.concatenate([state[None], env.step_batch([0, 3, 2], state).states])
    plans = np.random.default_rng(0).integers(4, size=(4, 25))
    found = env.rollout_batch(plans, starts, legal=True, return_observations=True)
    assert found.terminateds[:, -1].all()
    for row in range(4):
        now, length = starts[row], int(found.infos["n_step"][row])
        for time in range(length):
            heap, mover = env.view_state(now)["heap"]
            action = int(found.infos["actions"][row, time])
            assert action < heap  # it is legal
            if plans[row, time] < heap:
                assert action == plans[row, time]
            step = env.step(action, now)
            now, reward = step.state, step.reward
            assert found.rewards[row, time] == reward
            gains = [reward, -reward] if mover == 0 else [-reward, reward]
            assert found.infos["rewards"][row, time].tolist() == gains
            assert (found.observations[row, time] == step.obs).all()
            assert found.terminateds[row, time] == (time == length - 1)
        assert (found.states[row] == now).all()
        alone = env.rollout_batch(plans[row, None], starts[row], legal=True)
        assert (alone.infos["actions"][0] == found.infos["actions"][row]).all()
    with plangym_like.make(Heap, n_workers=2) as parallel:
        for _ in range(2):
            again = parallel.rollout_batch(plans, starts, legal=True)
            assert (again.states == found.states).all()
            assert (again.infos["actions"] == found.infos["actions"]).all()
            assert (again.infos["rewards"] == found.infos["rewards"]).all()
    with pytest.raises(InputError, match="dt must be 1"):
        env.rollout_batch(plans, starts, 2, legal=True)
    env.close()


class LateMask(Heap):
    """Begins with so many stones that trials do not see the fault: with 12 or fewer left."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.heap = np.array([1000, 0])
        return self.heap.copy(), self.info()

    def info(self) -> dict[str, Any]:
        legal, to_play = Heap.turns_of_states(self, self.heap[None])
        return {"action_mask": legal[0], "to_play": int(to_play[0])}

    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = super().turns_of_states(heaps)
        return legal | (heaps[:, :1] <= 12), to_play


class LateNarrowMask(LateMask):
    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = Heap.turns_of_states(self, heaps)
        return legal & ((heaps[:, :1] > 12) | (np.arange(4) == 0)), to_play


class LatePlayer(LateMask):
    def turns_of_states(self, heaps: Any) -> Any:
        legal, to_play = Heap.turns_of_states(self, heaps)
        return legal, np.where(heaps[:, 0] <= 12, 1 - to_play, to_play)


class LateReward(LateMask):
    turns_of_states = Heap.turns_of_states

    def step_states(self, heaps: Any, actions: Any) -> Any:
        heaps, obs, rewards, *ends = super().step_states(heaps, actions)
        return heaps, obs, rewards + ((heaps[:, 0] < 12) & (len(heaps) > 1)), *ends


@pytest.mark.parametrize(
    "kind, legal, field",
    [
        (LateMask, True, "move is legal"),
        (LateNarrowMask, True, "given move is legal"),
        (LatePlayer, True, "reward of the player"),
        (LateReward, True, "rewards"),
        (LateReward, False, "rewards"),
    ],
)
def test_audits_compare_rollouts_with_steps(kind: Any, legal: bool, field: str) -> None:
    with plangym_like.make(kind, audit_every=1) as env:
        env.reset(seed=0)
        state, rng = env.make_state(heap=np.array([20, 0])), np.random.default_rng(0)
        with pytest.raises(ImpureEnvironmentError, match="alone and in single steps") as caught:
            for _ in range(100):
                env.rollout_batch(rng.integers(4, size=(20, 12)), state, legal=legal)
        assert field in caught.value.field


def test_random_legal_moves_are_equally_likely() -> None:
    with plangym_like.make(Heap) as env:
        env.reset(seed=0)
        start = env.make_state(heap=np.array([3, 0]))
        plans = np.stack([np.full(4000, 3), np.arange(4000) % 4], axis=1)
        plans = np.concatenate(
            [plans, np.random.default_rng(0).integers(4, size=(4000, 8))], axis=1
        )
        taken = env.rollout_batch(plans, start, legal=True).infos["actions"][:, 0]
        assert np.bincount(taken, minlength=4)[:3].min() > 1200 and taken.max() == 2


@pytest.mark.parametrize(
    "kind, reason",
    [
        (WrongTurns, "info to_play"),
        (SilentSteps, "the info"),
        (ShortMasks, r"must return masks \(32, 4\) and players \(32,\), got shapes \(32, 3\)"),
        (FewPlayers, r"must return masks \(32, 4\) .* and \(1,\)"),
    ],
)
def test_turns_that_differ_from_infos_are_refused(kind: Any, reason: str) -> None:
    with pytest.raises(SnapshotError, match=f"(?s)does not do what step does: .*{reason}"):
        OwnEnv(kind)


def test_a_game_with_other_infos_is_passed_over_with_the_reason() -> None:
    with plangym_like.make(Scored) as env:
        assert env.snapshot == "pickle"
        assert "may give action_mask and to_play, and no other infos" in env.snapshot_note


def test_turns_do_not_matter_if_actions_are_not_discrete() -> None:
    with plangym_like.make(Together) as env:
        assert env.snapshot == "native"
        state = env.reset(seed=0).state
        assert env.step_batch([[1], [2]], state).obs.tolist() == [[18, 1], [17, 1]]


@pytest.mark.parametrize(
    "kind, options",
    [(Taking, {}), (Heap, {"frameskip": 2}), (Heap, {"max_episode_steps": 5}), (Together, {})],
)
def test_games_that_are_stepped_at_once_but_not_played_out(kind: Any, options: Any) -> None:
    with OwnEnv(kind, **options) as env:
        assert not env.layout.plays_out
        state = env.reset(seed=0).state
        with pytest.raises(InputError, match="does not tell which actions are legal"):
            env.rollout_batch(np.ones((2, 3, *env.action_space.shape), int), state, legal=True)


def test_the_observation_after_the_end_stays() -> None:
    with plangym_like.make(Heap) as env:
        state = env.reset(seed=0).state
        plans = np.full((2, 30), 3)  # the heap is taken in 5 steps, the last by player 0
        found = env.rollout_batch(plans, state, legal=True, return_observations=True)
        assert found.infos["n_step"].tolist() == [5, 5]
        assert (found.observations[:, 4:] == [0, 1]).all()


def test_a_state_without_a_legal_action_is_an_error() -> None:
    with plangym_like.make(Stuck) as env:
        state = env.reset(seed=0).state
        with pytest.raises(EnvApiError, match=r"Stuck\.turns_of_states returned no legal action"):
            env.rollout_batch(np.zeros((2, 20), int), state, legal=True)


@pytest.mark.parametrize("kind, players", [(ThreePlayers, "0 to 2"), (FromOne, "1 to 2")])
def test_players_that_are_not_0_and_1_are_an_error(kind: Any, players: str) -> None:
    with plangym_like.make(kind) as env:
        state = env.reset(seed=0).state
        reason = rf"{kind.__name__}\.turns_of_states must return players 0 and 1, got {players}"
        with pytest.raises(EnvApiError, match=reason):
            env.rollout_batch(np.zeros((2, 20), int), state, legal=True)


def test_games_that_are_over_are_not_played_on() -> None:
    with plangym_like.make(Heap) as env:
        states = np.repeat(env.reset(seed=0).state[None], 3, axis=0)
        states[2] = env.make_state(heap=np.array([0, 1]))
        with pytest.raises(ActionError, match="action 2 cannot be played, .* is over") as caught:
            env.rollout_batch([[2, 0]] * 3, states, legal=True)
        assert caught.value.__notes__ == ["(in row 2 of a batch of 3)"]


def test_a_replaced_step_is_not_ignored() -> None:
    with plangym_like.make(Heap) as env:
        state, base = env.reset(seed=0).state, env.gym_env.unwrapped
        env.rollout_batch(np.zeros((2, 20), int), state, legal=True)
        original = base.step
        base.step = lambda action: (lambda obs, pay, *rest: (obs, pay + 9, *rest))(
            *original(action)
        )
        assert env.rollout_batch([[0], [1]], state).rewards.tolist() == [[9], [9]]
        with pytest.raises(InputError, match=r"Heap\.step_states, which cannot be used now"):
            env.rollout_batch(np.zeros((2, 20), int), state, legal=True)
        del base.step
        env.rollout_batch(np.zeros((2, 20), int), state, legal=True)


def test_a_search_plays_such_a_game_well() -> None:
    with plangym_like.make(Heap) as env:
        state = env.reset(seed=0)
        for move in (0, 1):  # 17 stones are left: take 2, so that 15 are left
            state = env.step(move, state.state)
        plan = UCT(env, rollout=20).plan(state, budget=20_000, seed=0)
        assert (plan.next_action, plan.info["value"], plan.info["player"]) == (1, 1.0, 0)

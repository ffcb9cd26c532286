"""Functional JAX environments: episodes are their own, rows are pure, chunks are one vmap."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from comparing import assert_same

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'plangym_like[jax]'")

import gymnasium  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from gymnasium.envs.functional_jax_env import FunctionalJaxEnv  # noqa: E402
from gymnasium.experimental.functional import FuncEnv  # noqa: E402

import plangym_like  # noqa: E402
from plangym_like import ParallelEnv  # noqa: E402
from plangym_like.envs.functional import FunctionalEnv  # noqa: E402
from plangym_like.errors import InputError  # noqa: E402
from plangym_like.planners import UCT  # noqa: E402
from plangym_like.testing import check_env  # noqa: E402


class Drunkard(FuncEnv):
    """Walks where it is told or where it likes, on a hill whose height is a sine."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def initial(self, rng: Any, params: Any = None) -> Any:
        return {"place": jax.random.normal(rng, (2,)), "steps": jnp.int32(0)}

    def transition(self, state: Any, action: Any, rng: Any, params: Any = None) -> Any:
        push = 0.1 * (jnp.asarray(action) - 1) + 0.05 * jax.random.normal(rng, (2,))
        return {"place": state["place"] + jnp.sin(push), "steps": state["steps"] + 1}

    def observation(self, state: Any, rng: Any, params: Any = None) -> Any:
        return jnp.exp(jnp.sin(state["place"]))

    def reward(self, state: Any, action: Any, next_state: Any, rng: Any, params: Any = None) -> Any:
        return jnp.sin(next_state["place"]).sum()

    def terminal(self, state: Any, rng: Any, params: Any = None) -> Any:
        return state["steps"] >= 12


def pgx_game(name: str) -> str:
    pytest.importorskip("pgx", reason="pgx is not installed: pip install 'plangym_like[jax]'")
    return f"pgx/{name}"


def test_an_episode_is_what_gymnasium_makes_of_the_functions():
    other = FunctionalJaxEnv(Drunkard())
    with FunctionalEnv(Drunkard, autoreset=False) as env:
        assert env.snapshot == "native" and env.exactness == "exact"
        _, obs, _ = env.reset(seed=3)
        np.testing.assert_allclose(obs, other.reset(seed=3)[0], rtol=1e-5)
        for index in range(12):
            step, expected = env.step(index % 3), other.step(index % 3)
            # Compiled with others in one program, the last digits differ from one operation a time.
            np.testing.assert_allclose(step.obs, expected[0], rtol=1e-5)
            assert step.reward == pytest.approx(expected[1], rel=1e-5)
            assert step[2:4] == expected[2:4]
        assert step.terminated


def test_every_row_is_pure_wherever_it_lies_in_a_batch():
    rng = np.random.default_rng(0)
    with FunctionalEnv(Drunkard, autoreset=False) as env:
        env.reset(seed=0)
        walk = [env.step(int(rng.integers(3)), return_state=True).state for _ in range(14)]
        states = np.stack(walk)[rng.integers(14, size=150)]
        actions = rng.integers(3, size=150)
        dt = rng.integers(1, 4, size=150)
        batch = env.step_batch(actions, states, dt=dt)
        for index in range(0, 150, 11):
            alone = env.step(actions[index], states[index], dt=int(dt[index]))
            assert_same(batch.states[index], alone.state)
            assert_same(batch.obs[index], alone.obs)
            assert batch.rewards[index] == alone.reward
        order = rng.permutation(150)
        shuffled = env.step_batch(actions[order], states[order], dt=dt[order])
        np.testing.assert_array_equal(shuffled.states, batch.states[order])
        with ParallelEnv(FunctionalEnv, Drunkard, n_workers=2) as lanes:
            np.testing.assert_array_equal(
                lanes.step_batch(actions, states, dt=dt).states, batch.states
            )


def test_chance_comes_of_the_key():
    with FunctionalEnv(Drunkard) as env:
        state = env.reset(seed=0).state
        same = env.step_batch([1] * 4, state)
        assert len({row.tobytes() for row in same.states}) == 1
        chance = env.step_batch([1] * 4, state, seeds=[5, 6, 7, 5])
        assert len({row.tobytes() for row in chance.states}) == 3
        np.testing.assert_array_equal(chance.states[0], chance.states[3])


def test_a_game_of_pgx_is_pgxs_own():
    name = pgx_game("2048")
    import pgx

    game = pgx.make("2048")
    advance = jax.jit(game.step)
    use, key = jax.random.split(jax.random.PRNGKey(4))
    state = game.init(use)
    with plangym_like.make(name, autoreset=False) as env:
        row, obs, _ = env.reset(seed=4)
        np.testing.assert_array_equal(obs, state.observation)
        for index in range(20):
            use, key = jax.random.split(key)
            state = advance(state, index % 4, use)
            row, obs, reward, terminated, _, _ = env.step(index % 4, row)
            np.testing.assert_array_equal(obs, state.observation)
            assert reward == state.rewards[0] and terminated == bool(state.terminated)
            fields = env.view_state(row[None])
            np.testing.assert_array_equal(fields["legal_action_mask"][0], state.legal_action_mask)


def test_the_reward_is_that_of_the_player_who_moved():
    with plangym_like.make(pgx_game("tic_tac_toe"), autoreset=False) as env:
        env.reset(seed=0)
        for action in (0, 3, 1, 4):
            assert env.step(action).reward == 0
        won = env.step(2)
        assert won.reward == 1 and won.terminated
        for action in (0, 8):
            after = env.step(action)
            assert after.reward == 0 and after.terminated


def test_infos_are_pgxs_legal_moves_and_players():
    name = pgx_game("backgammon")  # a player may move several times
    import pgx

    advance, rng = jax.jit(pgx.make("backgammon").step), np.random.default_rng(0)
    use, key = jax.random.split(jax.random.PRNGKey(4))
    state = pgx.make("backgammon").init(use)
    with plangym_like.make(name, autoreset=False) as env:
        row, _, info = env.reset(seed=4)
        for _ in range(20):
            assert np.array_equal(info["action_mask"], state.legal_action_mask)
            assert info["to_play"] == state.current_player
            action = int(rng.choice(np.flatnonzero(info["action_mask"])))
            use, key = jax.random.split(key)
            state = advance(state, action, use)
            batch = env.step_batch([action], row)
            row, _, reward, _, _, info = env.step(action, row)
            assert batch.infos[0]["to_play"] == info["to_play"] and batch.rewards[0] == reward
            assert np.array_equal(batch.infos[0]["action_mask"], info["action_mask"])


class Turns(NamedTuple):
    """A state of two players that does not say which actions are legal."""

    current_player: Any
    observation: Any
    rewards: Any
    terminated: Any
    truncated: Any


class Sharing:
    num_actions = num_players = 2

    def init(self, key: Any) -> Turns:
        return Turns(jnp.int32(0), jnp.zeros(2), jnp.zeros(2), jnp.bool_(False), jnp.bool_(False))

    def step(self, state: Turns, action: Any, key: Any) -> Turns:
        return state._replace(
            current_player=1 - state.current_player, observation=state.observation + action
        )


def test_states_of_two_players_may_have_no_mask():
    with FunctionalEnv(Sharing) as env:
        assert "to_play" not in env.reset(seed=0).info
        step = env.step(1)
        assert step.obs.tolist() == [1.0, 1.0] and "action_mask" not in step.info


def test_no_move_is_legal_when_a_game_is_over():
    with plangym_like.make(pgx_game("tic_tac_toe"), autoreset=False) as env:
        step = env.reset(seed=0)
        for action in (0, 3, 1, 4):
            step = env.step(action, step.state)
        both = env.step_batch([2, 8], step.state)
        over = env.step(2, step.state)
        assert over.terminated and not over.info["action_mask"].any()
        assert both.infos["action_mask"].sum(axis=1).tolist() == [0, 4]


@pytest.mark.parametrize("rollout", [0, 9])
def test_a_search_proves_that_tic_tac_toe_is_a_draw(rollout: int):
    with plangym_like.make(pgx_game("tic_tac_toe")) as env:
        start = env.step(0, env.reset(seed=0).state)
        plan = UCT(env, batch=64, rollout=rollout).plan(start, budget=40_000, seed=0)
        assert plan.info["solved"] and plan.info["value"] == 0.0 and plan.next_action == 4


@pytest.mark.full
@pytest.mark.parametrize("game", ["2048", "tic_tac_toe", "minatar-breakout", "backgammon"])
def test_every_check_passes(game):
    report = check_env(pgx_game(game), states=6, steps=8, workers=(2,))
    assert report.ok, str(report)


def test_every_check_passes_by_ones_own():
    env = FunctionalEnv(Drunkard)
    report = check_env(env, states=4, steps=6, workers=())
    env.close()
    assert report.ok, str(report)


def test_what_is_not_functional():
    pgx_game("2048")
    with pytest.raises(InputError, match="pgx has no game"):
        plangym_like.make("pgx/nim")
    with pytest.raises(InputError, match="known"):
        FunctionalEnv(dict).setup()

    class Unsteppable:
        num_actions = 2

        def init(self, key):
            return key

    with pytest.raises(InputError, match="lacks pgx's init, step or num_actions"):
        FunctionalEnv(Unsteppable).setup()

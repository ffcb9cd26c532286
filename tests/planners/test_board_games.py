"""Board games with known answers: legal moves, several players, solved positions, chance."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from board_games import (
    ConnectFour,
    Corridor,
    FastConnectFour,
    FastTicTacToe,
    FiveByFour,
    Lines,
    Nim,
    Pig,
    SilentCorridor,
    SixByFour,
    Thirds,
    TicTacToe,
    rules,
)
from usual import first_of

import plangym_like
from plangym_like import planners
from plangym_like.errors import EnvApiError, InputError, RewardError
from plangym_like.planners import PUCT, UCT, OpenLoopMCTS, play
from plangym_like.results import BatchInfo, BatchTransition


def _uniform(obs: Any, num_players: int | None = None) -> Any:
    """Return equal priors, and values of 0 (of all players if their number is given)."""
    if isinstance(obs, dict):
        count, size = obs["action_mask"].shape
    else:
        count, size = len(obs), {9: 9, 42: 7, 4: 2, 2: 3}[obs.shape[1]]
    shape = (count,) if num_players is None else (count, num_players)
    return np.full((count, size), 1 / size), np.zeros(shape)


def _after(env: Any, moves: list[int]) -> Any:
    """Return the result of the last of some moves from the start."""
    result = env.reset(seed=0)
    for move in moves:
        result = env.step(move, result.state)
    return result


def _replies(game: type[Lines], board: Any) -> Any:
    """Return the legal actions, and the boards, rewards and ends after them."""
    actions = np.flatnonzero(game.legal(board[None])[0])
    return actions, *game.after(np.repeat(board[None], len(actions), 0), actions)


@functools.cache
def _value(game: type[Lines], board: bytes) -> float:
    """Return the value of a board for the player to move, by exhaustive search."""
    return max(_values(game, np.frombuffer(board, np.int8)).values())


def _values(game: type[Lines], board: Any) -> dict[int, float]:
    """Return the value of each legal action; of a draw or a loss, only if there is no win."""
    actions, after, rewards, ended = _replies(game, board)
    if rewards.any():
        return dict(zip(actions.tolist(), rewards.tolist(), strict=True))
    return {
        action: 0.0 if is_over else -_value(game, there.tobytes())
        for action, there, is_over in zip(actions.tolist(), after, ended, strict=True)
    }


def _wins(board: Any, depth: int) -> list[int]:
    """Return the moves of Connect Four that win within `depth` moves, by exhaustive search."""
    actions, after, rewards, _ = _replies(ConnectFour, board)
    if (rewards > 0).any() or depth < 3:
        return actions[rewards > 0].tolist()
    found = []
    for action, there in zip(actions.tolist(), after, strict=True):
        _, replies, answers, _ = _replies(ConnectFour, there)
        if not (answers > 0).any() and all(_wins(reply, depth - 2) for reply in replies):
            found.append(action)
    return found


@pytest.fixture(scope="module")
def positions() -> Iterator[tuple[Any, BatchTransition]]:
    """All positions of tic-tac-toe that are not over, of those that are symmetric only one."""
    squares = np.arange(9).reshape(3, 3)
    turned = [np.rot90(way, turns).ravel() for way in (squares, squares.T) for turns in range(4)]
    with plangym_like.make(FastTicTacToe) as env:
        start = env.reset(seed=0)
        states, boards = [start.state[None]], [start.obs[None]]
        while len(boards[-1]):
            parents, actions = TicTacToe.legal(boards[-1]).nonzero()
            step = env.step_batch(actions, states[-1][parents])
            (on,) = (~step.terminateds).nonzero()
            same = [sorted(step.obs[row][order].tolist() for order in turned)[0] for row in on]
            kept = on[np.unique(np.array(same).reshape(-1, 9), axis=0, return_index=True)[1]]
            states.append(step.states[kept])
            boards.append(step.obs[kept])
        obs = np.concatenate(boards)
        count, flags = len(obs), np.zeros(len(obs), bool)
        infos = BatchInfo(count, {})
        yield (
            env,
            BatchTransition(
                np.concatenate(states), obs, np.zeros(count), flags, flags.copy(), infos
            ),
        )


def test_tic_tac_toe_is_proven_a_draw_from_every_first_move() -> None:
    with plangym_like.make(FastTicTacToe) as env:
        start = env.reset(seed=0)
        planner = UCT(env, batch=512, rollout=0, **rules(FastTicTacToe))
        plan = planner.plan(start, budget=100_000, seed=0)
        assert plan.info["solved"] and plan.info["length"] == 9
        assert plan.info["value"] == 0.0
        assert plan.info["values"].tolist() == [0.0] * 9
        assert plan.spent.transitions < 100_000, "the search ends with the proof"
        assert len(plan) == 9 and plan.ended and plan.replay(env) == plan.score == 0.0


@pytest.mark.parametrize("batch", first_of([32, 8]))
def test_all_positions_of_tic_tac_toe_are_played_perfectly(positions: Any, batch: int) -> None:
    env, given = positions
    assert len(given.obs) == 627
    planner = UCT(env, batch=batch, rollout=9, **rules(FastTicTacToe))
    plans = planner.plan_batch(given, budget=500 * 10, seed=0)
    for board, plan in zip(given.obs, plans, strict=True):
        values = _values(TicTacToe, board)
        assert values[int(plan.next_action)] == max(values.values())
        assert plan.info["mask"].nonzero()[0].tolist() == list(values)
        assert plan.info["player"] == TicTacToe.to_play(board[None])[0]
        if plan.info["solved"]:
            assert plan.info["value"] == max(values.values())
    assert np.mean([plan.info["solved"] for plan in plans]) > 0.9


def test_many_searches_together_are_the_same_as_one_by_one(positions: Any) -> None:
    env, given = positions
    planner = PUCT(env, _uniform, **rules(FastTicTacToe))
    together = planner.plan_batch(given, budget=100)
    for row in range(0, 627, 150):
        one = BatchTransition(*(part[row : row + 1] for part in given[:5]), BatchInfo(1, {}))
        (alone,) = planner.plan_batch(one, budget=100, seed=7)
        assert np.array_equal(alone.actions, together[row].actions)
        assert alone.spent.transitions == together[row].spent.transitions
        for name in ("visits", "policy", "values", "value", "solved", "length"):
            np.testing.assert_equal(alone.info[name], together[row].info[name])


def test_subtrees_of_many_searches_are_kept() -> None:
    with plangym_like.make(TicTacToe) as env:
        starts = [env.reset(seed=0), _after(env, [4]), _after(env, [0, 4])]
        planner = UCT(env, rollout=9)
        plans = planner.plan_batch(starts, budget=400, seed=0)
        actions = [8, 0, 1]
        after = [env.step(move, start.state) for move, start in zip(actions, starts, strict=True)]
        planner.advance([8, 0, 2])  # the last one is another action
        following = planner.plan_batch(after, budget=40, seed=0)
        for old, new, action in zip(plans[:2], following, actions, strict=False):
            assert new.info["visits"].sum() > old.info["visits"][action] / 2
            assert new.info["player"] == 1 - old.info["player"]
        assert following[2].info["visits"].sum() <= 40


def test_advance_takes_actions_that_could_be_played() -> None:
    with plangym_like.make(TicTacToe) as env:
        starts = [_after(env, [4]), _after(env, [0, 4])]
        planner = UCT(env, rollout=9)
        first, _ = planner.plan_batch(starts, budget=400, seed=0)
        for actions, words in (
            ([0], "one action for each of the 2 states of plan_batch, got 1"),
            ([0, 9], "9"),
            (["a", 0], "a"),
            ([0, 4], "action 4 is not legal in state 1"),
        ):
            with pytest.raises(InputError, match=words):
                planner.advance(actions)
        planner.advance([0, 8])  # nothing was lost
        after = [env.step(move, one.state) for move, one in zip((0, 8), starts, strict=True)]
        kept = planner.plan_batch(after, budget=40, seed=0)[0].info["visits"].sum()
        assert kept > first.info["visits"][0] / 2
        planner.plan(starts[0], budget=40, seed=0)
        with pytest.raises(InputError, match="action 4 is not legal in state 0"):
            planner.advance(4)
    with plangym_like.make("CartPole-v1") as env:
        planner = UCT(env)
        planner.plan(env.reset(seed=0), budget=40)
        with pytest.raises(InputError, match="action"):
            planner.advance(2)


@pytest.mark.parametrize("heaps", [(1, 2, 3), (1, 2, 2), (0, 2, 3)])
@pytest.mark.parametrize("maker", [UCT, functools.partial(PUCT, evaluate=_uniform)])
def test_nim_is_solved(heaps: tuple[int, ...], maker: Any) -> None:
    with plangym_like.make(Nim) as env:
        start = env.reset(options={"heaps": heaps})
        plan = maker(env).plan(start, budget=20_000, seed=0)
        is_won = functools.reduce(lambda a, b: a ^ b, heaps) != 0
        assert plan.info["solved"] and plan.info["value"] == (1.0 if is_won else -1.0)
        left = np.array(heaps)
        heap, number = divmod(int(plan.next_action), 3)
        left[heap] -= number + 1
        if is_won:
            assert functools.reduce(lambda a, b: a ^ b, left.tolist()) == 0
        # The line of play ends the game after as many moves as was said.
        assert plan.ended and len(plan) == plan.info["length"]
        assert plan.replay(env) == plan.score


THREE = [[3, 3, 2, 2]]
FIVE = [[3, 6, 0, 2, 6, 5, 2, 0, 4, 1, 6, 1, 3, 3]]


@pytest.mark.parametrize("maker", [UCT, functools.partial(PUCT, evaluate=_uniform)])
@pytest.mark.parametrize("moves", [*THREE, *FIVE])
def test_forced_wins_in_connect_four(moves: list[int], maker: Any) -> None:
    depth = 3 if moves in THREE else 5
    with plangym_like.make(FastConnectFour) as env:
        root = _after(env, moves)
        good = _wins(root.obs, depth)
        assert good and not _wins(root.obs, depth - 2)
        planner = maker(env, batch=64, **rules(FastConnectFour))
        plan = planner.plan(root, budget=60_000, seed=0)
        assert plan.info["solved"] and plan.info["value"] == 1.0
        assert plan.info["length"] >= depth
        if plan.info["length"] == depth:
            assert plan.next_action in good
        # The loser's side of the same line: the position after the move is a forced loss.
        lost = env.step(plan.next_action, root.state)
        after = planner.plan(lost, budget=60_000, seed=0)
        assert after.info["solved"] and after.info["value"] == -1.0
        assert after.info["length"] >= depth - 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("game", "simulations", "score"), [(FiveByFour, 20_000, 0.0), (SixByFour, 40_000, -1.0)]
)
def test_small_boards_of_connect_four_have_their_known_values(
    game: type[Lines], simulations: int, score: float
) -> None:
    # The values are those of an exhaustive search (alpha-beta).
    size = game.rows * game.columns
    with plangym_like.make(game) as env:
        planner = UCT(env, batch=512, rollout=size, **rules(game))
        played = play(planner, size, budget=simulations * size, seed=0)
        winner = played.rewards[-1] * (1 if len(played) % 2 else -1)
        assert played.ended and winner == score


@functools.cache
def _thirds(total: int, player: int) -> tuple[float, ...]:
    """Return the rewards of the three players if each maximises its own; the first of equals."""
    best: tuple[float, ...] = ()
    for added in range(1, min(3, 7 - total) + 1):
        if total + added == 7:
            found = [0.0, 0.0, 0.0]
            found[player], found[player - 1] = 1.0, 0.5
        else:
            found = list(_thirds(total + added, (player + 1) % 3))
        if not best or found[player] > best[player]:
            best = tuple(found)
    return best


@pytest.mark.parametrize(
    "maker",
    [UCT, functools.partial(PUCT, evaluate=functools.partial(_uniform, num_players=3))],
)
@pytest.mark.parametrize("moves", [[2], [0, 1]])
def test_three_players_maximise_their_own_rewards(maker: Any, moves: list[int]) -> None:
    with plangym_like.make(Thirds) as env:
        root = _after(env, moves)
        plan = maker(env).plan(root, budget=2_000, seed=0)
        player = len(moves) % 3
        assert plan.info["player"] == player
        assert plan.info["value"] == _thirds(int(root.obs[0]), player)[player]


def _pig_value() -> Any:
    """Return how likely the player to move wins, ``[own, other, turn]``, by iteration."""
    goal, sides = Pig.goal, Pig.sides
    wins = np.full((goal, goal, goal + 1), 0.5)
    for _ in range(40):
        for own, other, turn in np.ndindex(*wins.shape):
            held = 1.0 if own + turn >= goal else 1 - wins[other, own + turn, 0]
            rolls = [1 - wins[other, own, 0]]
            rolls += [wins[own, other, min(turn + eye, goal)] for eye in range(2, sides + 1)]
            wins[own, other, turn] = max(held, np.mean(rolls))
    return wins


@pytest.mark.parametrize(
    "maker",
    [
        functools.partial(UCT, rollout=20, outcomes=4, explore=0.5),
        functools.partial(PUCT, rollout=20, outcomes=4),
    ],
)
def test_a_game_of_chance_has_the_expected_value(maker: Any) -> None:
    wins = _pig_value()
    with plangym_like.make(Pig) as env:
        root = env.reset(seed=0)
        plan = maker(env).plan(root, budget=6_000, seed=0)
        assert plan.info["value"] == pytest.approx(2 * wins[0, 0, 0] - 1, abs=0.15)
        assert plan.next_action == 0, "there is nothing to keep yet"
        assert not plan.info["solved"]


# Legal actions for all planners


ONE_PLAYER: list[Any] = [
    planners.RandomShooting,
    planners.BeamSearch,
    planners.BestFirst,
    planners.AStar,
    planners.FractalMonteCarlo,
    functools.partial(planners.GoExplore, cell_of=lambda obs, infos: obs[:, 0].tolist()),
    planners.IW,
    planners.RolloutIW,
]


@pytest.mark.parametrize(
    "maker", [*ONE_PLAYER, UCT, OpenLoopMCTS, functools.partial(PUCT, rollout=5)]
)
@pytest.mark.parametrize("told_by", first_of(["infos", "function"]))
def test_every_planner_takes_legal_actions_only(maker: Any, told_by: str) -> None:
    def legal(obs: Any, infos: Any, states: Any) -> Any:
        places = np.zeros(len(states), int) if obs is None else obs[:, 0]
        return Corridor.masks(places)

    cls, options = (Corridor, {}) if told_by == "infos" else (SilentCorridor, {"legal": legal})
    with plangym_like.make(cls) as env:  # it raises if an action is not legal
        start = env.reset(seed=0)
        planner = maker(env, **options)
        plan = planner.plan(start, budget=1_500, seed=0)
        assert plan.score == 1.0 and plan.replay(env) == 1.0
        planner.advance(plan.actions[0])
        after = env.step(plan.actions[0], start.state)
        assert planner.plan(after, budget=1_500, seed=0).score == 1.0
        assert play(maker(env, **options), 2, start, budget=300, seed=0).replay(env) == 0.0


def test_rows_say_nothing_of_players() -> None:
    with plangym_like.make(TicTacToe) as env:
        env.reset(seed=0)
        after = env.step_batch([4], env.get_state()).states[0]
        with pytest.raises(InputError, match="not known who moves in the first state"):
            UCT(env).plan(after, budget=1_000)
        # The rows of the last result are known.
        step = env.step(4, env.get_state())
        assert UCT(env).plan(step.state, budget=1_000, seed=0).info["player"] == 1


def test_errors_of_functions_of_states_are_their_own() -> None:
    with plangym_like.make(FastTicTacToe) as env:
        after = env.step_batch([4], env.reset(seed=0).state).states[0]
        good = rules(FastTicTacToe)
        for options, error in (
            ({**good, "legal": lambda states: states > 0}, TypeError),
            ({**good, "to_play": lambda obs, infos, states: infos["turn"]}, KeyError),
        ):
            with pytest.raises(error) as raised:
                UCT(env, **options).plan(after, budget=100)
            assert "f(observations, infos, states)" in raised.value.__notes__[0]


@pytest.mark.parametrize("name", ["openspiel/tic_tac_toe", "pettingzoo/connect_four_v3"])
def test_rows_that_hold_masks_and_players_need_no_info(name: str) -> None:
    pytest.importorskip("pyspiel" if name.startswith("openspiel") else "pettingzoo.classic")
    with plangym_like.make(name) as env, plangym_like.make(name) as fresh:
        first = env.reset(seed=0)
        after: Any = first
        for action in (2, 2 if name.startswith("pettingzoo") else 3, 4):
            after = env.step(action, after.state)
        told = UCT(env).plan(after, budget=500, seed=0)
        bare = UCT(fresh).plan(after.state, budget=500, seed=0)
        assert fresh.last_result is None
        assert bare.info["player"] == after.info["to_play"] == 1
        assert np.array_equal(bare.info["mask"], after.info["action_mask"])
        for field in ("visits", "values", "mask"):
            np.testing.assert_equal(bare.info[field], told.info[field])
        both = UCT(env).plan_batch([first.state, after.state], budget=100, seed=0)
        assert [plan.info["player"] for plan in both] == [0, 1]
        assert np.array_equal(both[1].info["mask"], after.info["action_mask"])
        with pytest.raises(InputError, match="plans for one player"):
            planners.RandomShooting(fresh).plan(after.state, budget=100)


def test_planners_for_one_player_refuse_games() -> None:
    with plangym_like.make(TicTacToe) as env:
        start = env.reset(seed=0)
        words = " plans for one player.*of 2: use UCT, PUCT or OpenLoopMCTS"
        for maker in (*ONE_PLAYER, planners.GoExplore):  # also before it asks for cells
            with pytest.raises(InputError, match=words):
                maker(env).plan(start, budget=1_000)


@pytest.mark.parametrize("maker", [UCT, functools.partial(PUCT, evaluate=_uniform), OpenLoopMCTS])
def test_no_search_begins_where_a_game_has_ended(maker: Any) -> None:
    with plangym_like.make(TicTacToe) as env:
        going, over = _after(env, [0, 3, 1, 4]), _after(env, [0, 3, 1, 4, 2])
        assert over.terminated
        planner, words = maker(env), "ends an episode .*no plan begins there"
        with pytest.raises(InputError, match=f"the given result {words}"):
            planner.plan(over, budget=200, seed=0)
        with pytest.raises(InputError, match=words):
            play(planner, 5, over, budget=200, seed=0)
        with pytest.raises(InputError, match=f"result 1 of 3 {words}"):
            planner.plan_batch([going.state, over, over], budget=200, seed=0)
        step = env.step_batch([5, 2], going.state)
        with pytest.raises(InputError, match=f"result 1 of 2 {words}"):
            planner.plan_batch(step, budget=200, seed=0)


class NoMoves(TicTacToe):
    """Forgets to end the game when no move is left."""

    def step(self, action: Any) -> Any:
        obs, reward, ended, truncated, info = super().step(action)
        if (obs != 0).all():
            ended = False
        return obs, reward, ended, truncated, info


def test_a_state_without_a_legal_action_is_an_error() -> None:
    with plangym_like.make(NoMoves) as env:
        start = env.reset(seed=0)
        with pytest.raises(EnvApiError, match="has a state without legal actions"):
            UCT(env, rollout=9).plan(start, budget=2_000, seed=0)


class NoReward(Thirds):
    def _info(self, rewards: Any) -> dict[str, Any]:
        return super()._info(rewards if self.x[0] < self.goal else rewards * np.nan)


def test_a_reward_of_a_player_that_cannot_be_compared_is_an_error() -> None:
    with plangym_like.make(NoReward) as env:
        start = env.reset(seed=0)
        for planner in (UCT(env, rollout=9), OpenLoopMCTS(env)):
            with pytest.raises(
                RewardError, match=r'NoReward returned the reward nan in info\["rew'
            ):
                planner.plan(start, budget=2_000, seed=0)


def test_a_game_is_the_same_by_infos_and_by_functions() -> None:
    plans = []
    for cls, options in ((TicTacToe, {}), (FastTicTacToe, rules(FastTicTacToe))):
        with plangym_like.make(cls) as env:
            start = env.reset(seed=0)
            plan = UCT(env, rollout=9, **options).plan(start, budget=1_000, seed=0)
            plans.append(plan.info["visits"].tolist())
    assert plans[0] == plans[1]


@pytest.mark.parametrize("n_workers", first_of([None, 2]))
def test_a_game_is_played_to_its_end(n_workers: int | None) -> None:
    with plangym_like.make(TicTacToe, n_workers=n_workers) as env:
        start = env.reset(seed=0)
        game = play(UCT(env, rollout=9), 9, start, budget=3_000, seed=0)
        assert game.ended and len(game) == 9 and game.score == 0.0, "a draw"
        assert game.info["player"].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
        assert game.info["mask"].sum(axis=1).tolist() == list(range(9, 0, -1))
        assert np.allclose(game.info["policy"].sum(axis=1), 1)
        assert game.info["visits"].shape == (9, 9) and game.info["value"].shape == (9,)
        for action, mask in zip(game.actions, game.info["mask"], strict=True):
            assert mask[action]

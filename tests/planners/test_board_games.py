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
    Dice,
    FastConnectFour,
    FastTicTacToe,
    Late,
    Lines,
    Nim,
    SilentCorridor,
    SixByFour,
    Thirds,
    TicTacToe,
    rules,
)
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics
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


def test_every_move_may_be_told_to_the_next_search() -> None:
    with plangym_like.make(TicTacToe) as env:
        planner = UCT(env, rollout=9)
        with pytest.raises(InputError, match="call plan first"):
            planner.advance(0)
        planner.plan(_after(env, []), budget=4_000, seed=0)
        planner.advance(4)
        for wrong in (4, 9):
            with pytest.raises(InputError, match=f"action {wrong} is not"):
                planner.advance(wrong)
        planner.advance(0)
        assert planner.plan(_after(env, [4, 0]), budget=10, seed=0).info["nodes"] > 20
        with pytest.raises(InputError, match="too small"):
            planner.plan(_after(env, []), budget=1)
        planner.advance(4)  # nothing is kept of this search
        # The second game ends, and the last one is played otherwise.
        starts = [_after(env, []), _after(env, [0, 3, 1, 4]), _after(env, [4]), _after(env, [0])]
        planner.plan_batch(starts, budget=400, seed=0)
        for actions, words in (
            ([0], "one action for each of the 4 states of plan_batch, got 1"),
            ([4, 2, 0, 9], "9"),
            ([4, 2, 0, 0], "action 0 is not legal in state 3"),
        ):
            with pytest.raises(InputError, match=words):
                planner.advance(actions)
        planner.advance([4, 2, 0, 1])
        left = [_after(env, moves) for moves in ([4], [4, 0], [0, 2])]
        plans = planner.plan_batch(left, budget=10, seed=0)
        assert [plan.info["nodes"] > 2 for plan in plans] == [True, True, False]


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
        assert plan.ended and len(plan) == plan.info["length"]
        assert plan.replay(env) == plan.score


MAKERS = [functools.partial(UCT, rollout=20), functools.partial(PUCT, rollout=20)]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("discount", [1.0, 0.7])
def test_what_is_solved_is_the_best_value_and_the_move_that_has_it(
    maker: Any, discount: float
) -> None:
    with plangym_like.make(Late) as env:
        plan = maker(env, discount=discount).plan(env.reset(), budget=3_000, seed=0)
        assert plan.info["solved"] and plan.info["value"] == pytest.approx(discount**6)
        assert plan.next_action == 0 and plan.info["length"] == len(plan) == 7


@pytest.mark.parametrize("maker", MAKERS)
def test_returns_above_the_one_that_proves_a_win(maker: Any) -> None:
    words = "a return of 1, but .* proven by 0.5: give win="
    with plangym_like.make(Late) as env, pytest.raises(InputError, match=words):
        maker(env, win=0.5).plan(env.reset(), budget=2_000, seed=0)
    pytest.importorskip("pyspiel")
    board = {"num_rows": 1, "num_cols": 3, "utility_margin": True}
    with plangym_like.make("openspiel/dots_and_boxes", **board) as env:
        plan = maker(env).plan(_after(env, [6, 9, 5, 4, 3]), budget=6_000, seed=1)
        assert plan.next_action == 1 and plan.info["value"] == 3.0 and plan.info["solved"]


@pytest.mark.parametrize("maker", MAKERS)
def test_dice_of_the_rules_are_not_known_before_they_fall(maker: Any) -> None:
    pytest.importorskip("pyspiel")
    with plangym_like.make("openspiel/pig", winscore=3) as env:
        start, planner = env.reset(seed=3), maker(env)
        plan = planner.plan(start, budget=10_000, seed=0)
        assert plan.info["value"] == pytest.approx(0.674, abs=0.05) and not plan.info["solved"]
        assert plan.next_action == 0, "there is nothing to keep yet"
        planner.advance(0)  # a 1 falls, so it is the other player's turn
        after = planner.plan(env.step(0, start.state), budget=100, seed=0)
        assert after.info["player"] == 1 and after.info["nodes"] > 30
        assert not maker(env, outcomes=1).plan(start, budget=10_000, seed=0).info["solved"]
        assert play(OpenLoopMCTS(env), 9, start, budget=300, seed=0).ended
    with plangym_like.make("openspiel/pig", wrappers=[RecordEpisodeStatistics]) as env:
        assert maker(env).outcomes == 32, "wrappers do not make dice known"


@pytest.mark.parametrize("maker", MAKERS)
def test_dice_that_only_masks_show(maker: Any) -> None:
    with plangym_like.make(Dice) as env:
        assert play(maker(env, outcomes=9), 6, env.reset(seed=0), budget=300, seed=0).ended


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
def test_a_small_board_of_connect_four_has_its_known_value() -> None:
    # The value is that of an exhaustive search (alpha-beta).
    with plangym_like.make(SixByFour) as env:
        planner = UCT(env, batch=512, rollout=24, **rules(SixByFour))
        played = play(planner, 24, budget=40_000 * 24, seed=0)
        winner = played.rewards[-1] * (1 if len(played) % 2 else -1)
        assert played.ended and winner == -1.0


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


def test_random_shooting_maximises_the_score_of_games() -> None:
    with plangym_like.make(Corridor) as env:
        planner = planners.RandomShooting(env, discount=0.9)
        with pytest.raises(InputError, match="takes no discount"):
            planner.plan(env.reset(seed=0), budget=1_000)
    steered = type("Steered", (Corridor,), {"action_space": spaces.Box(2, 2.9, ())})
    with plangym_like.make(steered) as env:  # its masks have no meaning
        assert planners.RandomShooting(env).plan(env.reset(), budget=300, seed=0).score == 1.0


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


@pytest.mark.parametrize(
    ("maker", "game"), [(UCT, TicTacToe), (UCT, Corridor), (planners.RandomShooting, Corridor)]
)
def test_a_row_says_nothing_of_players_and_masks(maker: Any, game: Any) -> None:
    with plangym_like.make(game) as env:
        start, after = env.reset(seed=0), _after(env, [2])
        words = "not known who moves in the first state, or which actions are legal"
        with pytest.raises(InputError, match=words):
            maker(env).plan(start.state, budget=1_000)
        with pytest.raises(InputError, match=words):
            UCT(env).plan_batch([start, start.state], budget=1_000)
        maker(env).plan(after.state, budget=1_000, seed=0)  # that of the last result is known


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda info: info | {"rewards": {0: 0.0, 1: 0.0}}, "must be an array"),
        (lambda info: info | {"rewards": np.zeros(1)}, "a player from 0 to 0, got 1"),
        (lambda info: {"rewards": np.zeros(2)}, "to_play.* is missing"),
        (lambda info: info | {"action_mask": info["action_mask"] * 2}, "hold 1 for a legal"),
        (lambda info: info | {"action_mask": np.zeros(9)}, "without legal act"),
    ],
)
def test_infos_that_have_no_meaning_are_errors(change: Any, words: str) -> None:
    told = type("Told", (TicTacToe,), {"info": lambda self: change(TicTacToe.info(self))})
    with plangym_like.make(told) as env, pytest.raises(EnvApiError, match=words):
        UCT(env).plan(env.reset(), budget=1_000)


class Observed(TicTacToe):
    """Shows masks and players in observations, as LightZero does; actions have two parts."""

    def __init__(self) -> None:
        size = {"board": (9,), "action_mask": (9,), "to_play": ()}
        self.observation_space = spaces.Dict(
            {name: spaces.Box(0, 2, shape, np.int8) for name, shape in size.items()}
        )
        self.action_space = spaces.MultiDiscrete([3, 3])

    def reset(self, **kwargs: Any) -> Any:
        board, info = super().reset(**kwargs)
        return {"board": board, **info}, {}

    def step(self, action: Any) -> Any:
        board, reward, ended, _, info = super().step(action @ [3, 1])
        return {"board": board, **info}, reward, ended, False, {}


def test_masks_and_players_in_observations_and_masks_of_actions_with_parts() -> None:
    plans = []
    for game, moves in ((TicTacToe, [0, 1, 4]), (Observed, [[0, 0], [0, 1], [1, 1]])):
        with plangym_like.make(game) as env:
            plan = UCT(env, rollout=9).plan(_after(env, moves), budget=500, seed=0)
            plans.append((plan.info["player"], plan.info["visits"].tolist()))
    assert plans[0] == plans[1]


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
        assert game.info["solved"][-1] and game.info["length"].tolist()[-2:] == [2, 1]
        line = OpenLoopMCTS(env).plan(_after(env, [0, 3, 1, 4]), budget=5_000, seed=0)
        assert line.ended and line.score == line.replay(env) == 1.0
        for action, mask in zip(game.actions, game.info["mask"], strict=True):
            assert mask[action]

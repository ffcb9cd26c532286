"""OpenSpiel's games: each state row restores its position exactly, with legal moves and players."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends import make_on
from gymnasium.wrappers import RecordEpisodeStatistics
from played_games import assert_restores, assert_same_batch, play
from usual import first_of, third_of

import plangym_like
from plangym_like import check_env
from plangym_like.envs import game_positions
from plangym_like.errors import (
    ActionError,
    InputError,
    StateCapacityError,
    StateFormatError,
    StateMismatchError,
)
from plangym_like.states.random_state import seeded_generator

pyspiel = pytest.importorskip("pyspiel", reason="open-spiel is not installed")

from plangym_like.envs.openspiel import PREFIX, all_ids  # noqa: E402

POSITIONS = 120
# Games of all kinds: long ones, with chance, with one player and with more than two.
GAMES: dict[str, dict[str, Any]] = {
    "2048": {},
    "amazons": {},
    "backgammon": {},
    "breakthrough": {},
    "catch": {},
    "checkers": {},
    "chess": {},
    "chinese_checkers": {"players": 3},
    "cliff_walking": {},
    "connect_four": {"rows": 5, "columns": 4},
    "dots_and_boxes": {},
    "einstein_wurfelt_nicht": {},
    "go": {"board_size": 9},
    "hex": {"board_size": 5},
    "mancala": {},
    "misere(game=tic_tac_toe())": {},
    "nim": {},
    "othello": {},
    "oware": {},
    "pentago": {},
    "pig": {"players": 3},
    "python_tic_tac_toe": {},
    "shogi": {},
    "tic_tac_toe": {},
    "ultimate_tic_tac_toe": {},
    "y": {"board_size": 5},
    "yacht": {},
}
REST = [name.removeprefix(PREFIX) for name in all_ids() if name.removeprefix(PREFIX) not in GAMES]


class Straight:
    """A game that is played straight through with OpenSpiel alone."""

    def __init__(self, name: str, parameters: dict[str, Any]) -> None:
        if name.startswith("python_"):
            import open_spiel.python.games  # noqa: F401
        text = pyspiel.game_parameters_from_string(name)
        short = text.pop("name") if "(" in name else name
        self.game = pyspiel.load_game(short, {**text, **parameters} if "(" in name else parameters)

    def begin(self, seed: int) -> tuple[Any, ...]:
        self.state, self.random = self.game.new_initial_state(), seeded_generator(seed)
        self.chance()
        return self.seen(0)

    def chance(self) -> None:
        while self.state.is_chance_node():
            outcomes, probabilities = zip(*self.state.chance_outcomes(), strict=True)
            reached = np.cumsum(probabilities) > self.random.random()
            self.state.apply_action(outcomes[int(reached.argmax())])

    def move(self, action: int) -> tuple[Any, ...]:
        mover, before = self.state.current_player(), np.array(self.state.returns())
        self.state.apply_action(action)
        self.chance()
        return *self.seen(mover), self.state.returns() - before + 0.0, self.state.is_terminal()

    def seen(self, mover: int) -> tuple[Any, ...]:
        over = self.state.is_terminal()
        player = mover if over else self.state.current_player()
        obs = np.asarray(self.state.observation_tensor(player), np.float32)
        mask = np.zeros(self.game.num_distinct_actions(), np.int8)
        mask[[] if over else self.state.legal_actions()] = 1
        return obs, mask, player


def make(name: str, **options: Any) -> Any:
    return plangym_like.make(PREFIX + name, **{**GAMES.get(name, {}), **options})


@pytest.mark.parametrize("name", [*third_of(GAMES), *first_of(REST, 0)])
def test_every_position_is_restored_exactly(name: str) -> None:
    with make(name, autoreset=False) as env, make(name) as other:
        assert (env.snapshot, env.exactness) == ("native", "exact")
        assert_restores(env, other, Straight(name, GAMES.get(name, {})), POSITIONS)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["isolated", "ray"], indirect=True)
@pytest.mark.parametrize("name", GAMES)
def test_every_position_is_restored_exactly_elsewhere(name: str, backend: str) -> None:
    options = GAMES[name]
    with make(name, autoreset=False) as env, make_on(backend, PREFIX + name, **options) as other:
        played = play(env, Straight(name, options), 200)
        assert_same_batch(other, played, np.random.default_rng(1).permutation(200))


@pytest.mark.parametrize("name", ["backgammon", "connect_four"])
def test_positions_that_are_no_longer_kept_are_played_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(game_positions, "_MOST_KEPT", 20)
    with make(name, autoreset=False) as env:
        played = play(env, Straight(name, GAMES.get(name, {})), 100)
        assert_same_batch(env, played, np.random.default_rng(1).permutation(100))
        assert len(env.simulator.base.positions._kept) == 20


@pytest.mark.parametrize(
    ("name", "wrappers"),
    first_of([("nim", [RecordEpisodeStatistics]), ("2048", []), ("chess", [])]),
)
def test_check_env_plays_legal_moves(name: str, wrappers: list[Any]) -> None:
    report = check_env(PREFIX + name, workers=(2,), wrappers=wrappers)
    assert report.ok, report
    assert {"rollout", "workers"} <= set(report.passed)


@pytest.mark.parametrize("name", first_of(["dots_and_boxes", "backgammon", *GAMES], 2))
def test_legal_rollouts_are_the_moves_that_they_report(name: str) -> None:
    env, rng = make(name, audit_every=1), np.random.default_rng(0)
    starts = np.stack([env.reset(seed=seed).state for seed in range(3)])
    plans = rng.integers(env.action_space.n, size=(3, 100))
    found = env.rollout_batch(plans, starts, legal=True, return_observations=True)
    states, over = starts, np.zeros(3, bool)
    for time in range(plans.shape[1]):
        (on,) = (~over).nonzero()
        if not len(on):
            break
        mask = env.view_state(states)["action_mask"][on].astype(bool)
        taken, drawn = found.infos["actions"][on, time], plans[on, time]
        kept = mask[np.arange(len(on)), drawn]
        assert (taken[kept] == drawn[kept]).all()
        step = env.step_batch(taken, states[on])  # refuses illegal moves
        states = states.copy()
        states[on] = step.states
        assert (found.observations[on, time] == step.obs).all()
        assert (found.rewards[on, time] == step.rewards).all()
        assert (found.infos["rewards"][on, time] == step.infos["rewards"]).all()
        assert (found.terminateds[on, time] == step.terminateds).all()
        over[on] = step.terminateds
    assert (found.states == states).all()
    lengths = np.where(over, 1 + (~found.terminateds).sum(axis=1), 100)
    assert (found.infos["n_step"] == lengths).all()
    with make(name, n_workers=2) as parallel:
        for _ in range(2):
            again = parallel.rollout_batch(plans, starts, legal=True)
            assert (again.states == states).all()
            assert (again.infos["rewards"] == found.infos["rewards"]).all()
            assert (again.infos["actions"] == found.infos["actions"]).all()
    env.close()


def test_legal_rollouts_need_a_game_without_wrappers() -> None:
    wrapped = make("tic_tac_toe", wrappers=[RecordEpisodeStatistics])
    state = wrapped.reset(seed=0).state
    with pytest.raises(InputError, match="games of OpenSpiel and PettingZoo, .* without wrappers"):
        wrapped.rollout_batch(np.zeros((1, 3), int), state, legal=True)
    wrapped.close()


def test_illegal_moves_are_refused_before_anything_happens() -> None:
    with make("tic_tac_toe") as env:
        state = env.reset(seed=0).state
        taken = env.step(4, state).state
        with pytest.raises(ActionError, match=r"action 4 is illegal for player 1 .* 0 o\(0,0\)"):
            env.step(4)
        assert (env.get_state() == taken).all()
        with pytest.raises(ActionError):
            env.step(4, taken)
        env.step_batch([0], state)  # sets the current state aside
        with pytest.raises(ActionError) as caught:
            env.step_batch([4, 3, 4, 1], [state, taken, taken, state])
        assert "row 2 of a batch of 4" in "".join(caught.value.__notes__)
        assert (env.get_state() == taken).all()
        taken = env.make_state(history=[4, 0, 1, 2, 3, 6, 5])
        assert env.view_state(taken)["action_mask"].sum() == 0
        with pytest.raises(ActionError, match="this game of .* is over"):
            env.step(7, taken)


def test_seeds_of_rows_draw_chance_anew() -> None:
    with make("2048") as env:
        state, _, info = env.reset(seed=0)
        move = int(np.flatnonzero(info["action_mask"])[0])
        batch = env.step_batch([move] * 64, state, seeds=[*range(32), *range(32)])
        assert (batch.states[:32] == batch.states[32:]).all()
        assert len({obs.tobytes() for obs in batch.obs}) > 5
        again = env.step_batch([move] * 2, state)
        assert (again.states[0] == again.states[1]).all()
        for index in range(4):
            one = env.step_batch([move], state, seeds=[index])
            assert (one.states[0] == batch.states[index]).all()


@pytest.mark.parametrize("name", ["2048", "tic_tac_toe"])
def test_a_move_is_never_repeated(name: str) -> None:
    with pytest.raises(InputError, match="dt and frameskip must be 1 in a game"):
        make(name, frameskip=2)
    with make(name) as env:
        state, _, info = env.reset(seed=0)
        move = int(np.flatnonzero(info["action_mask"])[0])
        for repeated in (
            lambda: env.step(move, dt=2),
            lambda: env.step(move, state, dt=2),
            lambda: env.step_batch([move] * 2, state, dt=2),
            lambda: env.step_batch([move] * 2, state, dt=[1, 2]),
            lambda: env.rollout_batch([[move]], state, dt=2),
        ):
            with pytest.raises(InputError, match="dt and frameskip must be 1 in a game"):
                repeated()
            assert (env.get_state() == state).all()


def test_states_are_viewed_and_built_from_moves() -> None:
    with make("connect_four") as env:
        state = env.make_state(history=[3, 3, 0])
        view = env.view_state(state)
        assert view["history"].tolist() == [3, 3, 0]
        assert (view["length"], view["to_play"]) == (3, 1)
        assert view["action_mask"].tolist() == [1] * 4
        rows = np.stack([env.reset().state, state])
        assert env.view_state(rows)["history"].tolist() == [[-1, -1, -1], [3, 3, 0]]
        padded = env.view_state(rows)["history"]
        assert (env.make_state(history=padded[0]) == rows[0]).all()
        assert (env.make_state(history=[3, 3, 0, -1, -1]) == state).all()
        for moves, message in (
            ([3, -1, 3], "number 1 of the history, -1, is not a legal move"),
            ([3] * 6, "number 5 of the history, 3, is not a legal move"),
            ([0.5], "a list of whole numbers"),
        ):
            with pytest.raises(InputError, match=message):
                env.make_state(history=moves)
        with pytest.raises(InputError, match="no field 'board'"):
            env.make_state(board=[])
    with make("pig") as env, pytest.raises(InputError, match="ends when it is chance's turn"):
        env.make_state(history=[0])


def test_a_game_that_is_too_long_says_so() -> None:
    with make("2048", state_capacity=16) as env:
        _, _, info = env.reset(seed=0)
        with pytest.raises(StateCapacityError, match="state_capacity="):
            for _ in range(20):
                info = env.step(int(np.flatnonzero(info["action_mask"])[0])).info
                env.get_state()


def test_damaged_rows_are_refused() -> None:
    with make("connect_four") as env:
        state = env.make_state(history=[3, 3, 0]).copy()
        state[-5] ^= 1
        with pytest.raises(StateFormatError):
            env.step(0, state)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("kuhn_poker", {}, "imperfect information"),
        ("goofspiel", {}, "move at the same time"),
        ("mfg_crowd_modelling", {}, "mean field"),
        ("stones_and_gems", {}, "a generator that all of its states share"),
        ("morpion_solitaire", {}, "no observation tensor"),
        ("conect_four", {}, "did you mean 'connect_four'"),
        ("connect_four(rowz=3)", {}, "Unknown parameter 'rowz'"),
        ("connect_four", {"rows": "a"}, "Wrong type for parameter rows"),
        ("connect_four", {"render_mode": "rgb_array"}, "only 'ansi'"),
        ("connect_four", {"obs_type": "rgb"}, "obs_type must be one of"),
        ("hex", {"board_size": 0}, "board_size of OpenSpiel's hex must be .* at least 1, got 0"),
        ("misere(game=connect_four(rows=0))", {}, "rows of OpenSpiel's connect_four .* got 0"),
        ("go", {"board_size": 30}, "supports board size up to 19"),
        ("connect_four", {"rows": 10**6, "columns": 10**6}, "has no board"),
        ("hex", {"board_size": 2**40}, "cannot load hex"),
    ],
)
def test_other_games_are_refused_with_the_reason(
    name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        plangym_like.make(PREFIX + name, **options)


def test_a_board_is_shown_as_text() -> None:
    with make("tic_tac_toe", render_mode="ansi") as env:
        env.step(4, env.reset(seed=0).state)
        assert env.gym_env.render() == "...\n.x.\n..."
        assert env.gym_env.unwrapped.metadata["render_modes"] == ["ansi"]


def test_rows_of_other_parameters_are_refused() -> None:
    with make("hex") as env, plangym_like.make("openspiel/hex", board_size=6) as other:
        state = env.reset(seed=0).state
        with pytest.raises(StateMismatchError):
            other.step(0, state)

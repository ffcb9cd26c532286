"""`AttributeCodec`: environments whose class lists the attributes that are their state."""

from contextlib import nullcontext
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from gymnasium.spaces import Box, Discrete
from usual import first_of

import plangym_like
from plangym_like import check_env
from plangym_like.errors import InputError, SnapshotError, StateCapacityError

FIELDS: list[Any] = [
    "log",
    ("board", np.int8, (3, 3)),
    ("score", int),
    ("luck", np.float32),
    ("ended", bool),
    ("engine.speed", np.float64),
]


class Engine:
    speed = 0.0


class Merging(gymnasium.Env):
    """A board on which numbers appear, with an attribute of each kind."""

    state_attributes: Any = FIELDS
    observation_space = Box(0, 99, (3, 3), np.int8)
    action_space = Discrete(3)

    def __init__(self) -> None:
        self.engine = Engine()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.board, self.score, self.luck = np.zeros((3, 3), np.int8), 0, np.float32(0.1)
        self.ended, self.log, self.engine.speed = False, {"moves": []}, 0.5
        return self.board, {}

    def step(self, action: Any) -> Any:
        self.board[action, self.np_random.integers(3)] += 1
        self.luck = self.luck * np.float32(1.1)
        self.engine.speed += float(self.luck)
        self.score += int(self.board.max())
        self.log["moves"].append((int(action), self.engine.speed))
        self.ended = self.score > 100
        reward = self.score + self.engine.speed + len(self.log["moves"])
        return self.board, reward, self.ended, False, {}


class Named(Merging):
    state_attributes = ("board", "score", "luck", "ended", "log", "engine.speed", "_np_random")


class Fixed(Merging):
    """Has no data of unknown size."""

    state_attributes: Any = FIELDS[1:]

    def step(self, action: Any) -> Any:
        self.log["moves"] = []
        return super().step(action)


@pytest.mark.parametrize("kind", first_of([Named, Fixed, Merging]))
def test_listed_attributes_are_saved(kind: Any) -> None:
    report = check_env(kind, states=4, workers=())
    assert report.ok, str(report)
    assert (report.snapshot, report.exactness) == ("native", "exact")


def test_rows_hold_the_attributes_and_little_else() -> None:
    env = plangym_like.make(Fixed)
    assert env.state_nbytes == 32 + 32 + 40  # header, 9 + 8 + 4 + 1 + 8 bytes, generator


def test_states_are_made_of_listed_attributes() -> None:
    with plangym_like.make(Merging) as env:
        root = env.reset(seed=0).state
        board, log = np.arange(9, dtype=np.int8).reshape(3, 3), {"moves": [(1, None)]}
        made = env.make_state(root, board=board, score=95, log=log)
        view = env.view_state(made)
        assert_same(view["board"], board)
        assert view["score"] == 95 and view["luck"] == np.float32(0.1) and "log" not in view
        assert env.view_state(np.stack([made, root]))["engine.speed"].tolist() == [0.5, 0.5]
        env.set_state(made)
        assert env.gym_env.unwrapped.log == log  # type: ignore[attr-defined]
        assert env.step(2, made).terminated
        wrong = [("board", board[0]), ("score", 1.5), ("score", "a"), ("wheel", 1)]
        for name, value in [*wrong, ("engine.speed", 2**53 + 1)]:
            with pytest.raises(InputError, match=name):
                env.make_state(root, **{name: value})


def test_attributes_set_before_the_first_reset_are_restored_for_it() -> None:
    class Counting(Merging):
        state_attributes = (*FIELDS, ("episodes", int))

        def __init__(self) -> None:
            super().__init__()
            self.episodes = 0

        def reset(self, **kwargs: Any) -> Any:
            self.episodes += 1
            assert not hasattr(self, "board") or self.episodes > 1
            return super().reset(**kwargs)[0], {"episodes": self.episodes}

    with plangym_like.make(Counting, snapshot="native") as env:
        assert env.exactness == "exact"
        assert [env.reset(seed=0).info["episodes"] for _ in range(2)] == [1, 2]


class Late(gymnasium.Env):
    state_attributes: Any = (("t", int), ("f", bool), ("n", float), ("k", np.int8), "dice", "log")
    state_attributes += (("h", "f4"), ("x", float, (4, 4)), ("y", "i8", (3,)), ("z", "i8", (3,)))
    observation_space, action_space = Box(0, 1, (1,), np.float64), Discrete(2)

    def __init__(self, change: Any, shown: Any) -> None:
        self.change, self.shown = change, shown

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.f, self.n, self.k, self.h = 0, False, 0.5, np.int8(1), np.float32(0.1)
        self.y, self.z = np.zeros((2, 3), np.int64)[[0, 1]]
        self.x, self.log, self.dice = self.np_random.random((4, 4)), [self.y], None
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == 31:
            self.change(self)
        self.y[0] += 1
        return np.zeros(1), float(self.shown(self)) if self.t > 31 else 0.0, False, False, {}


@pytest.mark.parametrize(
    ("name", "change", "shown"),
    [
        ("log", lambda env: [env.y, env.x.T], lambda env: env.log[1].strides[0] + env.log[0][0]),
        ("dice", lambda env: env.np_random, lambda env: env.dice.random() + env.np_random.random()),
        ("x", lambda env: env.x.T, r"x is not C-contiguous, .* float64\(4, 4\): .* np\.asarray\("),
        ("n", lambda env: np.float64(2), r"n is .*2\.0.*numpy\.float64, .*: convert it .* float\("),
        ("t", lambda env: True, r"t is True, .*bool, .*int64.*int\(.*, or leave out its dtype: "),
        ("t", lambda env: 2.5, r"t is 2\.5, .* the type int: give it another dtype, or leave out"),
        ("k", lambda env: 200, r"k is 200, .* the type np\.int8: give it another dtype, or"),
        ("t", lambda env: 2**63, f"Late.t is {2**63}, .*the dtype int64 cannot hold: give it an"),
        ("z", lambda env: env.y[:2], r"z is an array int64\(2,\), .*: give it .* dtype or shape"),
        (
            "y",
            lambda env: env.y.astype("i4"),
            r"y is an array int32\(3,\), .*: convert it, .* np\.",
        ),
        ("z", lambda env: env.y, r"y and Late\.z are the same array"),
        ("z", lambda env: setattr(env, "x", None), r"Late\.x is None, .* another dtype or shape"),
        ("dice", lambda env: env.np_random.spawn(1)[0], "np_random has spawned generators"),
    ],
)
def test_values_come_back_as_they_were_or_are_an_error(name: str, change: Any, shown: Any) -> None:
    def make() -> Any:
        read = (lambda env: 0.0) if isinstance(shown, str) else shown
        return Late(lambda env: setattr(env, name, change(env)), read)

    alone, env = make(), plangym_like.make(make, snapshot="native", audit="off")
    alone.reset(seed=1)
    states, expected = [env.reset(seed=1).state], []
    fails = isinstance(shown, str)
    with pytest.raises(SnapshotError, match=shown) if fails else nullcontext():
        for _ in range(40):
            expected.append(alone.step(0)[1])
            states.append(env.step(0, states[-1]).state)
    for state, reward in [*zip(states, expected, strict=False)][::-1][fails:]:
        assert env.step(0, state).reward == reward


def test_data_of_a_made_state_refer_to_its_arrays() -> None:
    with plangym_like.make(lambda: Late(None, None)) as env:
        env.set_state(env.make_state(env.reset(seed=0).state, y=[1, 2, 3], dice="six", n=np.nan))
        base: Any = env.gym_env.unwrapped
        assert base.log[0] is base.y and base.y.tolist() == [1, 2, 3] and np.isnan(base.n)


class Grows(Merging):
    def step(self, action: Any) -> Any:
        self.log["moves"] += [0] * 200
        return super().step(action)


def test_a_state_that_grows_says_which_option_makes_room() -> None:
    env = plangym_like.make(Grows, snapshot="native")
    state = env.reset(seed=0).state
    with pytest.raises(StateCapacityError, match="state_capacity="):
        for _ in range(80):
            state = env.step(1, state).state


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ((*FIELDS, "engine"), r"Own\.log or engine cannot be saved: .*Engine is not plain data"),
        ((*FIELDS, "wheel"), "'Own' object has no attribute 'wheel'"),
        (
            (*FIELDS, ("score", "a type")),
            r"Own\.state_attributes must list names, or tuples .*\('score', 'a type'\)",
        ),
        ([("score", "U3")], r"Own\.score cannot be saved as a number <U3; leave out its dtype"),
        (
            [("board", object, (3, 3))],
            r"Own\.board cannot be saved as an array object, whose items",
        ),
        ((*FIELDS, "log"), r"Own\.state_attributes has a name twice"),
        ([("board", np.int8, (-1,))], r"Own\.state_attributes must list .*'board'.* \(-1,\)\)"),
        ("board", "(?s)does not repeat itself"),
    ],
)
def test_lists_that_cannot_be_used_are_refused(listed: Any, message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        plangym_like.make(type("Own", (Merging,), {"state_attributes": listed}), snapshot="native")


def test_own_generators_are_restarted_by_seeds() -> None:
    class Dice(Merging):
        state_attributes = (*FIELDS, "dice")

        def reset(self, **kwargs: Any) -> Any:
            result = super().reset(**kwargs)
            self.dice = np.random.default_rng(int(self.np_random.integers(99)))
            return result

        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, float(self.dice.random()), *rest

    env = plangym_like.make(Dice)
    assert env.snapshot == "native" and env.exactness == "exact"
    state = env.reset(seed=0).state
    one, other = (env.step_batch([0] * 4, state, seeds=seeds) for seeds in ([1, 2, 1, 3], [3] * 4))
    assert one.rewards[0] == one.rewards[2] and one.rewards[3] == other.rewards[0]
    assert len(set(one.rewards.tolist())) == 3

"""What is handed out belongs to the caller, and so does what the caller gives."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import in_workers_too
from gymnasium import spaces
from usual import first_of

from plangym_like.batch.ownership import owned, owned_info

ACTIONS = [0, 1, 2, 1]


class Miser(gymnasium.Env):
    """Hands out its own info, its own lists and its own buffer, again and again."""

    observation_space = spaces.Box(0, 99, (3,), np.int64)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.buffer = np.zeros(3, np.int64)
        self.info: dict[str, Any] = {"last": None, "all": [], "deep": {"sums": np.zeros(1)}}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if options is not None:
            options["taken"] = options.pop("start")
        self.buffer[:] = 0
        self.info["last"] = None
        self.info["all"].clear()
        self.info["deep"]["sums"][:] = 0
        return self.buffer, self.info

    def step(self, action: Any) -> Any:
        self.buffer[int(action)] += 1
        self.info["last"] = int(action)
        self.info["all"].append(int(action))
        self.info["deep"]["sums"] += int(action)
        ended = len(self.info["all"]) >= 5
        return self.buffer, float(action), ended, False, self.info

    def save_state(self) -> Any:
        return [self.buffer, self.info]

    def load_state(self, saved: Any) -> None:
        self.buffer[:], info = saved
        self.info["last"] = info["last"]
        self.info["all"][:] = info["all"]
        self.info["deep"]["sums"][:] = info["deep"]["sums"]


class Client:
    released = 0

    def __del__(self) -> None:
        Client.released += 1


class Halver(gymnasium.Wrapper):
    """Changes its action in place, as wrappers that scale or clip it do."""

    def step(self, action: Any) -> Any:
        action *= 0.5
        action[action > 0.4] = 0.4
        return self.env.step(action)


class Cart(gymnasium.Env):
    """Adds its actions up, and keeps the last one."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.place = np.zeros(2, np.float32)
        self.last = np.zeros(2, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place[:], self.last = 0, np.zeros(2, np.float32)
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.place = self.place + self.last + action
        self.last = action
        return self.place, float(self.place.sum()), False, False, {}


way = pytest.mark.parametrize("snapshot", first_of(["pickle", "native", "replay"]))


def made(new_env: Any, env_class: Any, snapshot: str, **kwargs: Any) -> Any:
    env = new_env(env_class, snapshot=snapshot, **kwargs)
    assert env.snapshot == snapshot and env.exactness == "exact", env.snapshot_note
    return env


def plain(infos: Any, key: str) -> list[Any]:
    return [info[key] for info in infos]


# Batches


@way
@in_workers_too
def test_rows_have_infos_of_their_own(new_env: Any, snapshot: str) -> None:
    env = made(new_env, Miser, snapshot)
    state = env.reset(seed=0).state
    infos = env.step_batch(ACTIONS, state).infos
    assert plain(infos, "last") == ACTIONS
    assert plain(infos, "all") == [[action] for action in ACTIONS]
    assert [info["deep"]["sums"].tolist() for info in infos] == [[a] for a in ACTIONS]
    again = env.step_batch([2], state).infos
    assert plain(infos, "all") == [[action] for action in ACTIONS]
    again[0]["all"].append("scribble")
    assert env.step_batch([2], state).infos[0]["all"] == [2]


# Single steps


@way
def test_what_single_steps_returned_stays(new_env: Any, snapshot: str) -> None:
    env = made(new_env, Miser, snapshot)
    state, first, info = env.reset(seed=0)
    one = env.step(2)
    other = env.step(1, state=state)
    env.step_batch([0, 0, 0], state)
    env.reset(seed=1)
    assert first.tolist() == [0, 0, 0] and info["all"] == []
    assert one.obs.tolist() == [0, 0, 1] and one.info["all"] == [2]
    assert other.obs.tolist() == [0, 1, 0] and other.info["deep"]["sums"] == [1]


# Actions


@way
def test_actions_that_are_changed_in_place(new_env: Any, snapshot: str) -> None:
    env = made(new_env, Cart, snapshot, wrappers=[Halver])
    state = env.reset(seed=0).state
    raw = Halver(Cart())
    raw.reset(seed=0)
    action = np.array([0.5, 1.0], np.float32)
    expected = [raw.step(action.copy())[0].tolist() for _ in range(2)]

    actions = np.stack([action] * 3)
    for _ in range(2):
        result = env.step_batch(actions, state)
        assert result.obs.tolist() == [expected[0]] * 3
    assert (actions == action).all()
    assert env.step_batch(action, state, dt=2).obs.tolist() == [expected[1]]
    plans = np.stack([actions[:2]] * 2)
    seen = env.rollout_batch(plans, state, return_observations=True).observations
    assert seen.tolist() == [expected] * 2
    assert (plans == action).all()

    env.reset(seed=0)
    for wanted in expected:
        held = action.copy()
        assert env.step(held).obs.tolist() == wanted
        assert held.tolist() == action.tolist()
        held[:] = 9
    env.reset(seed=0)
    assert env.step(action, dt=2).obs.tolist() == expected[1]


# The copies themselves


def test_copies_share_nothing() -> None:
    inner = [np.zeros(2)]
    original = {
        "one": inner,
        "other": inner,
        "pair": (inner, 3),
        "objects": np.array([inner, 1], object),
    }
    copied = owned(original)
    inner[0] += 1
    inner.append(4)
    assert copied["one"][0].tolist() == [0, 0] and len(copied["one"]) == 1
    assert copied["one"] is copied["other"] is copied["pair"][0]
    assert len(copied["objects"][0]) == 1
    assert owned_info(original, {"one", "objects"}).keys() == {"other", "pair"}
    inner.append(inner)
    assert owned(inner)[-1] is not inner


def test_what_cannot_be_copied_stays() -> None:
    lock, env, numbers, client = threading.Lock(), Miser(), [1], Client()
    copied = owned({"lock": lock, "envs": [env], "numbers": numbers, "client": client})
    assert copied["lock"] is lock and copied["envs"][0] is env
    assert copied["client"] is client and Client.released == 0
    assert copied["numbers"] == [1] and copied["numbers"] is not numbers

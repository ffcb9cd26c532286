"""torchrl collects and learns from our environments as from its own."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from small_envs import Levers, Nested, Teller

import plangym_like
from plangym_like import make_vec
from plangym_like.errors import ClosedError, InputError, SnapshotError, StateError

# What torchrl and torch do in their own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torchrl", reason="torchrl is not installed")


class Dial(gymnasium.Env):
    """Spaces of whole numbers that do not begin at 0, and one of two axes."""

    observation_space = spaces.Tuple(
        (spaces.Discrete(7, start=-3), spaces.MultiDiscrete([[2, 3], [4, 5]]))
    )
    action_space = spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 5])))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains((int(action[0]), np.asarray(action[1])))
        first = int(self.np_random.integers(-3, 4))
        rest = self.np_random.integers([[2, 3], [4, 5]])
        return (first, rest), float(action[0]), first == 3, False, {}


def _saved(env_class: Any) -> Any:
    return partial(plangym_like.make, env_class)


class Knob(gymnasium.Env):
    """Spaces without an axis."""

    observation_space = spaces.Box(0, 2, (), np.float32)
    action_space = spaces.Box(-1, 1, (), np.float64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(0, 2, ()), {}

    def step(self, action: Any) -> Any:
        assert np.shape(action) == () and -1 <= action <= 1
        return self.np_random.uniform(0, 2, ()), float(action), bool(action > 0.8), False, {}


SOURCES = {
    "columns": ("CartPole-v1", True),
    "box": ("Pendulum-v1", True),
    "nested": (_saved(Nested), True),
    "numbers": (Dial, False),
    "bytes": (Levers, False),
    "no axis": (Knob, False),
}


@pytest.mark.parametrize("source", SOURCES)
def test_torchrl_accepts_the_specs(source: str) -> None:
    from torchrl.envs import check_env_specs

    made_of, has_states = SOURCES[source]
    for states in {False, has_states}:
        env = make_vec(made_of, 4).as_torchrl(states=states)
        check_env_specs(env, break_when_any_done="both", seed=0)
        env.close()


def test_atari_and_robots_have_specs_too() -> None:
    from torchrl.envs import check_env_specs

    for package, name in (("ale_py", "ALE/Pong-v5"), ("mujoco", "Hopper-v5")):
        pytest.importorskip(package)
        env = make_vec(name, 2).as_torchrl(states=True)
        check_env_specs(env)
        env.close()


def test_transitions_are_those_of_its_own() -> None:
    from torchrl.envs import GymEnv, SerialEnv

    make = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
    theirs = SerialEnv(5, make)
    first = theirs.reset(list_of_kwargs=[{"seed": 3 + i} for i in range(5)])
    ours = make_vec("CartPole-v1", 5).as_torchrl()
    ours.set_seed(3)
    run = partial(dict, max_steps=200, policy=_lean, break_when_any_done=False)
    expected = theirs.rollout(**run(tensordict=first, auto_reset=False))
    found = ours.rollout(**run())
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key in found.keys(True, True):
        assert found[key].dtype == expected[key].dtype
        assert torch.equal(found[key], expected[key]), key
    assert found["next", "done"].sum() > 20
    for env in (theirs, ours):
        env.close()


def _lean(tensordict: Any) -> Any:
    angle = tensordict["observation"][..., 2]
    return tensordict.set("action", (angle < 0).long())


def test_steps_of_some_leave_the_others() -> None:
    env = make_vec("CartPole-v1", 4).as_torchrl()
    env.set_seed(0)
    whole = env.rollout(500, policy=_lean, break_when_all_done=True)
    done = whole["next", "done"].squeeze(-1)
    lengths = whole.shape[1] - done.sum(1) + 1
    assert len(set(lengths.tolist())) > 1 and done[:, -1].all()
    env.set_seed(0)
    alone = env.rollout(500, policy=_lean, break_when_any_done=False)
    for lane, length in enumerate(lengths.tolist()):
        # The same episode, whether or not others have ended before.
        assert torch.equal(whole["observation"][lane, :length], alone["observation"][lane, :length])
        assert alone["next", "done"][lane, length - 1]
    env.close()


def test_names_of_nested_spaces() -> None:
    env = make_vec(Nested, 3).as_torchrl()
    env.set_seed(4)
    found = env.reset()
    with make_vec(Nested, 3) as envs:
        expected, _ = envs.reset(seed=4)
        assert torch.equal(found["place"], torch.from_numpy(expected["place"]))
        assert torch.equal(found["cargo", "1"], torch.from_numpy(expected["cargo"][1]))
        chosen = env.rand_action(found)
        action = {key: chosen["action", key].numpy() for key in ("move", "pick")}
        expected, rewards, *_ = envs.step(action)
        following = env.step(chosen)["next"]
        assert torch.equal(following["place"], torch.from_numpy(expected["place"]))
        assert torch.equal(following["reward"][:, 0], torch.from_numpy(rewards).float())
    env.close()


def test_replay_buffers_hold_states_to_go_back_to() -> None:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    env = make_vec("CartPole-v1", 6).as_torchrl(states=True)
    env.set_seed(0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(600), batch_size=6)
    buffer.extend(env.rollout(40, break_when_any_done=False).reshape(-1))
    drawn = buffer.sample()
    assert drawn["state_row"].dtype is torch.uint8
    start = env.reset(drawn.select("state_row", "observation"), set_state=True)
    assert torch.equal(start["observation"], drawn["observation"])
    following = env.step(start.set("action", drawn["action"]))["next"]
    for key in ("observation", "reward", "done", "state_row"):
        assert torch.equal(following[key], drawn["next", key]), key

    # Some of them only; the others go on from where they are.
    mask = torch.tensor([True, False] * 3)
    mask |= following["done"].squeeze(-1)
    partly = drawn.select("state_row", "observation").set("_reset", mask[:, None])
    start = env.reset(partly, set_state=True)
    rows = torch.from_numpy(env.get_states())
    assert torch.equal(rows[mask], drawn["state_row"][mask])
    assert torch.equal(rows[~mask], following["state_row"][~mask])
    assert torch.equal(torch.from_numpy(env.get_states([1])), rows[1:2])
    env.close()


def test_states_are_checked_before_anything_changes() -> None:
    env = make_vec("CartPole-v1", 2).as_torchrl(states=True)
    first = env.reset()
    with pytest.raises(InputError, match="state_row"):
        env.reset(first.select("observation"), set_state=True)
    damaged = first.clone()
    damaged["state_row"] = torch.zeros_like(first["state_row"])
    with pytest.raises(StateError):
        env.reset(damaged, set_state=True)
    assert torch.equal(torch.from_numpy(env.get_states()), first["state_row"])
    env.close()


def test_misuse_is_named() -> None:
    with pytest.raises(InputError, match="the observation"):
        make_vec(Teller, 2).as_torchrl()
    with pytest.raises(SnapshotError):
        make_vec(partial(gymnasium.make, "CartPole-v1"), 2).as_torchrl(states=True)
    with pytest.raises(InputError, match="reward"):
        make_vec(Greedy, 2).as_torchrl()
    env = make_vec("CartPole-v1", 2).as_torchrl()
    with pytest.raises(ResetNeeded):
        env.step(env.fake_tensordict())
    with pytest.raises(ResetNeeded):
        env.get_states()
    last = env.rollout(500)[:, -1]["next"]
    assert last["done"].any()
    with pytest.raises(ResetNeeded, match="maybe_reset"):
        env.step(env.rand_action(last))
    env.step(env.rand_action(env.maybe_reset(last)))
    with pytest.raises(InputError, match="has no action"):
        env.step(env.reset())
    with pytest.raises(InputError):
        env.set_seed(-1)
    env.close()
    env.close()
    with pytest.raises(ClosedError):
        env.reset()


class Greedy(Nested):
    observation_space = spaces.Dict(reward=spaces.Discrete(2))


@pytest.mark.usefixtures("always_in_processes")
def test_a_process_that_dies_ends_episodes() -> None:
    vectorised = make_vec("CartPole-v1", 4, 2)
    env = vectorised.as_torchrl(states=True)
    first = env.reset()
    os.kill(*vectorised.pids, signal.SIGKILL)
    stepped, following = env.step_and_maybe_reset(env.rand_action(first))
    lost = stepped["next", "truncated"].squeeze(-1)
    assert lost.sum() == 2 and not stepped["next", "state_row"][lost].any()
    assert stepped["next", "state_row"][~lost].any(1).all()
    assert not following["done"].any() and following["state_row"].any(1).all()
    env.rollout(30, tensordict=following, auto_reset=False, break_when_any_done=False)
    env.close()


def test_its_collector_steps_them() -> None:
    from torchrl.collectors import Collector

    env = make_vec("CartPole-v1", 8).as_torchrl()
    frames = [
        data["next", "done"].numel()
        for data in Collector(env, None, frames_per_batch=64, total_frames=192)
    ]
    assert frames == [64] * 3

"""Tensors and arrays of a batch: the same numbers, on the CPU in the same memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_envs import Nested

from plangym_like import BatchTransition, Rollout
from plangym_like.batchers.tensor_batcher import TensorBatcher
from plangym_like.errors import ActionError, InputError, StateError

Make = Callable[..., Any]


class _Spy:
    """An environment that remembers what it was given and what it gave."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.given: dict[str, Any] = {}
        self.result: Any = None

    def step_batch(self, actions: Any, states: Any, dt: Any, *args: Any, **kwargs: Any) -> Any:
        self.given = {"actions": actions, "states": states, "dt": dt, **kwargs}
        self.result = self.env.step_batch(actions, states, dt, *args, **kwargs)
        return self.result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_shared_both_ways(shared_env: Make) -> None:
    spy = _Spy(shared_env("CartPole-v1"))
    batcher = TensorBatcher(spy)
    state, _, _ = batcher.reset(seed=0)
    given = {
        "actions": torch.arange(64) % 2,
        "states": state.repeat(64, 1),
        "dt": torch.ones(64, dtype=torch.int64),
        "seeds": torch.arange(64),
    }
    result = batcher.step_batch(**given)
    for name, tensor in given.items():
        assert _address(spy.given[name]) == tensor.data_ptr(), name
    for name in ("states", "obs", "rewards", "terminateds", "truncateds"):
        assert getattr(result, name).data_ptr() == _address(getattr(spy.result, name)), name


def test_batches_equal_those_of_arrays(shared_env: Make) -> None:
    env = shared_env("CartPole-v1")
    batcher = TensorBatcher(env)
    state, obs, info = batcher.reset(seed=3)
    assert state.dtype == torch.uint8 and state.shape == (env.state_nbytes,)
    assert obs.shape == (4,) and isinstance(info, dict)
    actions, dt = torch.randint(2, (64,)), torch.randint(1, 9, (64,))
    result = batcher.step_batch(actions, state, dt)
    expected = env.step_batch(actions.numpy(), state.numpy(), dt.numpy())
    assert isinstance(result, BatchTransition)
    for got, wanted in zip(result[:5], expected[:5], strict=True):
        assert isinstance(got, torch.Tensor) and np.array_equal(got.numpy(), wanted)
    assert result.rewards.dtype == torch.float64 and result.terminateds.dtype == torch.bool
    assert np.array_equal(result.infos["n_step"], expected.infos["n_step"])


def test_rollouts(shared_env: Make) -> None:
    env = shared_env("CartPole-v1")
    batcher = TensorBatcher(env)
    state, _, _ = batcher.reset(seed=0)
    plans = torch.randint(2, (16, 12))
    got = batcher.rollout_batch(plans, state, return_observations=True)
    wanted = env.rollout_batch(plans.numpy(), state.numpy(), return_observations=True)
    assert isinstance(got, Rollout) and got.observations.shape == (16, 12, 4)
    for tensor, array in zip(got[:-1], wanted[:-1], strict=True):
        assert np.array_equal(tensor.numpy(), array)
    assert np.array_equal(got.infos["n_step"], wanted.infos["n_step"])
    assert batcher.rollout_batch(plans, state).observations is None
    masked = batcher.rollout_batch(plans, state, on_error="mask")
    assert torch.equal(masked.states, got.states) and not masked.infos.failed.any()


def test_futures(shared_env: Make) -> None:
    batcher = TensorBatcher(shared_env("CartPole-v1"))
    state, _, _ = batcher.reset(seed=0)
    actions = torch.randint(2, (64,))
    expected = batcher.step_batch(actions, state)
    future = batcher.step_batch(actions, state, blocking=False)
    actions.fill_(0)
    assert future.result(timeout=60.0).states.equal(expected.states)
    assert future().states.equal(expected.states) and future.exception() is None
    assert future.done() and not future.cancel() and not future.cancelled()
    rollout = batcher.rollout_batch(torch.ones(8, 3, dtype=torch.int64), state, blocking=False)
    assert rollout().rewards.equal(torch.ones(8, 3, dtype=torch.float64))


def test_trees(shared_env: Make) -> None:
    batcher = TensorBatcher(shared_env(Nested))
    state, obs, _ = batcher.reset(seed=0)
    assert obs["place"].shape == (2,) and obs["cargo"][1].dtype == torch.int8
    actions = {"move": torch.zeros(5, 2), "pick": torch.tensor([0, 1, 2, 1, 0])}
    result = batcher.step_batch(actions, state)
    assert result.obs["cargo"][0].tolist() == [0, 1, 2, 1, 0]
    assert result.infos.mask("picked").tolist() == [False, True, True, True, False]
    single = batcher.step_batch({"move": torch.zeros(2), "pick": torch.tensor(2)}, state[None])
    assert single.obs["place"].shape == (1, 2)


def test_bad_batches_are_refused_before_anything_happens(shared_env: Make) -> None:
    batcher = TensorBatcher(shared_env("CartPole-v1"))
    state, _, _ = batcher.reset(seed=0)
    with pytest.raises(ActionError):
        batcher.step_batch(torch.tensor([0, 2]), state)
    with pytest.raises(StateError):
        batcher.step_batch(torch.tensor([0, 1]), state.float())
    with pytest.raises(InputError):
        batcher.step_batch(torch.tensor([0, 1]), state, torch.tensor([1, 0]))
    with pytest.raises(InputError, match="int"):
        TensorBatcher(3)
    assert batcher.get_state().equal(state)

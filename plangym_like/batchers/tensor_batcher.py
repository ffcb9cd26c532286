"""`TensorBatcher`: batches of a `PlanEnv` as torch tensors, for searches that use a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch

from plangym_like.errors import InputError
from plangym_like.results import Future
from plangym_like.vector.tree import tree_map


class TensorFuture:
    """The result of a batch as tensors; calling the future is the same as calling `result`.

    All other methods and attributes are those of the environment's `Future`.

    Parameters
    ----------
    future : Future
        The environment's future.
    as_tensors : callable
        Converts the environment's result to tensors.

    Examples
    --------
    >>> import plangym_like
    >>> batcher = TensorBatcher(plangym_like.make("CartPole-v1"))
    >>> state, obs, info = batcher.reset(seed=0)
    >>> future = batcher.step_batch(torch.tensor([0, 1, 1]), state, blocking=False)
    >>> future.result().rewards
    tensor([1., 1., 1.], dtype=torch.float64)
    """

    def __init__(self, future: Future[Any], as_tensors: Callable[[Any], Any]) -> None:
        self._future = future
        self._as_tensors = as_tensors
        self._result: Any = None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it; see `Future.result`."""
        found = self._future.result(timeout)
        if self._result is None:
            self._result = self._as_tensors(found)
        return self._result

    __call__ = result

    def __getattr__(self, name: str) -> Any:
        if name == "_future":  # while this object is being copied or unpickled
            raise AttributeError(name)
        return getattr(self._future, name)


class TensorBatcher:
    """Wraps an environment so that it takes and returns batches as torch tensors.

    On the CPU, nothing is copied: tensors and arrays share memory. Results for a CUDA device are
    copied asynchronously through pinned memory. Arguments on another device are copied to the CPU
    first.

    States are ``uint8`` tensors ``(N, state_nbytes)`` and can be indexed, stacked and gathered like
    any other tensor. Other results keep the dtypes of the environment. ``infos`` remains a
    `BatchInfo` of arrays.

    >>> import plangym_like
    >>> batcher = TensorBatcher(plangym_like.make("CartPole-v1"))
    >>> state, obs, info = batcher.reset(seed=0)
    >>> result = batcher.step_batch(torch.tensor([0, 1, 1]), state)
    >>> result.states[result.rewards.argsort()].shape == (3, batcher.env.state_nbytes)
    True
    >>> result.obs.dtype
    torch.float32

    Parameters
    ----------
    env : PlanEnv, ParallelEnv or RayEnv
        You can still use it directly. Closing the batcher also closes the environment.
    device : torch.device or str
        The device of the results. Arguments may be on any device.
    """

    def __init__(self, env: Any, device: torch.device | str = "cpu") -> None:
        if not hasattr(env, "step_batch"):
            raise InputError(
                f"a TensorBatcher wraps what plangym_like.make returns, got {type(env).__name__}"
            )
        self.env = env
        self.device = torch.device(device)

    def reset(self, *, return_state: bool = True, **kwargs: Any) -> Any:
        """Start an episode and return ``(state, obs, info)``, as `PlanEnv.reset` does.

        ``state`` is ``(state_nbytes,) uint8``.
        """
        result = self.env.reset(return_state=return_state, **kwargs)
        *arrays, info = result
        return type(result)(*(self._tensors(part) for part in arrays), info)

    def step_batch(
        self,
        actions: Any,
        states: Any = None,
        dt: Any = 1,
        return_state: bool | None = None,
        **options: Any,
    ) -> Any:
        """Step N states, each with its own action; see `PlanEnv.step_batch`.

        Parameters
        ----------
        actions : tensor ``(N, *action_shape)``, tree of tensors, or one action for all rows
        states : tensor ``(N, state_nbytes) uint8`` or one row for all, optional
            ``None`` applies every action to the env's current state.
        dt : int or tensor ``(N,)``
        options
            The other arguments of `PlanEnv.step_batch`; ``seeds`` may be a tensor. With
            ``blocking=False``, the result is a `TensorFuture`, and you may overwrite the arguments
            as soon as this call has returned.

        Returns
        -------
        BatchTransition
            ``(states, obs, rewards, terminateds, truncateds, infos)`` of tensors ``(N, ...)``. If
            states are not returned, a `BatchStep`.

        Raises
        ------
        InputError, StateError
            An argument is invalid; no row has been stepped.
        """
        return self._call(self.env.step_batch, actions, states, dt, return_state, **options)

    def rollout_batch(self, actions: Any, states: Any = None, dt: Any = 1, **options: Any) -> Any:
        """Step N states T times, with actions ``(N, T, ...)``; see `PlanEnv.rollout_batch`.

        Returns
        -------
        Rollout
            With tensors instead of arrays.
        """
        return self._call(self.env.rollout_batch, actions, states, dt, **options)

    def get_state(self) -> torch.Tensor:
        """Return the env's current state, ``(state_nbytes,) uint8``."""
        state: torch.Tensor = self._tensors(self.env.get_state())
        return state

    def set_state(self, state: torch.Tensor) -> None:
        """Make `state` the env's current state."""
        self.env.set_state(_arrays(state))

    def close(self) -> None:
        """Close the environment; results already returned stay valid."""
        self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TensorBatcher({self.env!r}, device={str(self.device)!r})"

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given = [_arrays(argument) for argument in args]
        result = method(*given, **{name: _arrays(value) for name, value in options.items()})
        is_done = options.get("blocking", True)
        return self._tensors(result) if is_done else TensorFuture(result, self._tensors)

    def _tensors(self, tree: Any) -> Any:
        """Convert the arrays and NumPy numbers in a tree to tensors on the device."""
        return tree_map(self._tensor, tree)

    def _tensor(self, value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)) or value.dtype == object:
            return value
        array = np.asarray(value)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if self.device.type == "cpu":
            return tensor
        if self.device.type == "cuda":
            # The allocator reuses pinned memory only when the copy from it is complete.
            tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        return tensor.to(self.device, non_blocking=True)


def _arrays(tree: Any) -> Any:
    """Convert the tensors in a tree to arrays; arrays of CPU tensors share the tensors' memory."""
    return tree_map(_array, tree)


def _array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    # NumPy has no bfloat16; float32 can hold all its values.
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()

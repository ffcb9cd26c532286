"""`ParallelEnv`: an environment whose batches are stepped by worker processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from plangym_like.compat.plangym.plan_env import PlanEnv, without_states
from plangym_like.compat.plangym.vectorization.env import VectorizedEnv
from plangym_like.errors import WorkerDiedError
from plangym_like.processes import external_process
from plangym_like.results import Future

__all__ = ["BatchEnv", "ExternalProcess", "ParallelEnv"]


class ExternalProcess(external_process.ExternalProcess):
    """Hosts an environment in a child process.

    With ``blocking=False``, the methods return a `Future` of the result. Further options are passed
    to the environment's own method.

    Examples
    --------
    >>> from plangym_like.compat.plangym.control.classic_control import ClassicControl
    >>> with ExternalProcess(lambda: ClassicControl("CartPole-v1")) as process:
    ...     state, obs, info = process.reset(return_states=True)
    ...     future = process.step(1, state, blocking=False)
    ...     future()[2]
    1.0
    """

    def step(
        self, action: Any, state: Any = None, dt: Any = 1, blocking: bool = True, **options: Any
    ) -> Any:
        """Step the environment."""
        if state is not None:
            options["state"] = state
        if not (isinstance(dt, int) and dt == 1):
            options["dt"] = dt
        return _result(self.call("step", action, **options), blocking)

    def step_batch(
        self,
        actions: Any,
        states: Any = None,
        dt: Any = 1,
        return_state: bool | None = None,
        blocking: bool = True,
        **options: Any,
    ) -> Any:
        """Step many rows in the environment."""
        options.update(states=states, dt=dt, return_state=return_state)
        return _result(self.call("step_batch", actions, **options), blocking)

    def reset(self, blocking: bool = True, return_states: bool = False, **options: Any) -> Any:
        """Reset the environment; by default, return no state."""
        options.setdefault("return_state", return_states)
        return _result(self.call("reset", **options), blocking)

    def set_state(self, state: Any, blocking: bool = True) -> Any:
        """Set the state of the environment."""
        return _result(self.call("set_state", state), blocking)


def _result(future: Future[Any], blocking: bool) -> Any:
    return future.result() if blocking else future


class BatchEnv:
    """Environments in other processes; each process steps a part of a batch.

    Parameters
    ----------
    envs : sequence of ExternalProcess
    blocking : bool
        Let the processes step one after another, for debugging.
    """

    def __init__(self, envs: Sequence[ExternalProcess], blocking: bool) -> None:
        self._envs = list(envs)
        self._blocking = blocking

    def __len__(self) -> int:
        return len(self._envs)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._envs[index]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the first environment."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._envs[0], name)

    def make_transitions(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None
    ) -> tuple[list[Any], ...]:
        """Step N times; return a list of N values for each value that ``step`` returns."""
        if return_state is None:
            return_state = not without_states(states)
        parts = VectorizedEnv.batch_step_data(actions, states, dt, len(self))
        jobs = zip(self._envs, *parts, strict=False)
        results = [
            env.step_batch(some, each, steps, return_state, blocking=self._blocking)
            for env, each, some, steps in jobs
        ]
        if not self._blocking:
            results = [result() for result in results]
        return VectorizedEnv.unpack_transitions(results, return_state)

    def sync_states(self, state: Any, blocking: bool = True) -> None:
        """Make `state` the current state of all environments."""
        waiting = [env.set_state(state, blocking=False) for env in self._envs]
        if blocking:
            for future in waiting:
                future.result()

    def reset(self, indices: Iterable[int] | None = None, return_states: bool = True) -> Any:
        """Reset some or all environments; return arrays ``(states, obs, infos)``.

        With ``return_states=False``, return ``(obs, infos)``.
        """
        chosen = range(len(self)) if indices is None else indices
        waiting = [self[int(i)].reset(return_states=True, blocking=False) for i in chosen]
        states, obs, infos = zip(*(future.result() for future in waiting), strict=True)
        found = np.stack(obs), np.array(infos)
        return (np.array(states), *found) if return_states else found

    def close(self) -> None:
        """Close the processes."""
        for env in self._envs:
            env.close()


class ParallelEnv(VectorizedEnv):
    """An environment whose batches are stepped by worker processes on this machine.

    Parameters
    ----------
    env_class, name, frameskip, autoreset, delay_setup, n_workers, kwargs
        As in `VectorizedEnv`.
    blocking : bool
        Whether workers take turns on batches without states, instead of running in parallel.

    Examples
    --------
    >>> from plangym_like.compat.plangym.control.classic_control import ClassicControl
    >>> env = ParallelEnv(ClassicControl, "CartPole-v1", n_workers=2)
    >>> state, obs, info = env.reset()
    >>> states, obs, rewards, *rest = env.step_batch([0, 1, 1], [state] * 3)
    >>> rewards
    [1.0, 1.0, 1.0]
    >>> env.close()
    """

    def __init__(
        self,
        env_class: Callable[..., PlanEnv],
        name: str | None = None,
        frameskip: int | None = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int = 8,
        blocking: bool = False,
        **kwargs: Any,
    ) -> None:
        self._blocking = blocking
        self._workers: BatchEnv | None = None
        super().__init__(env_class, name, frameskip, autoreset, delay_setup, n_workers, **kwargs)

    def _execution_options(self) -> dict[str, Any]:
        return {"n_workers": self.n_workers}

    @property
    def blocking(self) -> bool:
        """Whether workers take turns on batches without states, instead of running in parallel."""
        return self._blocking

    @property
    def _batch_env(self) -> BatchEnv:
        """The workers that keep their own states; made when they are first needed."""
        if self._workers is None:
            make = partial(_reset_first, self._create_worker_callable())
            envs = [ExternalProcess(make) for _ in range(self.n_workers)]
            self._workers = BatchEnv(envs, self._blocking)
            self._workers.sync_states(self._first_state())
        return self._workers

    def make_transitions(
        self, actions: Any, states: Any, dt: Any, return_state: bool | None = None
    ) -> tuple[list[Any], ...]:
        """Step N times in workers; without states, each worker continues from its own state."""
        return self._batch_env.make_transitions(actions, states, dt, return_state)

    def _set_worker_states(self, state: Any) -> bool:
        try:
            if self._workers is not None:
                self._workers.sync_states(state)
        except WorkerDiedError:
            return False
        return True

    def _end_workers(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        return super().clone(**{"blocking": self.blocking, **kwargs})


def _reset_first(make: Callable[[], Any]) -> Any:
    env = make()
    env.reset()
    return env

"""Environments whose batches are stepped in many processes, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any, NoReturn, Self

import numpy as np

from plangym_like.compat.plangym.core import PlangymEnv, import_also_as, writes_hooks
from plangym_like.compat.plangym.plan_env import PlanEnv, as_steps, without_states
from plangym_like.constructors import BatchEnv
from plangym_like.envs.wrapping import WrapperLike
from plangym_like.errors import InputError, WorkerDiedError
from plangym_like.execution.known_ids import known_ids
from plangym_like.execution.process_options import make_hosted
from plangym_like.processes.external_process import ExternalProcess

import_also_as(__name__, "env", "parallel", "ray")
__all__ = ["BatchEnv", "ExternalProcess", "HostedEnv", "ParallelEnv", "RayEnv", "VectorizedEnv"]

# Attributes and methods that are taken from the environment in this process
_FORWARDED = (
    *("name", "frameskip", "autoreset", "gym_env", "obs_type", "render_mode"),
    *("obs_shape", "action_shape", "observation_space", "action_space", "img_shape", "metadata"),
    *("reward_range", "remove_time_limit", "step", "step_with_dt", "get_state", "get_image"),
    *("render", "sample_action", "seed", "_wrappers"),
)


class VectorizedEnv(PlangymEnv):
    """One environment in this process, whose batches are stepped in many processes.

    Batches from given states are stepped by `plangym_like`. Batches without states are split into
    equal parts, which worker processes step row by row. Each worker has its own current state,
    which `reset`, `set_state` and `sync_states` set. If a user's `env_class` overrides a method
    that takes part in steps, such as ``process_obs``, workers step all batches.

    Parameters
    ----------
    env_class : callable
        ``env_class(name=..., delay_setup=..., **kwargs)`` returns a `PlanEnv`.
    name : str, optional
    frameskip : int, optional
        By default, the default of `env_class`.
    autoreset : bool
    delay_setup : bool
        Make the environment on first use.
    n_workers : int
        The number of processes.
    kwargs
        Arguments of `env_class`.
    """

    def __init__(
        self,
        env_class: Callable[..., PlanEnv],
        name: str | None = None,
        frameskip: int | None = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int = 8,
        **kwargs: Any,
    ) -> None:
        given = {"name": name, "frameskip": frameskip}
        self._env_class: Any = env_class
        self._env_kwargs = {key: given[key] for key in given if given[key] is not None}
        self._env_kwargs.update(kwargs, autoreset=autoreset)
        self._n_workers = n_workers
        self.delay_setup = delay_setup
        # The workers that keep their own states, and the state in which new ones begin; by default,
        # the current state.
        self._workers: list[Any] | None = None
        self._worker_state: Any = None
        self._plan_env: Any = self.create_env_callable(delay_setup=True)()
        for attribute in ("SINGLETON", "STATE_IS_ARRAY", "AVAILABLE_OBS_TYPES", "DEFAULT_OBS_TYPE"):
            if hasattr(env_class, attribute):
                setattr(self, attribute, getattr(self._plan_env, attribute))
        if self._steps_here:
            self._plan_env._execution = self._execution_options()
        if not delay_setup:
            self.setup()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment in this process."""
        if name.startswith("_") or "_plan_env" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._plan_env, name)

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"{self!r} has processes and cannot be pickled or copied; use clone()")

    @property
    def _steps_here(self) -> bool:
        """Whether `plangym_like` steps batches from given states; if not, workers step them."""
        kind: Any = type(self._plan_env)
        return issubclass(kind, PlangymEnv) and not writes_hooks(kind)

    def _execution_options(self) -> dict[str, Any]:
        """Return the arguments of `plangym_like.make` that say where batches are stepped."""
        raise NotImplementedError

    def create_env_callable(self, **kwargs: Any) -> Callable[..., Any]:
        """Return a callable that makes an environment in any process."""
        return partial(self._env_class, **{**self._env_kwargs, **kwargs})

    def _create_worker_callable(self) -> Callable[..., Any]:
        """Return a callable that makes an environment in a worker, without a window."""
        shown = self._env_kwargs.get("render_mode") == "human"
        mode = {"render_mode": "rgb_array"} if shown else {}
        make = self.create_env_callable(delay_setup=False, **mode)
        return partial(make_hosted, known_ids(), make)

    def setup(self) -> None:
        """Make the environment in this process; workers are made when they are first needed."""
        self._plan_env.setup()

    @property
    def return_image(self) -> bool:
        """Whether infos hold images."""
        return bool(self._env_kwargs.get("return_image", False))

    @property
    def n_workers(self) -> int:
        """The number of processes."""
        return self._n_workers

    @property
    def plan_env(self) -> Any:
        """The environment in this process."""
        return self._plan_env

    def reset(self, return_state: bool = True) -> tuple[Any, ...]:
        """Begin an episode, in workers too; return ``(state, obs, info)``, or ``(obs, info)``."""
        state, obs, info = self._plan_env.reset(return_state=True)
        self.sync_states(state)
        return (state, obs, info) if return_state else (obs, info)

    def set_state(self, state: Any) -> None:
        """Make `state` the current state, in workers too."""
        self._plan_env.set_state(state)
        self.sync_states(state)

    def sync_states(self, state: Any = None) -> None:
        """Make `state` (by default, this process's current state) the current state of all workers.

        If a worker has died, all workers are closed. New ones are made when they are needed.
        """
        self._worker_state = copy(self.get_state() if state is None else state)
        if self._workers is not None:
            try:
                self._call("set_state", [(self._worker_state,)] * self.n_workers)
            except self._deaths():
                self._end_workers()

    def apply_wrappers(self, wrappers: Iterable[WrapperLike]) -> None:
        """Put wrappers around the environment, in workers too, and begin a new episode."""
        self.close()
        self._plan_env.apply_wrappers(wrappers)
        self._env_kwargs["wrappers"] = self._plan_env._wrappers

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        given = {
            "env_class": self._env_class,
            "n_workers": self.n_workers,
            "delay_setup": self.delay_setup,
            **self._env_kwargs,
        }
        return type(self)(**{**given, **kwargs})

    def close(self) -> None:
        """Close the environment and its processes."""
        self._end_workers()
        self._worker_state = None
        self._plan_env.close()

    # Batches

    def step_batch(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None
    ) -> tuple[list[Any], ...]:
        """Step N times; return a list of N values for each value that `step` returns."""
        if self._steps_here and not without_states(states):
            data: tuple[list[Any], ...] = self._plan_env.step_batch(
                actions, states, dt, return_state
            )
            return data
        return self.make_transitions(actions, states, dt, return_state)

    def make_transitions(
        self, actions: Any, states: Any, dt: Any, return_state: bool | None = None
    ) -> tuple[list[Any], ...]:
        """Step N times in workers; without states, each worker continues from its own state."""
        if return_state is None:
            return_state = not without_states(states)
        parts = zip(*self.batch_step_data(actions, states, dt, self.n_workers), strict=True)
        jobs = [(some, each, steps, return_state) for each, some, steps in parts]
        return self.unpack_transitions(self._call("step_batch", jobs), return_state)

    @property
    def workers(self) -> list[Any]:
        """The workers that keep their own states; made when they are first needed."""
        if self._workers is None:
            state = self.get_state() if self._worker_state is None else self._worker_state
            self._workers = self._make_workers()
            self._call("set_state", [(state,)] * self.n_workers)
        return self._workers

    def _make_workers(self) -> list[Any]:
        """Return `n_workers` new workers."""
        raise NotImplementedError

    def _call(self, name: str, jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call the method `name` in one worker for each of `jobs`, with these arguments."""
        raise NotImplementedError

    def _deaths(self) -> type[Exception]:
        """Return the class of errors that say that a worker has died."""
        raise NotImplementedError

    def _end_workers(self) -> None:
        """Close all existing workers."""
        workers, self._workers = self._workers, None
        for worker in workers or ():
            self._end(worker)

    def _end(self, worker: Any) -> None:
        """Close `worker`."""

    @staticmethod
    def split_similar_chunks(vector: Any, n_chunks: int) -> Iterator[Any]:
        """Yield at most `n_chunks` parts of `vector`, all equally long except the last part."""
        length = max(1, -(-len(vector) // n_chunks))
        for start in range(0, len(vector), length):
            yield vector[start : start + length]

    @classmethod
    def batch_step_data(
        cls, actions: Any, states: Any, dt: Any, batch_size: int
    ) -> tuple[Iterator[Any], Iterator[Any], Iterator[Any]]:
        """Split states, actions and ``dt`` into parts for `batch_size` workers."""
        if without_states(states):
            states = [None] * len(actions)
        if len(states) != len(actions):
            raise InputError(
                f"there must be one state for each action, got {len(states)} states and "
                f"{len(actions)} actions"
            )
        steps = np.array(as_steps(dt, len(actions)), np.int64)
        parts = [cls.split_similar_chunks(each, batch_size) for each in (states, actions, steps)]
        return parts[0], parts[1], parts[2]

    @staticmethod
    def unpack_transitions(results: Sequence[Any], return_states: bool) -> tuple[list[Any], ...]:
        """Join `results`, one for each part of a batch, into the result of the whole batch."""
        width = 6 if return_states else 5
        return tuple([row for part in results for row in part[index]] for index in range(width))


def _forwarded(name: str) -> property:
    return property(
        lambda env: getattr(env._plan_env, name), doc=f"The attribute `{name}` of `plan_env`."
    )


def _changed(env: VectorizedEnv, value: Any, *, name: str) -> None:
    """Change the attribute here and in workers, which are made anew when they are next needed."""
    setattr(env._plan_env, name, value)
    env._env_kwargs[name] = value
    env._end_workers()


for _name in _FORWARDED:
    setattr(VectorizedEnv, _name, _forwarded(_name))
for _name in ("frameskip", "autoreset"):
    setattr(VectorizedEnv, _name, _forwarded(_name).setter(partial(_changed, name=_name)))


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
    >>> from plangym_like.compat.plangym.control import ClassicControl
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
        super().__init__(env_class, name, frameskip, autoreset, delay_setup, n_workers, **kwargs)

    def _execution_options(self) -> dict[str, Any]:
        return {"n_workers": self.n_workers}

    @property
    def blocking(self) -> bool:
        """Whether workers take turns on batches without states, instead of running in parallel."""
        return self._blocking

    def _make_workers(self) -> list[Any]:
        make = partial(_reset_first, self._create_worker_callable())
        return [ExternalProcess(make) for _ in range(self.n_workers)]

    def _call(self, name: str, jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        waiting = []
        for worker, arguments in zip(self.workers, jobs, strict=False):
            waiting.append(worker.call(name, *arguments))
            if self._blocking:
                waiting[-1].result()
        return [future.result() for future in waiting]

    def _deaths(self) -> type[Exception]:
        return WorkerDiedError

    def _end(self, worker: Any) -> None:
        worker.close()

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        return super().clone(**{"blocking": self.blocking, **kwargs})


def _reset_first(make: Callable[[], Any]) -> Any:
    env = make()
    env.reset()
    return env


class HostedEnv:
    """An environment in a Ray actor; see `RemoteEnv`.

    Parameters
    ----------
    env_callable : callable
        Returns the environment; `setup` calls it.
    """

    def __init__(self, env_callable: Callable[[], Any]) -> None:
        self._env_callable = env_callable
        self._env: Any = None

    def setup(self) -> None:
        """Make the environment."""
        self._env = self._env_callable()


def _hosted(name: str) -> Callable[..., Any]:
    def call(self: HostedEnv, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._env, name)(*args, **kwargs)

    call.__name__, call.__doc__ = name, f"Call ``{name}`` of the environment."
    return call


for _name in ("step", "step_batch", "reset", "get_state", "set_state"):
    setattr(HostedEnv, _name, _hosted(_name))


def __getattr__(name: str) -> Any:
    """Return ``RemoteEnv``, the actor class of `HostedEnv`, which needs Ray."""
    if name != "RemoteEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import ray

    globals()[name] = ray.remote(HostedEnv)
    return globals()[name]


class RayEnv(VectorizedEnv):
    """An environment whose batches are stepped on a Ray cluster.

    See `VectorizedEnv` for the parameters.
    """

    def _execution_options(self) -> dict[str, Any]:
        return {"n_workers": self.n_workers, "ray": True}

    def _make_workers(self) -> list[Any]:
        import ray

        actor_class, make = __getattr__("RemoteEnv"), self._create_worker_callable()
        actors = [actor_class.remote(make) for _ in range(self.n_workers)]
        ray.get([actor.setup.remote() for actor in actors])
        return actors

    def _call(self, name: str, jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        import ray

        actors = zip(self.workers, jobs, strict=False)
        return ray.get([getattr(actor, name).remote(*job) for actor, job in actors])

    def _deaths(self) -> type[Exception]:
        from ray.exceptions import RayActorError

        return RayActorError

    def _end(self, worker: Any) -> None:
        import ray

        ray.kill(worker)

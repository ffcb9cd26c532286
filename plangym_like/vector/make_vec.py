"""`make_vec`: an id or a factory as a vectorised environment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, overload

from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from plangym_like.errors import InputError, SnapshotError
from plangym_like.processes.child import check_can_start
from plangym_like.processes.start_methods import check_start_method
from plangym_like.snapshots.trial import trials_shared
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, check_seconds, several_agents
from plangym_like.vector.async_vector_env import AsyncPlanVectorEnv
from plangym_like.vector.lanes import Lanes
from plangym_like.vector.make_lanes import (
    EnvSource,
    classic_kernel,
    env_factory,
    lanes_from,
    spec_of,
)
from plangym_like.vector.process_lanes import ProcessLanes
from plangym_like.vector.sequential_lanes import as_gym_env
from plangym_like.vector.vector_env import PlanVectorEnv

# If this process can step all environments in less time, they are not divided among processes
# (`benchmarks/vector.py`).
_MESSAGES_SECONDS = 3e-4
_TRIAL_STEPS = 10
# Arguments of `gymnasium.make_vec` and similar functions, with their replacements here.
_ELSEWHERE = {
    "vectorization_mode": "n_workers=k divides the environments among up to k processes, and "
    "vectorise=False steps them one by one",
    "vectorize": "it is spelled vectorise here",
    "vector_kwargs": "give its entries as keywords of make_vec",
    "shared_memory": "leave it out: with n_workers=2 or more, observations are in shared memory",
}


@overload
def make_vec(
    source: EnvSource | Sequence[EnvSource],
    num_envs: int | None = None,
    n_workers: int | None = None,
    *,
    batch_size: None = None,
    **kwargs: Any,
) -> PlanVectorEnv: ...
@overload
def make_vec(
    source: EnvSource | Sequence[EnvSource],
    num_envs: int | None = None,
    n_workers: int | None = None,
    *,
    batch_size: int,
    **kwargs: Any,
) -> AsyncPlanVectorEnv: ...
def make_vec(
    source: EnvSource | Sequence[EnvSource],
    num_envs: int | None = None,
    n_workers: int | None = None,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
    vectorise: bool = True,
    timeout: float = 60.0,
    batch_size: int | None = None,
    start_method: str = "forkserver",
    start_states: tuple[Row, Any] | None = None,
    **kwargs: Any,
) -> PlanVectorEnv:
    """Make n environments that are stepped together, as one `gymnasium.vector.VectorEnv`.

    The results are the same as with `gymnasium.vector.SyncVectorEnv`, but environments are stepped
    in the fastest way that they support. If environments are made from an id or by
    `plangym_like.make`, their states can be saved and restored at any time.

    Parameters
    ----------
    source : str or callable, or a sequence of them
        An id, or a callable that returns a new `gymnasium.Env` or `PlanEnv`; or one for each
        environment. Environments made from an id have the time limit and the sticky actions that
        the id is registered with.
    num_envs : int, optional
        n; by default the length of `source`, or 1.
    n_workers : int, optional
        How many processes may step environments, this one included. If steps are cheaper than
        messages to other processes, as in classic control, this process steps all environments.
    autoreset_mode, copy, observation_mode, start_states
        See `PlanVectorEnv`. With `start_states`, episodes begin in given states, as in a
        curriculum.
    vectorise : bool
        Whether to use the vectorised form of environments that have one.
    timeout : float
        With several processes: a process that does not reply within `timeout` seconds is replaced,
        as one that has died is. The episodes of its environments end (see `ProcessLanes`).
    batch_size : int, optional
        Make an `AsyncPlanVectorEnv`, whose ``recv`` returns the results of the first `batch_size`
        environments that are ready.
    start_method : {"forkserver", "spawn", "fork"}
        How processes are started. They import modules anew, except with ``"fork"``, which copies
        this process (see `plangym_like.processes.start_methods`).
    kwargs
        Arguments for `plangym_like.make`, or for the callable.

    Raises
    ------
    InputError
        `source` has another type; `num_envs` or `n_workers` is less than 1; `num_envs` is not the
        length of `source`; `batch_size` or `timeout` is out of range; `start_states` do not fit; or
        a keyword of `gymnasium.make_vec` is not supported.

    Examples
    --------
    >>> import plangym_like
    >>> envs = plangym_like.make_vec("CartPole-v1", 3)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations.shape
    (3, 4)
    >>> states = envs.get_states()
    >>> first = envs.step([0, 1, 1])
    >>> envs.set_states(states)
    >>> second = envs.step([0, 1, 1])
    >>> bool((first[0] == second[0]).all())
    True
    >>> envs.close()
    """
    for name in _ELSEWHERE.keys() & kwargs.keys():
        raise InputError(f"make_vec has no argument {name}: {_ELSEWHERE[name]}")
    sources, count = _sources_of(source, num_envs)
    check_seconds("timeout", timeout)
    check_start_method(start_method)
    workers = min(count, as_count("n_workers", 1 if n_workers is None else n_workers))
    if workers > 1:
        check_can_start()
    specs = list(map(spec_of, sources))
    factories = [
        env_factory(each, **{**_left_out(spec), **kwargs})
        for each, spec in zip(sources, specs, strict=True)
    ]
    if all(each is sources[0] for each in sources):
        del factories[1:]
    try:
        lanes = _make_lanes(
            factories,
            count,
            workers,
            vectorise=vectorise,
            timeout=timeout,
            start_method=start_method,
        )
    except SnapshotError as error:
        if isinstance(source, str):
            error.add_note(
                "a factory of plain Gymnasium environments, such as lambda: gymnasium.make(id), "
                "makes them without state rows"
            )
        raise
    options: dict[str, Any] = {
        "autoreset_mode": autoreset_mode,
        "copy": copy,
        "observation_mode": observation_mode,
        "start_states": start_states,
    }
    try:
        if batch_size is None:
            envs = PlanVectorEnv(lanes, **options)
        else:
            envs = AsyncPlanVectorEnv(lanes, batch_size=batch_size, **options)
    except BaseException:
        lanes.close()
        raise
    if isinstance(source, str):
        envs.spec = specs[0]
    return envs


def _sources_of(source: Any, num_envs: Any) -> tuple[list[Any], int]:
    """Return the entries of `source`, or the only one, and how many environments to make."""
    if isinstance(source, str) or callable(source):
        return [source], as_count("num_envs", 1 if num_envs is None else num_envs)
    if not isinstance(source, Iterable):
        raise InputError(
            "source must be an id, a callable that returns a new environment, or a list of these, "
            f"got {source!r}{several_agents(source)}"
        )
    sources = list(source)
    count = as_count("num_envs", len(sources) if num_envs is None else num_envs)
    if len(sources) != count:
        raise InputError(f"num_envs is {count}, but source has {len(sources)} entries")
    return sources, count


def _make_lanes(
    factories: list[Callable[[], Any]],
    count: int,
    workers: int,
    *,
    vectorise: bool,
    **in_processes: Any,
) -> Lanes:
    """Make `count` environments, with one factory for each or one for all of them.

    `in_processes` are options of `ProcessLanes`, which is used if it is worth it.
    """
    sources = factories if len(factories) > 1 else factories[0]
    with trials_shared():
        if workers > 1 and _is_worth_messages(factories[0], count, vectorise=vectorise):
            return ProcessLanes(sources, count, workers, vectorise=vectorise, **in_processes)
        return lanes_from(sources, count, vectorise=vectorise)


def _is_worth_messages(factory: Callable[[], Any], num_envs: int, *, vectorise: bool) -> bool:
    """Return whether a step of all environments takes longer than sending messages about it."""
    env = factory()
    try:
        if vectorise and classic_kernel([env]) is not None:
            return False
        gym_env, space, fastest = as_gym_env(env), deepcopy(env.action_space), math.inf
        space.seed(0)
        gym_env.reset(seed=0, options=None)
        for _ in range(_TRIAL_STEPS):
            begun = time.perf_counter()
            result = gym_env.step(space.sample())
            fastest = min(fastest, time.perf_counter() - begun)
            if result[2] or result[3]:
                gym_env.reset(seed=0, options=None)
    except Exception:
        return True  # raised again when the environments are made or stepped for the user
    finally:
        env.close()
    return num_envs * fastest > _MESSAGES_SECONDS


def _left_out(spec: EnvSpec | None) -> dict[str, Any]:
    """Return those settings of a registered id that `plangym_like.make` does not use itself."""
    stickiness = None if spec is None else spec.kwargs.get("repeat_action_probability")
    return {} if stickiness is None else {"repeat_action_probability": stickiness}

"""Make lanes from ids, factories or environments, in their fastest form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from plangym_like import registry
from plangym_like.batch.spaces import is_leaf
from plangym_like.envs.wrapping import call_source, is_plain
from plangym_like.errors import InputError
from plangym_like.snapshots.trial import trials_shared
from plangym_like.support.arguments import several_agents
from plangym_like.vector.lanes import Lanes, gym_env_of, is_plan_env
from plangym_like.vector.sequential_lanes import SequentialLanes

if TYPE_CHECKING:
    from plangym_like.vector.kernel_lanes import ClassicKernel

# Fewer robots than this are stepped faster one by one (`benchmarks/vector.py`).
_FEWEST_AT_ONCE = 4
# An id, or a callable without arguments that returns a new gymnasium.Env or PlanEnv.
EnvSource = str | Callable[[], Any]


def make_lanes(envs: Sequence[Any], *, vectorise: bool = True) -> Lanes:
    """Return lanes of `envs`, in a vectorised form if there is one, else stepped one by one.

    Both forms give the same results, byte for byte. A vectorised form rarely calls the
    environments' own ``step``.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
        One for each lane.
    vectorise : bool
        Whether to use a vectorised form.

    Raises
    ------
    InputError
        `envs` is empty, holds an environment twice, or is not a list of environments.

    Examples
    --------
    >>> lanes = make_lanes([gymnasium.make("CartPole-v1") for _ in range(4)])
    >>> lanes.start(seeds=range(4)).shape
    (4, 4)
    >>> lanes.has_states  # `PlanEnv`s have state rows, Gymnasium's environments have none
    False
    """
    if isinstance(envs, str) or not isinstance(envs, Sequence):
        raise InputError(f"envs must be a list of environments, got {envs!r}")
    if not envs:
        raise InputError("envs is empty; lanes need at least one environment")
    for env in envs:
        if not isinstance(env, gymnasium.Env) and not is_plan_env(env):
            raise InputError(
                f"envs must hold environments, such as those of plangym_like.make, got {env!r}"
            )
    if len({id(env) for env in envs}) < len(envs):
        raise InputError("envs holds the same environment twice; make one for each lane")
    kernel = classic_kernel(envs) if vectorise else None
    if kernel is not None and len(envs) >= kernel.fewest_lanes:
        from plangym_like.vector.kernel_lanes import KernelLanes

        return KernelLanes(envs, kernel)
    return SequentialLanes(envs)


def classic_kernel(envs: Sequence[Any]) -> ClassicKernel | None:
    """Return a kernel that steps `envs` together, if all are the same classic control."""
    if not _is_gymnasiums_own(envs[0], "classic_control"):
        return None
    from plangym_like.vector.kernel_lanes import ClassicKernel

    return ClassicKernel.make(envs)


def lanes_from(
    sources: EnvSource | Sequence[EnvSource],
    num_lanes: int,
    *,
    vectorise: bool = True,
) -> Lanes:
    """Return `num_lanes` lanes of new environments.

    Parameters
    ----------
    sources : str or callable, or a sequence of them
        An id, which means ``plangym_like.make(id, remove_time_limit=False)``, or a callable that
        returns a new `gymnasium.Env` or `PlanEnv`; or one for each lane. Lanes of a `PlanEnv` have
        state rows.
    num_lanes : int
    vectorise : bool
        Whether to step environments with their vectorised form, if they have one.

    Raises
    ------
    InputError
        The callable returned something other than an environment, or the same environment twice.

    Examples
    --------
    >>> lanes = lanes_from("CartPole-v1", 4)
    >>> obs = lanes.start(seeds=range(4))
    >>> lanes.set_states(lanes.get_states([0]), [3])  # lane 3 continues from the state of lane 0
    >>> bool((lanes.get_states([0]) == lanes.get_states([3])).all())
    True
    """
    alike = isinstance(sources, str) or callable(sources)
    each: Any = repeat(sources, num_lanes) if alike else sources
    together = alike and vectorise
    envs: list[Any] = []
    with trials_shared():
        for source in each:
            _make_another(source, envs, num_lanes)
            if together and len(envs) == 1 and _steps_rows_best(envs[0], num_lanes):
                from plangym_like.vector.kernel_lanes import RowLanes

                return RowLanes(envs[0], num_lanes)
    if together and num_lanes >= _FEWEST_AT_ONCE and _are_made_only_here(sources, "mujoco"):
        from plangym_like.vector.kernel_lanes import KernelLanes
        from plangym_like.vector.robot_kernel import RobotLaneKernel

        if RobotLaneKernel.suits(envs[0]):
            return KernelLanes(envs, RobotLaneKernel(envs))
    return make_lanes(envs, vectorise=vectorise)


def make_envs(source: EnvSource, count: int) -> list[Any]:
    """Return `count` new environments made from `source`; see `lanes_from`."""
    envs: list[Any] = []
    with trials_shared():
        while len(envs) < count:
            _make_another(source, envs, count)
    return envs


def env_factory(source: EnvSource, **kwargs: Any) -> Callable[[], Any]:
    """Return a callable without arguments that makes environments from `source` with `kwargs`."""
    if callable(source):
        return partial(call_source, source, kwargs) if kwargs else source
    return partial(registry.make, source, **{"remove_time_limit": False, **kwargs})


def _make_another(source: EnvSource, envs: list[Any], count: int) -> None:
    """Append one new environment to `envs`, which will hold `count` once all are made."""
    try:
        env = env_factory(source)()
        if not isinstance(env, gymnasium.Env) and not is_plan_env(env):
            raise InputError(
                f"the factory must return a gymnasium.Env or a PlanEnv, got {env!r}"
                f"{several_agents(env)}"
            )
        if any(env is other for other in envs):
            raise InputError(
                "the factory returned the same environment twice; it must make a new one at every "
                "call"
            )
    except StopIteration as error:
        raise RuntimeError("the factory raised StopIteration") from error
    except BaseException as error:
        error.add_note(f"raised while environment {len(envs)} of {count} was made")
        raise
    envs.append(env)


def spec_of(source: EnvSource) -> EnvSpec | None:
    """Return the registered spec of an id, or ``None`` if there is none."""
    if not isinstance(source, str):
        return None
    try:
        return registry.find_spec(source)
    except gymnasium.error.Error:
        return None  # a name of a family, or an unknown name, for which `make` raises an error


def _are_made_only_here(source: Any, group: str) -> bool:
    """Return whether `source` is an id of ``gymnasium.envs.{group}``, or `env_factory` of one.

    No other code refers to environments that are made from an id.
    """
    if isinstance(source, partial) and source.func is registry.make:
        source = source.args[0]
    entry_point = getattr(spec_of(source), "entry_point", None)
    return isinstance(entry_point, str) and entry_point.startswith(f"gymnasium.envs.{group}")


def _is_gymnasiums_own(env: Any, group: str) -> bool:
    """Return whether `env` is from ``gymnasium.envs.{group}``."""
    return type(gym_env_of(env).unwrapped).__module__.startswith(f"gymnasium.envs.{group}.")


def _steps_rows_best(env: Any, num_lanes: int) -> bool:
    """Return whether `num_lanes` state rows of `env` are stepped faster than separate copies.

    This is true if the family steps many rows at once, or if the environment has workers. Classic
    control is excluded because it has a faster form. Most wrappers are excluded because, at the
    first reset of a lane, they may be in the state of another lane (see `RowLanes`).
    """
    if not is_plan_env(env) or not is_leaf(env.observation_space):
        return False
    simulator = env.simulator
    enough = simulator.steps_batches and num_lanes >= simulator.fewest_rows
    if env.n_workers is None and not enough:
        return False
    return is_plain(simulator.env) and not _is_gymnasiums_own(env, "classic_control")

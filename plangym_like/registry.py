"""Which family plans over which environment, as data, and `make`."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from plangym_like.audit.auditor import EVERY
from plangym_like.errors import InputError, MissingExtraError
from plangym_like.made_env import name_of
from plangym_like.plan_env import PlanEnv

# Where an id's entry point lies -> the family's module and class.
FAMILIES: dict[str, tuple[str, str]] = {
    "ale_py.": ("plangym_like.envs.atari", "AtariEnv"),
    "gymnasium.envs.classic_control.": ("plangym_like.envs.classic_control", "ClassicControlEnv"),
    "gymnasium.envs.box2d.": ("plangym_like.envs.box2d", "Box2DEnv"),
    "gymnasium.envs.mujoco.": ("plangym_like.envs.mujoco", "MujocoEnv"),
    "gymnasium.envs.phys2d.": ("plangym_like.envs.functional_jax", "FunctionalJaxEnvironment"),
    "gymnasium.envs.tabular.": ("plangym_like.envs.functional_jax", "FunctionalJaxEnvironment"),
    "gymnasium.envs.toy_text.": ("plangym_like.envs.toy_text", "ToyTextEnv"),
}
# What no family of its own claims is saved by the first of these that is exact.
GENERIC = ("plangym_like.envs.any_env", "AnyEnv")
# How states are saved -> what saves them so, whatever the environment.
SNAPSHOTS: dict[str, tuple[str, str]] = {
    "native": ("plangym_like.envs.own", "OwnEnv"),
    "pickle": ("plangym_like.envs.pickled", "PickledEnv"),
    "replay": ("plangym_like.envs.replayed", "ReplayedEnv"),
}

# What a family needs that the package itself does not -> the extra that installs it.
_EXTRAS = {
    "plangym_like.envs.mujoco": "mujoco",
    "plangym_like.envs.dm_control": "dm-control",
    "plangym_like.envs.retro": "retro",
    "plangym_like.envs.functional": "jax",
    "plangym_like.envs.functional_jax": "jax",
}

# Tasks of dm_control's suite are named as in plangym ("walker-walk") or as in shimmy
# ("dm_control/walker-walk-v0"), and not registered.
_SUITE = ("plangym_like.envs.dm_control", "DmControlEnv")
_SUITE_NAME = re.compile(r"dm_control/\w+-\w+-v0|[A-Za-z]\w*-(?!v\d+$)[A-Za-z]\w*")

# Games of pgx have its name before theirs.
_PGX = ("plangym_like.envs.functional", "FunctionalEnv")

# Games of stable-retro are named after their console, and not registered either.
_RETRO = ("plangym_like.envs.retro", "RetroEnv")
_RETRO_NAME = re.compile(
    r"\w+-(32x|Arcade|Atari2600|GameBoy|GbAdvance|GbColor|Genesis|N64|Nes|PCEngine|Saturn|Sms|Snes)"
    r"(-v\d+)?"
)

# Packages that register ids when they are imported -> the extra that installs them.
_REGISTRARS = {"ale_py": "atari"}


def find_spec(name: str) -> EnvSpec:
    """Return the registered spec of `name`.

    Raises
    ------
    gymnasium.error.NameNotFound, gymnasium.error.VersionNotFound, ...
        What Gymnasium raises, with near matches named.
    MissingExtraError
        The id belongs to a package that is not installed.
    """
    module, colon, name = name.rpartition(":")
    if colon:
        # As in Gymnasium: a module that registers ids when it is imported, and one of them.
        importlib.import_module(module)
    if name not in gymnasium.registry:
        for package, extra in _REGISTRARS.items():
            try:
                gymnasium.register_envs(importlib.import_module(package))
            except ImportError as error:
                if name.startswith("ALE/"):
                    raise MissingExtraError(
                        f"{name} needs {package}: pip install 'plangym_like[{extra}]'"
                    ) from error
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(name, gymnasium.registry, n=3)
        hint = f" Near matches: {', '.join(near)}." if near else ""
        raise type(error)(f"{error}{hint}") from error


def family_of(name: str | Callable[..., Any], snapshot: str = "auto") -> Callable[..., PlanEnv]:
    """Return the `PlanEnv` class that plans over `name`, its states saved as `snapshot` says.

    Raises
    ------
    InputError
        There is no such way to save states, or not for this environment.
    """
    if snapshot not in ("auto", *SNAPSHOTS):
        raise InputError(
            f"snapshot is one of 'auto', {', '.join(map(repr, SNAPSHOTS))}, got {snapshot!r}"
        )
    place = GENERIC
    if isinstance(name, str) and name not in gymnasium.registry and _RETRO_NAME.fullmatch(name):
        place = _RETRO
    elif isinstance(name, str) and name.startswith("pgx/"):
        place = _PGX
    elif isinstance(name, str) and _is_suite_task(name):
        place = _SUITE
    elif isinstance(name, str):
        entry_point = find_spec(name).entry_point
        if isinstance(entry_point, str):
            matches = (FAMILIES[prefix] for prefix in FAMILIES if entry_point.startswith(prefix))
            place = next(matches, GENERIC)
    elif not callable(name):
        raise InputError(f"name is a Gymnasium id or a callable that returns an env, got {name!r}")
    family = _load(place)
    own_way = getattr(family.simulator_class, "snapshot", None)
    if snapshot in ("auto", own_way):
        return family
    if snapshot == "native" and place != GENERIC:
        why = getattr(family.simulator_class, "snapshot_note", "")
        raise InputError(f"{name_of(name)} has no snapshot='native': {why}; leave it at 'auto'")
    return _load(SNAPSHOTS[snapshot])


def _is_suite_task(name: str) -> bool:
    """Tell whether `name` is a task of dm_control's suite; imports it only if it may be one."""
    if name in gymnasium.registry and not name.startswith("dm_control/"):
        return False
    if not _SUITE_NAME.fullmatch(name):
        return False
    try:
        suite = importlib.import_module("plangym_like.envs.dm_control_suite")
        return bool(suite.is_task(name))
    except ImportError as error:
        if not name.startswith("dm_control/"):
            return False
        raise MissingExtraError(
            f"{name} needs dm_control: pip install 'plangym_like[dm-control]'"
        ) from error


def _load(place: tuple[str, str]) -> type[PlanEnv]:
    module, attribute = place
    try:
        family: type[PlanEnv] = getattr(importlib.import_module(module), attribute)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        if module not in _EXTRAS:
            raise
        raise MissingExtraError(
            f"{error}: pip install 'plangym_like[{_EXTRAS[module]}]'"
        ) from error
    return family


def make(
    name: str | Callable[..., gymnasium.Env[Any, Any]],
    n_workers: int | None = None,
    ray: bool = False,
    *,
    frameskip: int | tuple[int, int] | None = None,
    autoreset: bool = True,
    delay_setup: bool = False,
    snapshot: str = "auto",
    isolate: bool = False,
    step_timeout: float | None = None,
    start_timeout: float | None = None,
    audit: str = "raise",
    audit_every: int = EVERY,
    out_of_bounds: str = "pass",
    **env_kwargs: Any,
) -> Any:
    """Make an environment that can be saved, restored and stepped from any state.

    Parameters
    ----------
    name : str or callable
        A registered Gymnasium id, or a callable that returns a `gymnasium.Env`.
    n_workers : int, optional
        Lanes that step batches, this process being one of them (see `ParallelEnv`); ``None`` steps
        everything here.
    ray : bool
        Step batches on a Ray cluster, on `n_workers` cores of it or on all of them; `RayEnv` tells
        which further arguments it takes.
    frameskip : int or (int, int), optional
        Frames that one action lasts; ``None`` keeps what the id registers.
    autoreset : bool
        Whether `step` starts a new episode once one has ended; batches never do.
    delay_setup : bool
        Make simulators and processes on first use.
    snapshot : {"auto", "native", "pickle", "replay"}
        How states are saved: ``"auto"`` takes what the family is known for, and for all others the
        first way that is exact in a trial when the environment is made (``env.snapshot`` says
        which, ``env.snapshot_note`` why).
    isolate : bool
        Step nothing in this process, so that no simulator can crash or hang it.
    step_timeout : float, optional
        Seconds that one row may take; implies `isolate`.
    start_timeout : float, optional
        Seconds that a worker may take to make its environment before it is replaced (see
        `ParallelEnv`). Without workers it has no effect.
    audit : {"raise", "warn", "off"}
        What happens when a row that is stepped a second time gives another result. A sample of all
        rows is stepped twice, the second time elsewhere or later, and every byte is compared.
        ``"raise"``: `ImpureEnvironmentError`. ``"warn"``: one warning, and ``env.exactness``
        becomes ``"approximate"``. Environments that are approximate from the start are not audited.
    audit_every : int
        One row in so many is audited, after the first 256, all of which are; 1 audits all rows.
        Cheap environments are audited less often, so that audits take less than 1 % of the time.
    out_of_bounds : {"pass", "raise", "clip"}
        What happens to finite actions beyond the bounds of a `Box`: the environment gets them as
        they are (as in Gymnasium), `ActionError` is raised, or they are clipped.
    env_kwargs
        ``wrappers``, ``render_mode``, ``obs_type``, ``return_image``, ``remove_time_limit``, the
        options of a snapshot (``state_capacity``, ``replay_capacity``, ...), what
        ``gymnasium.make`` takes (``max_episode_steps``, ``disable_env_checker``), and what the
        environment itself takes.

    Raises
    ------
    gymnasium.error.Error
        The name is not registered; near matches are named.
    SnapshotError
        The environment cannot be saved exactly.
    MissingExtraError
        It needs a package that is not installed; the message says how to install it.

    >>> env = make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> states, obs, rewards, terminateds, truncateds, infos = env.step_batch([0, 1, 1], state)
    >>> rewards
    array([1., 1., 1.])
    """
    env_class = family_of(name, snapshot)
    kwargs = {
        "frameskip": frameskip,
        "autoreset": autoreset,
        "delay_setup": delay_setup,
        "audit": audit,
        "audit_every": audit_every,
        "out_of_bounds": out_of_bounds,
        **env_kwargs,
    }
    lanes: dict[str, Any] = {
        "isolate": isolate,
        "step_timeout": step_timeout,
        "start_timeout": start_timeout,
    }
    if ray:
        from plangym_like.cluster.ray_env import RayEnv

        return RayEnv(env_class, name, n_workers=n_workers, **lanes, **kwargs)
    if n_workers is None and not isolate and step_timeout is None:
        return env_class(name, **kwargs)
    from plangym_like.execution.parallel_env import ParallelEnv

    n_workers = 1 if n_workers is None else n_workers
    return ParallelEnv(env_class, name, n_workers=n_workers, **lanes, **kwargs)

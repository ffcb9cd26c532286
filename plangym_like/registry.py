"""`make`, `make_mujoco`, `register`, and the table of the families of environments."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec
from numpy.random import Generator
from numpy.typing import ArrayLike

from plangym_like.audit.auditor import EVERY
from plangym_like.batch.simulator import EnvSource, no_simulator
from plangym_like.env import PlanEnv
from plangym_like.envs.family_env import WAYS, wrapped_simulator
from plangym_like.envs.wrapping import as_wrappers
from plangym_like.errors import InputError
from plangym_like.execution.known_ids import user_families
from plangym_like.support.arguments import check_choice, name_of, several_agents
from plangym_like.support.lazy_imports import needs_extra


@dataclass(frozen=True, kw_only=True)
class Family:
    """The ids of a family, and where to import the family from.

    Attributes
    ----------
    place : str
        ``"module:class"`` in ``plangym_like.envs``; imported when an id of the family is made.
    entry_point : str or tuple of str
        The prefix, or prefixes, of the entry points of the family's registered ids.
    package : str
        The package that registers the ids when it is imported; empty if no import is needed.
    own : str or tuple of str
        The prefix, or prefixes, of ids that only this package registers.
    names : str
        A regular expression for ids that are not registered.
    ids : str
        ``"module:function"``, a function that lists the unregistered ids; empty if there is none.
    extra : str
        The extra that installs the additional dependencies of the family.
    """

    place: str
    entry_point: str | tuple[str, ...] = ""
    package: str = ""
    own: str | tuple[str, ...] = ()
    names: str = ""
    ids: str = ""
    extra: str = ""


# Families with unregistered ids come first. Ids of retro games end with the name of a console. Ids
# of dm_control's suite are plangym's ("walker-walk") or shimmy's ("dm_control/walker-walk-v0").
FAMILIES = (
    Family(
        place="retro:RetroEnv",
        names=r"\w+-(32x|Arcade|Atari2600|GameBoy|GbAdvance|GbColor|Genesis|N64|Nes|PCEngine"
        r"|Saturn|Sms|Snes)(-v\d+)?",
        extra="retro",
    ),
    Family(place="functional:FunctionalEnv", names=r"pgx/.*", extra="jax"),
    Family(place="openspiel:OpenSpielEnv", names=r"openspiel/.*", extra="openspiel"),
    Family(place="pettingzoo:PettingZooEnv", names=r"pettingzoo/.*", extra="pettingzoo"),
    Family(
        place="dm_control:DmControlEnv",
        names=r"dm_control/.*|[A-Za-z]\w*-(?!v\d+$)[A-Za-z]\w*",
        ids="dm_control:all_ids",
        extra="dm-control",
    ),
    Family(
        place="atari:AtariEnv", entry_point="ale_py.", package="ale_py", own="ALE/", extra="atari"
    ),
    Family(place="classic.env:ClassicControlEnv", entry_point="gymnasium.envs.classic_control."),
    Family(place="box2d:Box2DEnv", entry_point="gymnasium.envs.box2d.", extra="box2d"),
    Family(place="mujoco.env:MujocoEnv", entry_point="gymnasium.envs.mujoco.", extra="mujoco"),
    Family(
        place="functional:FunctionalJaxEnvironment",
        entry_point=("gymnasium.envs.phys2d.", "gymnasium.envs.tabular."),
        extra="jax",
    ),
    Family(place="toy_text:ToyTextEnv", entry_point="gymnasium.envs.toy_text."),
    Family(
        place="minigrid:MiniGridEnv",
        entry_point="minigrid.envs",
        package="minigrid",
        own=("MiniGrid-", "BabyAI-"),
        extra="minigrid",
    ),
)
# For environments without a family: states are saved by the first method that is exact.
GENERIC = Family(place="family_env:AnyEnv")
_MODEL_FILES = (".xml", ".mjcf", ".mjb", ".mjz", ".urdf")

EnvClass = Callable[..., PlanEnv]


def register(prefix_or_predicate: str | Callable[[Any], bool], family: EnvClass) -> None:
    """Register a family of your own, which `make` then uses for some environments.

    A family takes precedence over families that were registered before it, and over the package's
    own. Workers need not call this: `family` is sent to them.

    Parameters
    ----------
    prefix_or_predicate : str or callable
        Either the prefix of the ids, which need not be registered with Gymnasium, or a function
        that takes the first argument of `make` and returns whether the family handles it.
    family : callable
        ``family(name, **kwargs)`` returns a `PlanEnv`, like all environment classes of this
        package.

    Raises
    ------
    InputError
        An argument has the wrong type, or the prefix is empty.

    Examples
    --------
    >>> from plangym_like import ClassicControlEnv
    >>> register("mine/", lambda name, **kwargs: ClassicControlEnv(name[5:], **kwargs))
    >>> make("mine/CartPole-v1").obs_shape
    (4,)
    """
    answers = prefix_or_predicate
    if isinstance(answers, str):
        if not answers:
            raise InputError("the prefix of a family's ids is empty, so it would match all ids")
        answers = partial(_begins_with, answers)
    elif not callable(answers):
        raise InputError(f"prefix_or_predicate must be text or a function, got {answers!r}")
    if not callable(family):
        raise InputError(f"family must be a class of environments or a function, got {family!r}")
    user_families.insert(0, (answers, family))


def _begins_with(prefix: str, name: Any) -> bool:
    return isinstance(name, str) and name.startswith(prefix)


def find_spec(name: str) -> EnvSpec:
    """Return the registered spec of `name`.

    Raises
    ------
    gymnasium.error.NameNotFound, gymnasium.error.VersionNotFound, ...
        Raised by Gymnasium; the message names near matches, or says how to name a package.
    MissingExtraError
        The id belongs to a package that is not installed.
    """
    module, colon, name = name.rpartition(":")
    if colon:
        if not module or module.startswith("."):
            raise InputError(f"{module + colon + name!r} must begin with the name of a module")
        try:  # as in Gymnasium, the module registers the id when it is imported
            importlib.import_module(module)
        except ImportError as error:
            error.add_note(f"raised while make imported the module of {module}:{name}")
            raise
    if name not in gymnasium.registry:
        _import_packages(name)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        if name.lower().endswith(_MODEL_FILES):
            raise InputError(_about_model_file(name)) from error
        told = f"importing {module} registers no id {name!r}" if colon else str(error)
        end = "" if told.endswith((".", "?")) else "."
        raise type(error)(f"{told}{end} {_remedy(module, name)}") from error


def _import_packages(name: str) -> None:
    """Import the packages that may register `name`: one if its prefix is known, otherwise all."""
    packages = [family for family in FAMILIES if family.package]
    owners = [family for family in packages if name.startswith(family.own)]
    for family in owners or packages:
        try:
            with needs_extra(f"{name} needs {family.package}", family.extra):
                gymnasium.register_envs(importlib.import_module(family.package))
        except ImportError:
            if owners:
                raise


def _remedy(module: str, name: str) -> str:
    """Return a sentence about what to give to `make` instead of the unknown id ``module:name``."""
    if module and callable(getattr(sys.modules[module], name, None)):
        return f"The module has a callable of this name: use make({module}.{name})."
    if module:
        return "The module has no callable of this name either."
    ids: list[str] = list(gymnasium.registry)
    for family in FAMILIES:
        if family.ids and re.fullmatch(family.names, name):
            try:
                with needs_extra(f"If it is an id of {family.extra}, install it", family.extra):
                    ids += _imported(family.ids)()
            except ImportError as error:
                return f"{error}."
    if near := difflib.get_close_matches(name, ids, n=3):
        return f"Near matches: {', '.join(near)}."
    return f"If a package registers it, name the package: make('package:{name}')."


def _about_model_file(name: str) -> str:
    return (
        f"{name!r} is the file of a model, not the id of an environment. Give it a reward: "
        f"make_mujoco({os.path.abspath(name)!r}, reward=...); on the command line, use plan "
        "with --reward"
    )


def family_of(name: str | Callable[..., Any], snapshot: str = "auto") -> EnvClass:
    """Return the `PlanEnv` class for `name`; `snapshot` says how it saves states (see `make`).

    Raises
    ------
    InputError
        `snapshot` is invalid, or does not apply to this environment.
    """
    check_choice("snapshot", snapshot, ("auto", *WAYS))
    registered: EnvClass | None = None
    for answers, each in user_families:
        if answers(name):
            registered = each
            break
    family = GENERIC if registered else _find_family(name)
    found = registered or _imported(family.place, family.extra)
    simulator_class = getattr(found, "simulator_class", None)
    if snapshot in ("auto", getattr(simulator_class, "snapshot", None)):
        return cast(EnvClass, found)
    if registered:
        raise InputError(
            f"{name_of(name)} belongs to a family that was given to register, which chooses how "
            f"states are saved; leave out snapshot={snapshot!r}"
        )
    if snapshot == "native" and family is not GENERIC:
        why = getattr(simulator_class, "snapshot_note", "")
        raise InputError(f"{name_of(name)} has no snapshot='native': {why}; use 'auto'")
    return cast(EnvClass, _imported(WAYS[snapshot][0]))


def _find_family(name: Any) -> Family:
    if isinstance(name, EnvSource):
        return Family(place=name.family)
    if callable(name):
        return GENERIC
    if not isinstance(name, str):
        raise InputError(
            "name must be a Gymnasium id or a callable that returns an environment, got "
            f"{name!r}{_hint(name)}"
        )
    for family in FAMILIES:
        if family.names and re.fullmatch(family.names, name) and _takes(family, name):
            return family
    entry_point = find_spec(name).entry_point
    if isinstance(entry_point, str):
        for family in FAMILIES:
            if family.entry_point and entry_point.startswith(family.entry_point):
                return family
    return GENERIC


def _hint(name: Any) -> str:
    """Return a hint about what to give to `make` instead of `name`; empty if there is none."""
    if isinstance(name, (PlanEnv, gymnasium.Env)):
        return "; it was made already: give its id, or a function that makes another one"
    if isinstance(name, os.PathLike) and str(name).lower().endswith(_MODEL_FILES):
        return f"; {_about_model_file(str(name))}"
    if isinstance(name, (list, tuple, gymnasium.vector.VectorEnv)):
        return "; for several environments at once there is plangym_like.make_vec"
    return several_agents(name)


def _takes(family: Family, name: str) -> bool:
    """Return whether `name`, which matches the pattern of `family`, is really one of its ids."""
    prefix, slash, _ = name.partition("/")
    if name in gymnasium.registry and not (slash and family.names.startswith(prefix + slash)):
        return False
    if not family.ids:
        return True
    try:
        with needs_extra(f"{name} needs {prefix}", family.extra):
            return name in _imported(family.ids)()
    except ImportError:
        if slash:
            raise
    return False


def _imported(place: str, extra: str = "") -> Any:
    """Return ``"module:name"`` of `plangym_like.envs`; `extra` installs what the module imports."""
    module, _, attribute = place.partition(":")
    needed = needs_extra(f"{module} cannot be imported", extra) if extra else nullcontext()
    with needed:
        return getattr(importlib.import_module(f"plangym_like.envs.{module}"), attribute)


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
) -> PlanEnv:
    """Make an environment that can be saved, restored and stepped from any state.

    Parameters
    ----------
    name : str or callable
        A registered Gymnasium id, or a callable that returns a `gymnasium.Env`.
    n_workers : int, optional
        The number of processes that step batches: this one and ``n_workers - 1`` workers (see
        `ParallelEnv`). ``None`` steps all batches in this process.
    ray : bool
        Step batches on a Ray cluster, on `n_workers` of its cores or on all of them (see `RayEnv`).
    frameskip : int or (int, int), optional
        Frames per action. For Atari games, a pair is a range from which the number is drawn at
        random. ``None`` keeps the value registered with the id.
    autoreset : bool
        Whether `step` starts a new episode once one has ended; batches never do.
    delay_setup : bool
        Make simulators and processes on first use.
    snapshot : {"auto", "native", "pickle", "replay"}
        How states are saved. ``"auto"`` uses the method of the environment's family. If there is no
        family, or if wrappers change what its rows do not hold, the methods are tried in turn when
        the environment is made, and the first exact one is used. ``env.snapshot`` is the method in
        use, and ``env.snapshot_note`` the reason for it.
    isolate : bool
        Step batches in workers only (`n_workers` of them), so that a row that crashes or hangs its
        simulator cannot affect this process. Single steps are taken in this process.
    step_timeout : float, optional
        Limit in seconds for one row. A worker that exceeds it is replaced, and the row is tried
        once more. If the second try fails too, `StepTimeoutError` is raised. Implies `isolate`.
    start_timeout : float, optional
        Limit in seconds for a worker to make its environment. A worker that exceeds it is replaced;
        if that happens five times for each worker, `WorkerStartError` is raised. The default is no
        limit. With `step_timeout`, the default is 60 s, or ten times the time that it took to make
        the environment in this process, whichever is longer. Without workers it has no effect.
    audit : {"raise", "warn", "off"}
        What to do if stepping a row a second time gives another result. A sample of all rows is
        stepped again, in another process or later, and every byte is compared. ``"raise"``
        raises `ImpureEnvironmentError`. ``"warn"`` issues one warning, and ``env.exactness``
        becomes ``"approximate"``. Environments that are approximate from the start are not audited.
    audit_every : int
        Audits take at most one part in `audit_every` of the steps, and of the time of stepping, in
        the long run, and one twentieth at first. With 1, all rows are audited, whatever it costs.
    out_of_bounds : {"pass", "raise", "clip"}
        What to do with finite actions beyond the bounds of a `Box`: pass them to the environment
        unchanged (as in Gymnasium), raise `ActionError`, or clip them.
    env_kwargs
        Arguments of the environment itself, and these options:

        - ``wrappers``: a list of wrapper classes, or of pairs ``(class, arguments)``.
        - ``render_mode``: as in Gymnasium; ``return_image=True``: put an image of each next state
          into ``info["rgb"]``.
        - ``obs_type``: what is observed, such as ``"coords"`` (the environment's own observation),
          ``"rgb"`` or ``"grayscale"``; Atari has ``"ram"`` too.
        - ``max_episode_steps``: the time limit of episodes, which callables may have too.
          ``remove_time_limit=False``: keep the limit that an id is registered with. By default,
          ids have no time limit, and callables keep theirs.
        - ``state_capacity``: the bytes reserved in each row for states that vary in length.
        - ``allow_pickle=True`` (``snapshot="pickle"``): load states that another session has saved.
          They can run any code when they are loaded, so use this only for files that you trust.
        - ``replay_capacity``, ``live_prefixes`` (``snapshot="replay"``): the number of steps that
          fit into a row, and the number of copies of the environment that are kept for replaying.
        - ``disable_env_checker=False``: use Gymnasium's checker of environments.
        - ``start_method`` (with workers): how they are started, ``"forkserver"`` (the default),
          ``"spawn"`` or ``"fork"``.
        - ``address``, ``resources``, ``placement``, ``runtime_env`` and ``object_store_memory``
          (``ray=True``): the cluster, and how it is used; see `RayEnv`.

        A family may have further options, such as ``repeat_action_probability``; they are those of
        its simulator, such as `AtariSimulator`.

    Raises
    ------
    gymnasium.error.Error
        The name is not registered; the message names near matches.
    InputError
        An option is invalid, or neither `make` nor the environment supports it.
    SnapshotError
        The environment cannot be saved exactly.
    MissingExtraError
        The environment needs a package that is not installed; the message says how to install it.
    WorkerStartError
        Workers are wanted, but the platform is not Linux, or this process is a worker that is
        importing a module.

    Examples
    --------
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
    execution: dict[str, Any] = {
        "isolate": isolate,
        "step_timeout": step_timeout,
        "start_timeout": start_timeout,
    }
    if not isinstance(ray, bool):
        raise InputError(f"ray must be True or False, got {ray!r}")
    if snapshot == "auto" and as_wrappers(kwargs.get("wrappers")):
        simulator_class = getattr(env_class, "simulator_class", None)
        if getattr(simulator_class, "other_ways", None):
            kwargs["fallback"] = wrapped_simulator
    if ray:
        from plangym_like.constructors import RayEnv

        return RayEnv(env_class, name, n_workers=n_workers, **execution, **kwargs)
    if n_workers is None and not isolate and step_timeout is None:
        env = env_class(name, **kwargs)
        if not isinstance(env, PlanEnv):
            raise no_simulator(env)
    else:
        from plangym_like.constructors import ParallelEnv

        execution["n_workers"] = 1 if n_workers is None else n_workers
        env = ParallelEnv(env_class, name, **execution, **kwargs)
    return env


def make_mujoco(
    model: Any,
    *,
    reward: Callable[[Any], ArrayLike],
    observation: Callable[[Any], ArrayLike] | None = None,
    terminated: Callable[[Any], ArrayLike] | None = None,
    n_substeps: int = 1,
    reset: int | str | Callable[[Any, Generator], object] | None = None,
    control_range: tuple[ArrayLike, ArrayLike] | None = None,
    fields: Sequence[str] = (),
    models: Sequence[Any] | Mapping[str, ArrayLike] = (),
    **options: Any,
) -> PlanEnv:
    """Make an environment from a MuJoCo model and a reward.

    The functions are vectorised: they take a `BatchData` of N simulations, whose arrays are
    ``(N, ...)``, and return one value for each. They must not depend on anything that changes.

    Parameters
    ----------
    model : str, path, MjSpec or MjModel
        XML text, the path of an XML or MJB file, or a model. It is compiled here, with its meshes
        and textures, and sent to workers.
    reward : callable
        ``reward(data)`` returns the rewards ``(N,)`` of the step that led to these states. The
        negative of a cost is a reward.
    observation : callable, optional
        ``observation(data)`` returns the observations ``(N, ...)``; by default ``qpos``, ``qvel``
        and, if there is any, ``act``.
    terminated : callable, optional
        ``terminated(data)`` returns whether the episode has ended, ``(N,) bool``. By default, it
        never does.
    n_substeps : int
        The number of simulation steps for which an action is held.
    reset : int, str or callable, optional
        Where episodes begin: a keyframe, by its number or name; or ``reset(data, rng)``, which
        changes the ``mujoco.MjData`` of one simulation, and perhaps ``data.model``, with random
        numbers from `rng`, a ``numpy.random.Generator``. By default, the model's own initial state.
    control_range : (low, high), optional
        The bounds of actions, which are the controls ``data.ctrl``; by default the model's
        ``ctrlrange``. Planners need bounds.
    fields : sequence of str
        Arrays that the functions read in some states only. The others are found by calling the
        functions when the environment is made.
    models : sequence or dict, optional
        Other versions of `model`, which differ in numbers only, such as masses or friction: K
        models, or a dict of arrays of ``MjModel`` that differ, each ``(K, *shape)``, such as
        ``{"body_mass": masses}``. Each episode has one of them or `model`, drawn at random; states
        hold its number, ``model``, which is 0 for `model` itself, and ``make_state(state,
        model=2)`` changes it. The functions and images see `model`, and `reset` must not change it.
    options
        As in `make`: ``n_workers``, ``ray``, ``max_episode_steps``, ``render_mode``, ``wrappers``,
        and so on; for images also ``width``, ``height``, ``camera_id`` and ``camera_name``.

    Raises
    ------
    InputError
        MuJoCo cannot load the model, or an argument is invalid.
    EnvApiError
        A function returns something of another shape or type.

    Examples
    --------
    >>> import numpy as np
    >>> import plangym_like
    >>> cart = '''
    ... <mujoco>
    ...   <worldbody>
    ...     <body name="cart">
    ...       <joint name="x" type="slide" axis="1 0 0"/>
    ...       <geom size="0.1" mass="1"/>
    ...     </body>
    ...   </worldbody>
    ...   <actuator><motor joint="x" ctrlrange="-1 1" ctrllimited="true"/></actuator>
    ... </mujoco>
    ... '''
    >>> def reward(data):
    ...     return -np.abs(data.body("cart").xpos[:, 0] - 1.0)
    >>> env = plangym_like.make_mujoco(cart, reward=reward, n_substeps=10)
    >>> state, obs, info = env.reset(seed=0)
    >>> step = env.step_batch([[-1.0], [1.0]], state)
    >>> step.rewards[1] > step.rewards[0]
    np.True_
    """
    with needs_extra("make_mujoco needs MuJoCo", "mujoco"):
        from plangym_like.envs.mujoco.own_model import MujocoModel

    source = MujocoModel(
        model,
        reward=reward,
        observation=observation,
        terminated=terminated,
        n_substeps=n_substeps,
        reset=reset,
        control_range=control_range,
        fields=fields,
        models=models,
    )
    return make(source, **options)

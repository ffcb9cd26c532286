"""Functions that build, change and classify the chain of wrappers around an environment."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import ActionWrapper, ObservationWrapper, RewardWrapper, Space
from gymnasium.wrappers import AtariPreprocessing, OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.errors import EnvApiError, InputError, SnapshotError
from plangym_like.snapshots.chains import chain, innermost, links
from plangym_like.snapshots.known_wrappers import visible
from plangym_like.support.arguments import as_count, misfit, name_of, several_agents, unknown_option

# Arguments of ``gymnasium.make`` that add wrappers, and are not passed on to the environment.
GYMNASIUM_OPTIONS = ("max_episode_steps", "disable_env_checker")

# The modules of games of ale-py.
_GAMES = ("ale_py.env", "plangym_like.envs.atari.emulator")
WrapperLike = Callable[..., Any] | tuple[Any, ...]
_METHODS: dict[Any, str] = {
    RewardWrapper: "reward",
    ObservationWrapper: "observation",
    ActionWrapper: "action",
}


def as_wrappers(given: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return a user's list of wrappers as a tuple, after checking it.

    Raises
    ------
    InputError
        `given` is not a sequence, or an item is not a wrapper class, a function that wraps an
        environment, or a pair of one of these and its arguments.
    """
    if given is None:
        return ()
    wrappers = tuple(given) if isinstance(given, list | tuple) else (None,)
    for item in wrappers:
        wrapper = item[0] if isinstance(item, tuple) and len(item) == 2 else item
        if not callable(wrapper):
            hint = "; give its class, not the wrapper" * isinstance(wrapper, gymnasium.Env)
            raise InputError(
                "wrappers must be a list of wrapper classes or pairs (class, arguments), got "
                f"{given!r}{hint}"
            )
        if isinstance(wrapper, type) and not issubclass(wrapper, gymnasium.Env):
            hint = ""
            if issubclass(wrapper, gymnasium.vector.VectorWrapper):
                hint = "; it is for vector environments: apply it to the result of make_vec"
            raise InputError(
                f"{wrapper.__module__}.{wrapper.__qualname__} is not a gymnasium.Wrapper{hint}"
            )
    return wrappers


def as_env(made: Any, source: Callable[..., Any]) -> gymnasium.Env[Any, Any]:
    """Return `made`, which the callable `source` returned, if it is an environment.

    Raises
    ------
    InputError
        `made` is not a `gymnasium.Env`.
    """
    if isinstance(made, gymnasium.Env):
        return made
    raise InputError(
        f"{name_of(source)} must return a gymnasium.Env, got an object of class "
        f"{type(made).__module__}.{type(made).__qualname__}{several_agents(made)}"
    )


def call_source(source: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return what the callable `source`, which makes environments, returns for `options`.

    `GYMNASIUM_OPTIONS` add wrappers to the environment, as in ``gymnasium.make``. A callable that
    has a parameter of the same name is given the option instead.

    Raises
    ------
    InputError
        `source` has no such option, or needs an argument that is not in `options`.
    """
    left = dict(options)
    own = {
        name: left.pop(name)
        for name in GYMNASIUM_OPTIONS
        if name in left and not takes(source, name)
    }
    try:
        made = source(**left)
    except TypeError as error:
        reason, inner = misfit(source, **left), without_partials(source)
        name = getattr(inner, "__name__", type(inner).__name__)
        if reason.startswith("missing"):
            raise InputError(
                f"{name} cannot be called: {reason}; give make a callable that needs "
                "no arguments, or give the missing argument to make by name"
            ) from error
        shown = TypeError(f"{name}() {reason}") if reason else error
        unknown = unknown_option(shown, left)
        if unknown is None:
            raise
        raise unknown from error
    if not isinstance(made, gymnasium.Env):
        return made
    if own.get("disable_env_checker") is False:
        made = PassiveEnvChecker(made)
    limit = own.get("max_episode_steps")
    if limit is None:
        return made
    made = without_time_limit(made)
    return made if limit == -1 else TimeLimit(made, as_count("max_episode_steps", limit))


def check_is_new(env: gymnasium.Env[Any, Any], other: gymnasium.Env[Any, Any], name: Any) -> None:
    """Raise `InputError` if `env` and `other`, both made by the callable `name`, are the same."""
    if innermost(env) is innermost(other):
        raise InputError(
            f"{name_of(name)} returns the same environment each time, but several are needed; make "
            "a new one in each call"
        )


def without_partials(source: Any) -> Any:
    """Return the callable inside `source`, which may be a `functools.partial`."""
    while isinstance(source, functools.partial):
        source = source.func
    return source


def takes(source: Callable[..., Any], option: str) -> bool:
    """Return whether the callable `source` can be called with `option`.

    A class with ``**kwargs`` is not asked, because it may ignore options that it does not know.
    """
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return True
    kinds = {each.name: each.kind for each in parameters}
    if option in kinds:
        return kinds[option] is not inspect.Parameter.POSITIONAL_ONLY
    return inspect.Parameter.VAR_KEYWORD in kinds.values() and not isinstance(
        without_partials(source), type
    )


def spaces_of(env: gymnasium.Env[Any, Any]) -> tuple[Space[Any], Space[Any]]:
    """Return the action space and the observation space of the chain `env`.

    Raises
    ------
    EnvApiError
        One of them is missing, or is not a `gymnasium.Space`.
    """
    for name in ("action_space", "observation_space"):
        found = getattr(env, name, None)
        if not isinstance(found, Space):
            raise EnvApiError(
                f"{name} of {type(links(env)[-1]).__name__} is {found!r}, not a space: set it to "
                "an object of gymnasium.spaces, in the class or in its constructor"
            )
    return env.action_space, env.observation_space


def check_reset(env: gymnasium.Env[Any, Any]) -> None:
    """Raise EnvApiError unless ``env.reset`` takes a seed and options."""
    reason = misfit(env.reset, seed=None, options=None)
    if reason:
        raise EnvApiError(
            f"reset of {type(env).__name__} cannot be called with seed= and options=: {reason}; "
            "define it as reset(self, *, seed=None, options=None)"
        )


@dataclass
class NothingSaved:
    """Saves nothing for the wrappers around an environment; it has the members of `WrapperState`.

    Parameters
    ----------
    fields : list
        The classes and arguments of the wrappers, as JSON data (see `describe_wrappers`).
    """

    fields: list[Any]
    nbytes: ClassVar[int] = 0
    unordered: ClassVar[str] = ""
    time_limit: ClassVar[None] = None

    def fingerprint_fields(self) -> list[Any]:
        """Return the classes and arguments of the wrappers, outermost first."""
        return self.fields

    def reseed(self, seed: int) -> None:
        """Do nothing."""


def is_plain(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether no wrapper in the chain `env` changes observations, rewards or infos."""
    return set(map(type, visible(env))) <= {TimeLimit}


def method_of(wrapper: Any) -> str:
    """Return the method by which `wrapper` changes a value of a step, its only part in steps.

    Return ``""`` if its class, or the wrapper itself, has a ``step`` or ``reset`` of its own.

    >>> from gymnasium.wrappers import ClipReward, NormalizeReward
    >>> env = gymnasium.make("CartPole-v1")
    >>> method_of(ClipReward(env, 0, 1)), method_of(NormalizeReward(env))
    ('reward', '')
    """
    kind: Any = type(wrapper)
    for base, name in _METHODS.items():
        if isinstance(wrapper, base):
            inherits = kind.step is base.step and kind.reset is base.reset
            return name if inherits and not vars(wrapper).keys() & {"step", "reset"} else ""
    return ""


def transforms_of(env: gymnasium.Env[Any, Any]) -> tuple[list[Any] | None, Any]:
    """Return the wrappers of the chain `env` that change a value of a step, and its `TimeLimit`.

    The wrappers are in order, innermost first; ``None`` if another one takes part in steps, or
    more than one `TimeLimit`. Of several limits, the outermost is returned; ``None`` without any.
    """
    transforms, limits, others = [], [], 0
    for wrapper in reversed(visible(env)):
        if type(wrapper) is TimeLimit:
            limits.append(wrapper)
        elif method_of(wrapper):
            transforms.append(wrapper)
        else:
            others += 1
    limit = limits[-1] if limits else None
    return None if others or len(limits) > 1 else transforms, limit


def without_time_limit(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the chain `env` without its `TimeLimit` wrappers."""
    if isinstance(env, TimeLimit):
        return without_time_limit(env.env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = without_time_limit(env.env)
    return env


def omit_unread_screens(env: gymnasium.Env[Any, Any]) -> None:
    """Let a game in `env` return blank observations if only an `AtariPreprocessing` gets them.

    `AtariPreprocessing` ignores them, and reads the last two screens from the emulator. Drawing a
    screen for each frame takes an eighth of a step's time.
    """
    found = next((link for link in chain(env) if type(link) is AtariPreprocessing), None)
    base: Any = innermost(env)
    between = {TimeLimit, OrderEnforcing, PassiveEnvChecker}
    if found is None or not set(map(type, chain(found.env))) <= between:
        return
    if type(base).__module__ in _GAMES:
        vars(base)["_get_obs"] = functools.partial(_blank, base.observation_space.shape)


def _blank(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return a black image, in new memory of one byte."""
    return np.ndarray(shape, np.uint8, bytearray(1), 0, (0,) * len(shape))


def first_reset(env: gymnasium.Env[Any, Any]) -> Any:
    """Reset the chain `env` with seed 0, to create the attributes that exist only after a reset.

    Return what the reset returned.

    Raises
    ------
    SnapshotError
        A wrapper replaces its environment when it is reset.
    """
    before = links(env)
    found = env.reset(seed=0)
    if any(map(is_not, before, links(env))):
        raise SnapshotError(
            "a wrapper replaces its environment when it is reset, so the new environment is not "
            "the one whose state is saved; keep the old environment, and change or reset it"
        )
    return found


def drop_generators(env: gymnasium.Env[Any, Any]) -> None:
    """Remove every random generator in the chain, so that the next use makes a fresh one."""
    for link in links(env):
        if isinstance(vars(link).get("_np_random"), np.random.Generator):
            link._np_random = None
            if "_np_random_seed" in vars(link):
                link._np_random_seed = None


def wrap(env: gymnasium.Env[Any, Any], item: WrapperLike) -> gymnasium.Env[Any, Any]:
    """Return `env` wrapped in `item`, a wrapper class or a tuple of a class and its arguments.

    Raises
    ------
    InputError
        The wrapper does not accept the arguments, or does not return an environment.
    """
    wrapper, given = item if isinstance(item, tuple) else (item, {})
    options = dict(given) if isinstance(given, Mapping) else {}
    if isinstance(given, Mapping):
        given = ()
    elif not isinstance(given, (list, tuple)):
        given = (given,)
    try:
        return as_env(wrapper(env, *given, **options), wrapper)
    except TypeError as error:
        reason = misfit(wrapper, env, *given, **options)
        if not reason:
            raise
        name = getattr(wrapper, "__name__", repr(wrapper))
        raise InputError(
            f"the wrapper {name} cannot be made: {reason}; the arguments of a wrapper are given in "
            f"a pair, as in wrappers=[({name}, {{'name': value}})]"
        ) from error

"""Find the wrappers around an environment, and the attributes that are their state."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from plangym_like.snapshots.chains import CONSTANT, chain
from plangym_like.snapshots.configuration import describe, qualified_name


class Forwarding(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The base class of wrappers of this package that forward calls to a copy of the chain."""


# Wrappers that only check how an environment is called.
_CHECKING = (OrderEnforcing, PassiveEnvChecker)
_OWN = "gymnasium.wrappers."
# The attributes of Gymnasium's wrappers (versions 1.1 to 1.4): those that `step` changes and reads
# later, and all others. A wrapper that has any more is of another version, and not known.
_KNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "atari_preprocessing.AtariPreprocessing": (
        ("lives", "game_over", "obs_buffer"),
        (
            "noop_max frame_skip screen_size terminal_on_life_loss scale_obs grayscale_obs "
            "grayscale_newaxis"
        ),
    ),
    "common.Autoreset": (("autoreset",), ""),
    "common.RecordEpisodeStatistics": (
        ("episode_count", "episode_returns", "episode_lengths", "return_queue", "length_queue"),
        "episode_start_time time_queue _stats_key",
    ),
    "common.TimeLimit": (("_elapsed_steps",), "_max_episode_steps"),
    "rendering.AddWhiteNoise": ((), "probability_of_noise_per_pixel is_noise_grayscale func"),
    "rendering.ObstructView": (
        (),
        "obstruction_centers_ratio obstruction_width is_noise_grayscale func",
    ),
    "stateful_action.RepeatAction": ((), "num_repeats"),
    "stateful_action.StickyAction": (
        ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
        "repeat_action_probability repeat_action_duration_range",
    ),
    "stateful_observation.DelayObservation": (("observation_queue",), "delay"),
    "stateful_observation.FrameStackObservation": (
        ("obs_queue",),
        "padding_type padding_value stack_size stacked_obs",
    ),
    "stateful_observation.MaxAndSkipObservation": (("_obs_buffer",), "_skip"),
    "stateful_observation.NormalizeObservation": (
        ("_update_running_mean", "obs_rms.mean", "obs_rms.var", "obs_rms.count"),
        "epsilon",
    ),
    "stateful_observation.TimeAwareObservation": (
        ("timesteps",),
        (
            "flatten normalize_time max_timesteps _time_preprocess_func _append_data_func "
            "_obs_postprocess_func"
        ),
    ),
    "stateful_reward.NormalizeReward": (
        (
            *("_update_running_mean", "discounted_reward"),
            *("return_rms.mean", "return_rms.var", "return_rms.count"),
        ),
        "gamma epsilon",
    ),
}
_CLOCKS = ("episode_start_time",)
_UNCHANGING: tuple[str, ...] = ("transform_action.", "transform_observation.", "transform_reward.")
_UNCHANGING += ("jax_to_numpy.",)
_FOREIGN = (
    "it converts arrays to arrays of another library, but batches here are NumPy arrays; leave it "
    "out and convert whole batches, as plangym_like.batchers does"
)
_IMPOSSIBLE = {
    f"{_OWN}rendering.RecordVideo": "it writes files; make a video of get_image() instead",
    f"{_OWN}rendering.HumanRendering": "it owns a window; show get_image() instead",
    f"{_OWN}rendering.RenderCollection": "its list of images has no limit; use get_image() instead",
    f"{_OWN}array_conversion.ArrayConversion": _FOREIGN,
    f"{_OWN}jax_to_torch.JaxToTorch": _FOREIGN,
    f"{_OWN}numpy_to_torch.NumpyToTorch": _FOREIGN,
}


def visible(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the wrappers around `env`, outermost first; leave out those without any effect."""
    return [wrapper for wrapper in chain(env) if not is_transparent(wrapper)]


def is_transparent(link: Any) -> bool:
    """Return whether `link` is a wrapper that changes nothing."""
    return type(link) in _CHECKING or isinstance(link, Forwarding)


def describe_wrappers(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the classes and arguments of the `visible` wrappers, outermost first."""
    return [[qualified_name(type(wrapper)), _arguments(wrapper)] for wrapper in visible(env)]


def state_names(wrapper: Any, *, within_others: bool = False) -> tuple[str, ...] | None:
    """Return the names of the attributes that are the state of `wrapper`; ``None`` if unknown.

    The class of a wrapper or an environment may list them: ``state_attributes = ("name", ...)``. A
    wrapper from outside Gymnasium may change the settings of the wrappers inside it, such as the
    length of a time limit. With ``within_others=True``, all settings that are numbers are therefore
    state, too.
    """
    declared = getattr(type(wrapper), "state_attributes", None)
    if declared is not None:
        # The class of an environment may list tuples of a name, a dtype and a shape; its generator
        # is state anyway.
        listed = [item if isinstance(item, str) else item[0] for item in declared]
        is_listed = isinstance(wrapper, gymnasium.Wrapper) or "_np_random" in listed
        return (*listed,) if is_listed else (*listed, "_np_random")
    names = _known_names(wrapper)
    if names:
        try:
            attrgetter(*names)(wrapper)
        except AttributeError:
            # Another version of Gymnasium: every attribute may change.
            return None
    if names is not None and within_others:
        names += tuple(
            name
            for name, value in vars(wrapper).items()
            if type(value) in (bool, int, float) and name not in (*names, *CONSTANT, *_CLOCKS)
        )
    return names


def is_known(wrapper: Any) -> bool:
    """Return whether `wrapper` is one of Gymnasium's own wrappers whose state is known."""
    return is_transparent(wrapper) or _known_names(wrapper) is not None


def _known_names(wrapper: Any) -> tuple[str, ...] | None:
    """Return the attributes that a wrapper of Gymnasium changes; ``None`` for other wrappers."""
    name = qualified_name(type(wrapper))
    if not name.startswith(_OWN):
        return None
    name = name.removeprefix(_OWN)
    if name.startswith(_UNCHANGING):
        return ()
    names, others = _KNOWN.get(name, (None, ""))
    if names is None:
        return None
    known = {each.partition(".")[0] for each in names}.union(CONSTANT, ["step"], others.split())
    return names if vars(wrapper).keys() <= known else None


def is_foreign_env(base: gymnasium.Env[Any, Any]) -> bool:
    """Return whether `base`, without wrappers, is from outside Gymnasium and this package."""
    return _package_of(type(base)) not in ("gymnasium", _package_of(chain))


def foreign_wrappers(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Return the names of wrappers with code from outside Gymnasium and NumPy, outermost first."""
    return [type(wrapper).__name__ for wrapper in visible(env) if _is_foreign(wrapper)]


def _is_foreign(wrapper: Any) -> bool:
    functions = (value for name, value in vars(wrapper).items() if name not in CONSTANT)
    return not is_known(wrapper) or any(
        callable(value) and not _is_trusted(value) for value in functions
    )


def _is_trusted(value: Any) -> bool:
    return isinstance(value, type) or _package_of(value) in ("gymnasium", "numpy")


def _package_of(thing: Any) -> str:
    """Return the name of the package in which `thing`, or else its class, is defined."""
    return str(getattr(thing, "__module__", None) or type(thing).__module__).partition(".")[0]


def impossible(wrapper: Any) -> str | None:
    """Return why wrappers of the same class as `wrapper` cannot be saved; ``None`` if they can."""
    kinds = (qualified_name(kind) for kind in type(wrapper).__mro__)
    return next((_IMPOSSIBLE[kind] for kind in kinds if kind in _IMPOSSIBLE), None)


def _arguments(wrapper: Any) -> Any:
    """Return a wrapper's constructor arguments, from Gymnasium's record or from its attributes."""
    recorded = getattr(wrapper, "_saved_kwargs", None)
    if recorded is not None:
        return describe(recorded)
    attributes = vars(wrapper)
    found = {}
    for name in inspect.signature(type(wrapper).__init__).parameters:
        for key in (name, f"_{name}"):
            if key in attributes and key not in CONSTANT:
                found[name] = describe(attributes[key])
    return found

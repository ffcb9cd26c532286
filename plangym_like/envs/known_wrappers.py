"""What Gymnasium's own wrappers remember, and which of them cannot be saved."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from plangym_like.envs.configuration import qualified_name

# They only check how an environment is called.
TRANSPARENT = (OrderEnforcing, PassiveEnvChecker)
_OWN = "gymnasium.wrappers."
# What Gymnasium's wrappers change in `step` and read again later, after their source (1.4).
_CHANGING: dict[str, tuple[str, ...]] = {
    "atari_preprocessing.AtariPreprocessing": ("lives", "game_over", "obs_buffer"),
    "common.Autoreset": ("autoreset",),
    "common.OrderEnforcing": (),
    "common.PassiveEnvChecker": (),
    "common.RecordEpisodeStatistics": (
        *("episode_count", "episode_returns", "episode_lengths"),
        *("return_queue", "length_queue"),
    ),
    "common.TimeLimit": ("_elapsed_steps",),
    "rendering.AddWhiteNoise": (),
    "rendering.ObstructView": (),
    "stateful_action.RepeatAction": (),
    "stateful_action.StickyAction": (
        *("last_action", "is_sticky_actions"),
        *("num_repeats", "repeats_taken"),
    ),
    "stateful_observation.DelayObservation": ("observation_queue",),
    "stateful_observation.FrameStackObservation": ("obs_queue",),
    "stateful_observation.MaxAndSkipObservation": ("_obs_buffer",),
    "stateful_observation.NormalizeObservation": (
        "_update_running_mean",
        *("obs_rms.mean", "obs_rms.var", "obs_rms.count"),
    ),
    "stateful_observation.TimeAwareObservation": ("timesteps",),
    "stateful_reward.NormalizeReward": (
        *("_update_running_mean", "discounted_reward"),
        *("return_rms.mean", "return_rms.var", "return_rms.count"),
    ),
}
_UNCHANGING: tuple[str, ...] = ("transform_action.", "transform_observation.", "transform_reward.")
_UNCHANGING += ("array_conversion.", "jax_to_numpy.", "jax_to_torch.", "numpy_to_torch.")
_IMPOSSIBLE = {
    f"{_OWN}rendering.RecordVideo": "it writes files; make a video of get_image() instead",
    f"{_OWN}rendering.HumanRendering": "it owns a window; show get_image() instead",
    f"{_OWN}rendering.RenderCollection": "its list of pictures has no end; use get_image() instead",
}


def memory_of(wrapper: Any) -> tuple[str, ...] | None:
    """Return which attributes `wrapper` remembers with, or ``None`` where that is not known.

    A wrapper's own class may say so: ``state_attributes = ("name", ...)``.
    """
    declared = getattr(type(wrapper), "state_attributes", None)
    if declared is not None:
        return tuple(declared)
    name = qualified_name(type(wrapper))
    own = name.removeprefix(_OWN)
    if own == name:
        return None
    if own.startswith(_UNCHANGING):
        return ()
    names = _CHANGING.get(own)
    if names:
        try:
            attrgetter(*names)(wrapper)
        except AttributeError:
            # Another version of Gymnasium: count all that may change.
            return None
    return names


def impossible(wrapper: Any) -> str | None:
    """Return why a wrapper of this class cannot be saved, or ``None``."""
    kinds = (qualified_name(kind) for kind in type(wrapper).__mro__)
    return next((_IMPOSSIBLE[kind] for kind in kinds if kind in _IMPOSSIBLE), None)

"""`GymnasiumSimulator`: a Gymnasium environment and its wrappers as a `Simulator`.

A family adds a `Codec` for the base of the wrapper chain, and a `FastForm` if it has one. A row
holds the state of the base, its random generator, and the wrappers' state, in this order.
"""

from __future__ import annotations

import abc
import importlib.metadata
import logging
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like import random_state
from plangym_like.batches import Rows
from plangym_like.counts import as_count
from plangym_like.envs import painting
from plangym_like.envs.codec import Codec
from plangym_like.envs.fast_form import FastForm, NotVectorisableError
from plangym_like.envs.tried_simulator import TriedSimulator
from plangym_like.envs.wrapping import (
    WrapperLike,
    as_env,
    call_source,
    check_reset,
    first_reset,
    forget_seed,
    is_plain,
    spaces_of,
    takes,
    without_time_limit,
    wrap,
)
from plangym_like.errors import InputError
from plangym_like.family_env import as_wrappers
from plangym_like.ownership import owned
from plangym_like.row_errors import not_exiting
from plangym_like.simulator import (
    EnvStep,
    Outcome,
    as_flag,
    as_reset,
    as_reward,
    as_step,
    name_of,
)
from plangym_like.snapshots.chains import innermost
from plangym_like.snapshots.configuration import describe
from plangym_like.snapshots.generators import watched_generators
from plangym_like.snapshots.open_libraries import close_copy
from plangym_like.snapshots.restore_after_trial import restorer
from plangym_like.snapshots.wrapper_state import WrapperState
from plangym_like.states import Row, padded
from plangym_like.step_limit import CONSTRUCTOR_SECONDS, time_limit

logger = logging.getLogger("plangym_like")
# How many steps a codec takes at most when it is made, about.
_CODEC_STEPS = 32
_GREY = np.array([0.299, 0.587, 0.114])


class GymnasiumSimulator(TriedSimulator):
    """A simulator of a Gymnasium environment with the user's wrappers around it.

    Parameters
    ----------
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    frameskip : int, optional
        The number of ``env.step`` calls per action; 1 by default.
    render_mode : str, optional
        As in Gymnasium. Unless it is ``"rgb_array"``, a second environment renders images.
    obs_type : {"coords", "rgb", "grayscale"}, optional
        The kind of observation: ``"coords"`` (the default) is the environment's own, ``"rgb"`` is
        its image ``(H, W, 3)``, and ``"grayscale"`` is the image's luminance ``(H, W)`` according
        to ITU-R BT.601.
    wrappers : iterable
        Wrapper classes or ``(class, kwargs)`` pairs, applied in order.
    remove_time_limit : bool, optional
        Whether to remove every `TimeLimit` before applying `wrappers`. By default, the limit of a
        registered id is removed unless ``max_episode_steps`` is given; a callable's limit is kept.
    state_capacity : int, optional
        Bytes reserved in each row for the wrappers' state, if it has no fixed size.
    env_kwargs
        Passed to ``gymnasium.make``, or to the callable.
    """

    obs_types: tuple[str, ...] = ("coords", "rgb", "grayscale")
    codec: Codec
    _painter: Self | None = None

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        *,
        frameskip: int | tuple[int, int] | None = None,
        render_mode: str | None = None,
        obs_type: str | None = None,
        wrappers: Iterable[WrapperLike] | None = None,
        remove_time_limit: bool | None = None,
        state_capacity: int | None = None,
        **env_kwargs: Any,
    ) -> None:
        if obs_type is not None and obs_type not in self.obs_types:
            raise InputError(f"obs_type must be one of {self.obs_types}, got {obs_type!r}")
        limit = env_kwargs.get("max_episode_steps")
        if remove_time_limit and limit not in (None, -1):
            raise InputError(
                f"max_episode_steps={limit} and remove_time_limit=True contradict each other; "
                "leave one of them out"
            )
        if remove_time_limit is None:
            remove_time_limit = isinstance(name, str) and limit is None
        self.name = name
        self.render_mode = render_mode
        self.obs_type = obs_type
        self.env_kwargs = env_kwargs
        self.state_capacity = state_capacity and as_count("state_capacity", state_capacity)
        self._images = obs_type in ("rgb", "grayscale") and "ram" not in self.obs_types
        if self._images and render_mode is None:
            self.render_mode = "rgb_array"
        self._set_frameskip(frameskip)
        self._wrappers = as_wrappers(wrappers)
        self._remove_time_limit = remove_time_limit
        with time_limit(least=CONSTRUCTOR_SECONDS):
            env = self.make_env()

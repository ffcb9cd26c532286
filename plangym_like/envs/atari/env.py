"""Atari 2600 games on the Arcade Learning Environment (ALE).

The emulator's own sticky actions are off. Instead, a layer around the emulator repeats actions, so
that the previous action and the random generator can be part of the state. A state row holds the
emulator's serialised state, the previous action and, if one is used, the random generator. With
``render_mode="rgb_array"`` it also holds the screen, because the screen cannot be computed from the
emulator's state. In Montezuma's Revenge, infos contain the player's position: ``info["room"]``,
``info["x"]`` and ``info["y"]``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome
from plangym_like.envs.atari.emulator import PlannableAle
from plangym_like.envs.atari.rows import AtariCodec, AtariKernel
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.kernel import Kernel
from plangym_like.envs.wrapping import omit_unread_screens
from plangym_like.errors import InputError, SnapshotError
from plangym_like.states.rows import Row


class AtariSimulator(GymnasiumSimulator):
    """A simulator of one Atari game.

    `make_state` takes ``ram`` ``(128,)``, the console's memory.

    Parameters
    ----------
    name : str
        ``ALE/<Game>-v5``, or a v0 or v4 id.
    frameskip : int or (int, int), optional
        Emulator frames per action; for a pair ``(low, high)``, a number in ``range(low, high)`` is
        drawn for each action. ``None`` means the value registered for the id (4 in v5).
    repeat_action_probability : float
        The probability that a frame repeats the previous action. The default is 0, as is usual in
        planning, even if another value is registered for the id.
    episodic_life : bool
        Whether losing a life ends the episode.
    obs_type : {"rgb", "grayscale", "ram", "coords"}, optional
        ``"coords"`` means the observation registered for the id.
    env_kwargs
        Arguments of ale-py: ``mode``, ``difficulty``, ``full_action_space``, ``continuous``, ...
    """

    family = "ATAR"
    checksum = True
    step_row_moves = True
    obs_types = ("rgb", "grayscale", "ram", "coords")
    rendered_obs_types = ()
    codec: AtariCodec

    def __init__(
        self,
        name: str,
        *,
        repeat_action_probability: float = 0.0,
        episodic_life: bool = False,
        obs_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not 0.0 <= repeat_action_probability <= 1.0:
            raise InputError(
                f"repeat_action_probability must be in [0, 1], got {repeat_action_probability}"
            )
        self._layer = {
            "repeat_action_probability": float(repeat_action_probability),
            "episodic_life": bool(episodic_life),
        }
        self.base: PlannableAle
        # In "ale_py:ALE/Pong-v5", ale_py is the module that registers the id; it has been imported.
        name = name.rpartition(":")[2]
        super().__init__(name, obs_type=None if obs_type == "coords" else obs_type, **kwargs)

    def _set_frameskip(self, frameskip: int | tuple[int, int] | None) -> None:
        assert isinstance(self.name, str)
        registered = gymnasium.spec(self.name).kwargs.get("frameskip", 4)
        chosen: Any = registered if frameskip is None else frameskip
        bounds = np.asarray(chosen)
        whole = bounds.dtype.kind in "iu"
        if whole and bounds.shape == () and bounds >= 1:
            self.frameskip = int(chosen)
        elif whole and bounds.shape == (2,) and 0 < bounds[0] < bounds[1]:
            self.frameskip = (int(bounds[0]), int(bounds[1]))
        else:
            raise InputError(
                "frameskip must be a whole number of at least 1, or a pair (low, high) with "
                f"low < high, got {frameskip!r}"
            )

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game, wrapped in its time limit if it has one."""
        assert isinstance(self.name, str)
        spec = gymnasium.spec(self.name)
        given = dict(self.env_kwargs)
        limit = given.pop("max_episode_steps", None)
        unchecked = given.pop("disable_env_checker", True)
        if unchecked is None:
            unchecked = spec.disable_env_checker
        kwargs = {
            **spec.kwargs,
            **({} if self.obs_type is None else {"obs_type": self.obs_type}),
            **given,
            "frameskip": self.frameskip,
            "render_mode": self.render_mode,
            **self._layer,
        }
        if "game" not in kwargs:
            raise SnapshotError(
                f"{self.name} is not a game of ale-py: use plangym_like.make for other environments"
            )
        env: gymnasium.Env[Any, Any] = PlannableAle(**kwargs)
        env.unwrapped.spec = copy.copy(spec)
        env.unwrapped.spec.kwargs = {key: kwargs[key] for key in kwargs if key != "episodic_life"}
        if not unchecked:
            env = PassiveEnvChecker(env)
        limit = spec.max_episode_steps if limit is None else limit
        return env if limit in (None, -1) else TimeLimit(env, limit)

    def make_codec(self) -> AtariCodec:
        """Return the codec, after measuring the size of the emulator's states."""
        wrapped = self.env is not self.base
        self.base.is_bare = not wrapped
        if wrapped:
            omit_unread_screens(self.env)
        images = self.render_mode == "rgb_array"
        codec = AtariCodec(self.base, self.frameskip, images=images, wrapped=wrapped)
        # `None` if wrappers or options, such as sticky actions, rule it out.
        self._kernel = AtariKernel(self.base, codec) if codec.plain and not wrapped else None
        if wrapped:
            self.reset_once()
        return codec

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel, or ``None`` if the game or its options do not allow it."""
        return self._kernel

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the fields of the codec and of the wrappers."""
        return {**self.codec.fingerprint_fields(), "wrappers": self.memory.fingerprint_fields()}

    # Stepping

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one row; return the next row and the outcome.

        Return ``None`` if the game or its options do not allow the kernel.
        """
        kernel = self._kernel
        return None if kernel is None else kernel.step_one(row, action, dt)

    def step(self, action: Any, dt: int) -> Outcome:
        """Hold `action` for `dt` times the frameskip, or until the episode ends.

        If the game has wrappers, ``env.step`` is called up to `dt` times.
        """
        if self.env is self.base:
            return self.base.outcome(action, dt)
        self.base.frames = 0
        outcome = self.hold(action, dt)
        return *outcome[:5], self.base.frames

    @property
    def steps_env_alone(self) -> bool:
        """True, because the game itself skips frames."""
        return True

    # Images

    def image(self) -> NDArray[np.uint8]:
        """Return the screen ``(210, 160, 3)``.

        Without ``render_mode="rgb_array"``, states do not include the screen. After such a state is
        restored, the screen of the next frame is returned: one frame is run with the no-op action,
        and then undone.
        """
        base = self.base
        if base.image is None and base.settled:
            saved = base.clone()
            try:
                base.ale.act(0)
                image = base.ale.getScreenRGB()
            finally:
                base.restore(saved)
            base.image = image
        if base.image is not None:
            return base.image.copy()
        return base.ale.getScreenRGB()


class AtariEnv(FamilyEnv):
    """A game of the Arcade Learning Environment; see `AtariSimulator` for its options.

    plangym's options ``clone_seeds``, ``array_state`` and ``possible_to_win`` are accepted without
    effect: states are always complete, and always arrays.

    Examples
    --------
    >>> with AtariEnv("ALE/Pong-v5", obs_type="ram", frameskip=4) as env:
    ...     state, obs, info = env.reset(seed=0)
    ...     step = env.step_batch([0, 2, 3], state)
    >>> step.obs.shape, step.infos["n_step"]
    ((3, 128), array([4, 4, 4]))
    """

    simulator_class = AtariSimulator

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        for unused in ("clone_seeds", "array_state", "possible_to_win"):
            kwargs.pop(unused, None)
        super().__init__(name, *args, **kwargs)

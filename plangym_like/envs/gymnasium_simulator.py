"""A Gymnasium environment and its wrappers as a `Simulator`: what all such families share.

A subclass says how the base of the wrapper chain is saved (`read_base`, `write_base`); the
wrappers' own memory is saved behind it, so that a row holds the whole chain.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like import random_state
from plangym_like.batches import Leaf
from plangym_like.errors import InputError, SnapshotError
from plangym_like.ownership import owned
from plangym_like.simulator import Outcome, Simulator, as_reward
from plangym_like.snapshots.configuration import describe
from plangym_like.snapshots.fresh_memory import fresh_memory
from plangym_like.snapshots.generators import watched_generators
from plangym_like.snapshots.known_wrappers import has_foreign_code
from plangym_like.snapshots.trial import REMEDY, Trial
from plangym_like.snapshots.wrapper_memory import WrapperMemory
from plangym_like.states import Row, padded

WrapperLike = Callable[..., Any] | tuple[Any, ...]
_GREY = np.array([0.299, 0.587, 0.114])


class GymnasiumSimulator(Simulator):
    """A registered id, or a callable that makes an environment, with the user's wrappers around it.

    Parameters
    ----------
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    frameskip : int, optional
        How many ``env.step`` calls one action lasts; 1 unless given.
    render_mode : str, optional
        As in Gymnasium; pictures need ``"rgb_array"``.
    obs_type : {"coords", "rgb", "grayscale"}, optional
        What is observed: ``"coords"`` (the default) is the environment's own observation,
        ``"rgb"`` its picture ``(H, W, 3)``, ``"grayscale"`` the picture's luminance ``(H, W)``
        after ITU-R BT.601.
    wrappers : iterable
        Wrapper classes or ``(class, kwargs)`` pairs, applied in order.
    remove_time_limit : bool, optional
        Whether every `TimeLimit` below `wrappers` is left out. By default that of a registered id
        is, unless you give ``max_episode_steps``; what a callable returns is not changed.
    state_capacity : int, optional
        Bytes reserved in each row for what the wrappers remember, where that has no fixed size.
    env_kwargs
        Passed to ``gymnasium.make``.
    """

    obs_types: tuple[str, ...] = ("coords", "rgb", "grayscale")
    # Whether the environment itself is tried when it is made; foreign wrappers always are.
    tried: ClassVar[bool] = False
    # Whether the trial compares two copies, and how many steps it takes.
    copied_in_trial: ClassVar[bool] = True
    trial_steps: ClassVar[int] = 12
    seeds_matter: ClassVar[bool] = False
    remedy: ClassVar[str] = REMEDY
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _is_copy: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments, so that the trial can make a second copy."""
        simulator = super().__new__(cls)
        simulator._arguments = args, kwargs
        return simulator

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
            raise InputError(f"obs_type is one of {self.obs_types} here, got {obs_type!r}")
        limit = env_kwargs.get("max_episode_steps")
        if remove_time_limit and limit not in (None, -1) and isinstance(name, str):
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
        self.state_capacity = state_capacity
        self._pictures = obs_type in ("rgb", "grayscale") and "ram" not in self.obs_types
        if self._pictures and render_mode is None:
            self.render_mode = "rgb_array"
        self._set_frameskip(frameskip)
        wrappers = self._wrappers = tuple(wrappers or ())
        env = self.make_env()
        self.render_mode = self.render_mode or getattr(env, "render_mode", None)
        try:
            with watched_generators():
                self._set_up(env, wrappers, remove_time_limit)
                self._try_out()
        except BaseException:
            # Some simulators allow one of their kind at a time: another way may yet save it.
            with contextlib.suppress(Exception):
                env.close()
            raise

    def _set_up(
        self,
        env: gymnasium.Env[Any, Any],
        wrappers: Iterable[WrapperLike],
        remove_time_limit: bool,
    ) -> None:
        if remove_time_limit:
            env = without_time_limit(env)
        for item in wrappers:
            env = _wrap(env, item)
        self.env: gymnasium.Env[Any, Any] = env
        self.base: Any = env.unwrapped
        self.action_space = env.action_space
        self.observation_space = env.observation_space
        self.columns: dict[str, Leaf] = {}
        self._fresh: Callable[[], None] | None = fresh_memory(env)
        self.prepare()
        self.memory = self.remember(env)
        self._base_nbytes = padded(self.base_nbytes())
        self.payload_nbytes = self._base_nbytes + padded(self.memory.nbytes)
        if self._pictures:
            shape = self.image().shape
            self.observation_space = gymnasium.spaces.Box(
                0, 255, shape if self.obs_type == "rgb" else shape[:2], np.uint8
            )

    def _try_out(self) -> None:
        """Try whether the environment does the same again; see `plangym_like.snapshots.trial`."""
        if self._is_copy or not (self.tried or has_foreign_code(self.env)):
            return
        fresh, self._fresh = self._fresh, None
        original = np.zeros(self.payload_nbytes, np.uint8)
        self.read(original)
        trial = Trial(
            self,
            self._second_copy,
            steps=self.trial_steps,
            seeds_matter=self.seeds_matter,
            remedy=self.remedy,
        )
        try:
            note = trial.run()
        except SnapshotError as error:
            if self.exactness == "exact":
                with contextlib.suppress(Exception):
                    self._end_trial(original, fresh)
                raise
            note = str(error)
        self._end_trial(original, fresh)
        if note:
            self.exactness = "approximate"
            self.exactness_note = "; ".join(filter(None, [self.exactness_note, note]))

    def _end_trial(self, original: Row, fresh: Callable[[], None] | None) -> None:
        # Attributes that the first reset makes stay, since `write` is valid before a reset too.
        self.write(original)
        self._fresh = fresh
        forget_seed(self.env)

    def _second_copy(self) -> Self | None:
        """Return a simulator made with the same arguments, or ``None`` if there can be only one."""
        if not self.copied_in_trial:
            return None
        args, kwargs = self._arguments
        if "wrappers" in kwargs:
            # What was given may be an iterator that is used up.
            kwargs = {**kwargs, "wrappers": self._wrappers}
        other = type(self).__new__(type(self), *args, **kwargs)
        other._is_copy = True
        try:
            other.__init__(*args, **kwargs)  # type: ignore[misc]
        except Exception:
            return None
        if other.env.unwrapped is self.env.unwrapped:
            # A callable that returns one and the same object each time.
            return None
        other._fresh = None
        return other

    def _set_frameskip(self, frameskip: int | tuple[int, int] | None) -> None:
        if frameskip is None:
            return
        whole = isinstance(frameskip, (int, np.integer)) and not isinstance(frameskip, bool)
        if isinstance(frameskip, tuple) or not whole or frameskip < 1:
            raise InputError(f"frameskip is a whole number of at least 1, got {frameskip!r}")
        self.frameskip = int(frameskip)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment without the user's wrappers."""
        if callable(self.name):
            return self.name(**self.env_kwargs)
        # Left to itself, an environment may well have another mode than none.
        mode: dict[str, Any] = {} if self.render_mode is None else {"render_mode": self.render_mode}
        return gymnasium.make(self.name, **{"disable_env_checker": True, **mode, **self.env_kwargs})

    def prepare(self) -> None:
        """Bring a new environment into a condition in which `write` works; default: one reset."""
        self.env.reset(seed=0)
        forget_seed(self.env)

    def remember(self, env: gymnasium.Env[Any, Any]) -> Any:
        """Return what saves the memory of the wrappers around the base of `env`."""
        return WrapperMemory(env, self.state_capacity)

    # What is the state

    @abc.abstractmethod
    def base_nbytes(self) -> int:
        """Return how many bytes the base of the chain needs."""

    def meaning(self) -> Mapping[str, Any]:
        """Return id, arguments, wrappers and library version."""
        name = self.name if isinstance(self.name, str) else getattr(self.name, "__name__", "?")
        return {
            "id": name,
            "kwargs": {key: describe(value) for key, value in sorted(self.env_kwargs.items())},
            "wrappers": self.memory.meaning(),
            "gymnasium": importlib.metadata.version("gymnasium"),
        }

    # How is it read

    @abc.abstractmethod
    def read_base(self, payload: Row) -> None:
        """Write the base's state into `payload` ``(base_nbytes,)``."""

    def read(self, payload: Row) -> int | None:
        """Read the base, then the wrappers."""
        self.read_base(payload[: self._base_nbytes])
        if self.memory.nbytes:
            self.memory.read(payload[self._base_nbytes :])
        return None

    # How is it written

    @abc.abstractmethod
    def write_base(self, payload: Row) -> None:
        """Make the state in `payload` ``(base_nbytes,)`` the base's current one."""

    def write(self, payload: Row) -> None:
        """Write the base, then the wrappers."""
        self.write_base(payload[: self._base_nbytes])
        if self.memory.nbytes:
            self.memory.write(payload[self._base_nbytes :])

    def reseed(self, seed: int) -> None:
        """Give the base and every wrapper that draws numbers of its own a new generator."""
        self.base._np_random = random_state.seeded_generator(seed)
        self.memory.reseed(seed)

    def renew(self) -> None:
        """Take generators away, and give wrappers back what they remembered when they were made."""
        forget_seed(self.env)
        if self._fresh is not None:
            self._fresh()

    # How is it stepped

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the whole chain; without a seed, its generator goes on.

        A new generator is made where there is none yet: Gymnasium makes it at its first use, which
        may be in a step, and then every row would have another one.
        """
        if seed is None:
            random_state.make_generator(self.env.unwrapped)
        obs, info = self.env.reset(seed=seed, options=options)
        self._fresh = None
        return self.observe(obs), info

    def step(self, action: Any, dt: int) -> Outcome:
        """Call ``env.step`` until ``dt * frameskip`` frames ran or the episode ended."""
        total, frames = 0.0, 0
        assert isinstance(self.frameskip, int)
        for left in range(dt * self.frameskip, 0, -1):
            obs, reward, terminated, truncated, info = self.env.step(
                action if left == 1 else owned(action)
            )
            total += reward if type(reward) is float else as_reward(reward)
            frames += 1
            if terminated or truncated:
                break
        return self.observe(obs), total, bool(terminated), bool(truncated), info, frames

    def observe(self, obs: Any) -> Any:
        """Return what the user asked to observe: `obs` itself, or a picture."""
        if not self._pictures:
            return obs
        picture = self.image()
        return picture if self.obs_type == "rgb" else (picture @ _GREY).round().astype(np.uint8)

    def image(self) -> NDArray[np.uint8]:
        """Render the current state."""
        if self.render_mode != "rgb_array":
            raise InputError(
                f"pictures need render_mode='rgb_array', but it is {self.render_mode!r}"
            )
        return np.asarray(self.env.render())


def without_time_limit(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the chain `env` without its `TimeLimit` wrappers."""
    if isinstance(env, TimeLimit):
        return without_time_limit(env.env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = without_time_limit(env.env)
    return env


def forget_seed(env: gymnasium.Env[Any, Any]) -> None:
    """Take every generator in the chain away, so that the next use draws a fresh one."""
    link: Any = env
    while True:
        if isinstance(vars(link).get("_np_random"), np.random.Generator):
            link._np_random = None
            if "_np_random_seed" in vars(link):
                link._np_random_seed = None
        if not isinstance(link, gymnasium.Wrapper):
            return
        link = link.env


def _wrap(env: gymnasium.Env[Any, Any], item: WrapperLike) -> gymnasium.Env[Any, Any]:
    if not isinstance(item, tuple):
        wrapped: gymnasium.Env[Any, Any] = item(env)
        return wrapped
    wrapper, arguments = item
    if isinstance(arguments, Mapping):
        wrapped = wrapper(env, **arguments)
    elif isinstance(arguments, (list, tuple)):
        wrapped = wrapper(env, *arguments)
    else:
        wrapped = wrapper(env, arguments)
    return wrapped

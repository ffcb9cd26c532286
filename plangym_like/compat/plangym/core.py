"""`PlangymEnv`: plangym's base class for Gymnasium environments, on top of `plangym_like`."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like import constructors
from plangym_like import env as exact_env
from plangym_like.batch.spaces import take
from plangym_like.compat.plangym.plan_env import PlanEnv, as_steps, columns_of, without_states
from plangym_like.envs.wrapping import WrapperLike
from plangym_like.envs.wrapping import WrapperLike as wrap_callable
from plangym_like.registry import make
from plangym_like.snapshots.chains import links

__all__ = ["PlanEnv", "PlangymEnv", "wrap_callable"]

# Methods that take part in a step
_HOOKS = (
    *("step", "begin_step", "step_with_dt", "apply_action", "process_apply_action"),
    *("process_step", "get_step_tuple", "process_obs", "process_reward", "process_terminal"),
    *("process_info", "get_coords_obs", "get_rgb_obs", "get_grayscale_obs"),
    *("get_state", "set_state", "get_image"),
)
_PACKAGE = __name__.rpartition(".")[0]


def is_ours(env_class: type, name: str) -> bool:
    """Return whether the method `name` of `env_class` is defined here, not in a user's subclass."""
    return str(getattr(env_class, name).__module__).startswith(_PACKAGE)


@cache
def writes_hooks(env_class: type) -> bool:
    """Return whether a user's subclass defines methods that take part in steps.

    Batches of such a subclass are stepped row by row, because its methods determine what a step
    returns.
    """
    return not all(is_ours(env_class, name) for name in _HOOKS)


def import_also_as(module: str, *names: str) -> None:
    """Let ``import module.name`` import `module` for each of `names`, plangym's modules."""
    found = sys.modules[module]
    for name in names:
        sys.modules[f"{module}.{name}"] = found
        setattr(found, name, found)


def show_image(image: NDArray[np.uint8], title: str) -> None:
    """Show an image, ``(height, width, 3)`` or ``(height, width)``, in the window of this process.

    Raises
    ------
    pygame.error
        No display is available. With ``SDL_VIDEODRIVER=dummy`` in the process's environment,
        nothing is shown, and no error is raised.
    """
    import pygame

    pygame.display.init()
    if image.ndim == 2:
        image = np.repeat(image[:, :, None], 3, axis=2)
    size = image.shape[1], image.shape[0]
    window: Any = pygame.display.get_surface()
    if window is None or window.get_size() != size:
        window = pygame.display.set_mode(size)
    pygame.display.set_caption(title)
    window.blit(pygame.surfarray.make_surface(image.swapaxes(0, 1)), (0, 0))
    pygame.event.pump()
    pygame.display.flip()


class PlangymEnv(PlanEnv):
    """A Gymnasium environment with plangym's interface.

    Parameters
    ----------
    name : str
        A Gymnasium id.
    frameskip, autoreset, delay_setup, return_image
        As in `PlanEnv`.
    wrappers : iterable
        Wrapper classes, or pairs of a class and its arguments.
    remove_time_limit : bool
        Whether to remove the time limit that the id registers.
    render_mode : {"rgb_array", "human", None}
        ``"human"`` shows each state in a window; ``None`` allows no images.
    episodic_life : bool
        In games, whether losing a life ends an episode.
    obs_type : {"coords", "rgb", "grayscale"}, optional
        The kind of observations: the environment's own, or images.
    kwargs
        Arguments of the environment, and of `plangym_like.make`.

    Attributes
    ----------
    frameskip, autoreset, delay_setup
        May be changed.
    """

    AVAILABLE_RENDER_MODES: set[str | None] = {"human", "rgb_array", None}  # noqa: RUF012
    AVAILABLE_OBS_TYPES: set[str | None] = {"coords", "rgb", "grayscale"}  # noqa: RUF012
    DEFAULT_OBS_TYPE: str = "coords"
    # The class of `plangym_like.envs` that wraps an environment made by a callable.
    core_class = "family_env:AnyEnv"

    def __init__(
        self,
        name: str,
        frameskip: int = 1,
        autoreset: bool = True,
        wrappers: Iterable[WrapperLike] | None = None,
        delay_setup: bool = False,
        remove_time_limit: bool = True,
        render_mode: str | None = "rgb_array",
        episodic_life: bool = False,
        obs_type: str | None = None,
        return_image: bool = False,
        **kwargs: Any,
    ) -> None:
        if render_mode is not None and render_mode not in self.AVAILABLE_RENDER_MODES:
            raise ValueError(
                f"Invalid render_mode: {render_mode}. Must be one of {self.AVAILABLE_RENDER_MODES}"
            )
        if return_image and render_mode is None:
            raise ValueError("return_image=True requires a render_mode, such as 'rgb_array'")
        if obs_type is not None and obs_type not in self.AVAILABLE_OBS_TYPES:
            raise ValueError(f"obs_type {obs_type!r} is not one of {self.AVAILABLE_OBS_TYPES}")
        self.episodic_life = episodic_life
        self._render_mode = render_mode
        self._remove_time_limit = remove_time_limit
        self._wrappers = tuple(wrappers or ())
        self._obs_type = obs_type or self.DEFAULT_OBS_TYPE
        self._gym_env_kwargs = kwargs
        self._obs_space: Space[Any] | None = None
        self._action_space: Space[Any] | None = None
        self._core: exact_env.PlanEnv | None = None
        # Where batches are stepped: arguments of `plangym_like.make`.
        self._execution: dict[str, Any] = {}
        self._images_in_batches = False
        self._seed: int | None = None
        super().__init__(
            name=name,
            frameskip=frameskip,
            autoreset=autoreset,
            delay_setup=delay_setup,
            return_image=return_image,
        )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name}: obs_type={self.obs_type}, "
            f"render_mode={self.render_mode}, frameskip={self.frameskip}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the current state, and the arguments to make the environment again."""
        mine = {key: value for key, value in vars(self).items() if key != "img_shape"}
        row = self.get_state() if self._core is not None else None
        return {**mine, "_core": None, "row": row}

    def __setstate__(self, state: dict[str, Any]) -> None:
        row = state.pop("row")
        vars(self).update(state)
        if row is not None:
            self.set_state(row)

    # Creation

    def setup(self) -> None:
        """Make the environment; replace it if it exists."""
        self._use(self._make_core(self._wrappers))

    def _use(self, core: exact_env.PlanEnv) -> None:
        if self._core is not None:
            self._core.close()
        self._core = core
        # Batches have images if the core was made with them; `process_step` adds them to steps.
        self._images_in_batches, core.return_image = core.return_image, False
        self.init_spaces()

    def _make_core(self, wrappers: Iterable[WrapperLike]) -> exact_env.PlanEnv:
        kwargs = {"wrappers": tuple(wrappers), **self._gym_env_kwargs}
        if self.return_image:
            kwargs["return_image"] = True
        return self._core_of(self._source(), **kwargs)

    def _core_of(self, source: Any, **kwargs: Any) -> exact_env.PlanEnv:
        """Make a `plangym_like.PlanEnv` from an id, or a callable that returns an environment."""
        kwargs = {**self._core_kwargs(), "frameskip": 1, "autoreset": False, **kwargs}
        if isinstance(source, str):
            return make(source, **self._execution, **kwargs)
        module, _, name = self.core_class.partition(":")
        env_class = getattr(importlib.import_module(f"plangym_like.envs.{module}"), name)
        execution = dict(self._execution)
        if execution:
            on_ray = execution.pop("ray", False)
            vectorized = constructors.RayEnv if on_ray else constructors.ParallelEnv
            return vectorized(env_class, source, **execution, **kwargs)
        made: exact_env.PlanEnv = env_class(source, **kwargs)
        return made

    def _source(self) -> Any:
        """Return the id, or the callable, from which the environment is made."""
        return self.name if is_ours(type(self), "init_gym_env") else self.init_gym_env

    def _core_kwargs(self) -> dict[str, Any]:
        """Return the options of `plangym_like.make` that this class determines."""
        limited = "max_episode_steps" in self._gym_env_kwargs
        return {
            "obs_type": self.obs_type,
            "remove_time_limit": None if limited else self._remove_time_limit,
        }

    def init_gym_env(self) -> gymnasium.Env[Any, Any]:
        """Make and return the Gymnasium environment; a subclass may return another one."""
        return gymnasium.make(self.name, **self._gym_env_kwargs)

    def init_spaces(self) -> None:
        """Set the spaces of observations and actions."""
        self._obs_space = self._live.observation_space
        self._action_space = self._live.action_space

    @property
    def _live(self) -> exact_env.PlanEnv:
        if self._core is None:
            self.setup()
        assert self._core is not None
        return self._core

    @property
    def gym_env(self) -> Any:
        """The Gymnasium environment, with its wrappers, in the current state."""
        return self._live.gym_env

    @property
    def _gym_env(self) -> Any:
        return None if self._core is None else self._core.gym_env

    @_gym_env.setter
    def _gym_env(self, env: gymnasium.Env[Any, Any]) -> None:
        """Remove the wrappers around `env`; if it is not in the chain, copies replace the chain."""
        depth = next((i for i, link in enumerate(links(self.gym_env)) if link is env), None)
        if depth is None:
            self._use(self._core_of(partial(copy.deepcopy, env)))
        else:
            self._wrappers = self._wrappers[: max(0, len(self._wrappers) - depth)]
            self.setup()

    def apply_wrappers(self, wrappers: Iterable[WrapperLike]) -> None:
        """Put wrappers around the environment, and begin a new episode."""
        self._wrappers += tuple(wrappers)
        self.setup()

    def wrap(self, wrapper: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Put one wrapper around the environment, and begin a new episode."""
        self.apply_wrappers([lambda env: wrapper(env, *args, **kwargs)])

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        given: dict[str, Any] = {
            "wrappers": self._wrappers,
            "remove_time_limit": self._remove_time_limit,
            "render_mode": self.render_mode,
            **self._gym_env_kwargs,
        }
        if self.obs_type != self.DEFAULT_OBS_TYPE:
            given["obs_type"] = self.obs_type
        return super().clone(**{**given, **kwargs})

    def close(self) -> None:
        """Close the environment; the next use makes it again."""
        if self._core is not None:
            self._core.close()
        self._core = None

    # Properties

    @property
    def obs_shape(self) -> tuple[int, ...] | None:
        """The shape of one observation."""
        space = self.observation_space
        return None if space is None else space.shape

    @property
    def obs_type(self) -> str:
        """The kind of observations, such as ``"coords"`` or ``"rgb"``."""
        return self._obs_type

    @property
    def observation_space(self) -> Space[Any] | None:
        """The space of observations."""
        return self._obs_space

    @property
    def action_shape(self) -> tuple[int, ...] | None:
        """The shape of one action."""
        space = self.action_space
        return None if space is None else space.shape

    @property
    def action_space(self) -> Space[Any] | None:
        """The space of actions."""
        return self._action_space

    @property
    def reward_range(self) -> Any:
        """The smallest and largest reward, or ``None`` if the environment does not state them."""
        return getattr(self.gym_env, "reward_range", None)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the Gymnasium environment."""
        metadata: dict[str, Any] = self.gym_env.metadata
        return metadata

    @property
    def render_mode(self) -> str | None:
        """The render mode that the environment was made with."""
        return self._render_mode

    @property
    def remove_time_limit(self) -> bool:
        """Whether the time limit of the id is removed."""
        return self._remove_time_limit

    # Single steps

    def seed(self, seed: int | None = None) -> None:
        """Seed the next `reset` with `seed`."""
        self._seed = seed

    def apply_reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return ``(obs, info)``."""
        seed, self._seed = self._seed, None
        obs, info = self._live.reset(seed=seed, return_state=False)
        if self.return_image:
            info["rgb"] = self.get_image()
        self._show()
        return obs, info

    def apply_action(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step once; return ``(obs, reward, terminal, truncated, info)``."""
        return self._ended(*self._live.step(action))

    def step_with_dt(self, action: Any, dt: Any = 1) -> tuple[Any, Any, Any, Any, Any]:
        """Apply `action` for ``dt * frameskip`` steps; return no state and do not reset."""
        if not all(is_ours(type(self), name) for name in ("apply_action", "process_apply_action")):
            return super().step_with_dt(action, dt)
        result = self._ended(*self._live.step(action, dt=int(dt) * self.frameskip))
        self._show()
        return result

    def _ended(
        self, obs: Any, reward: Any, terminal: Any, truncated: Any, info: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Convert the result of a step to plangym's form; subclasses may override this."""
        return obs, reward, terminal, truncated, info

    def get_state(self) -> Any:
        """Return the current state, a row ``(state_nbytes,) uint8``."""
        return self._live.get_state()

    def set_state(self, state: Any) -> None:
        """Make `state` the current state."""
        self._live.set_state(state)

    def sample_action(self) -> Any:
        """Return a random action."""
        return self._live.sample_action()

    def process_obs(self, obs: Any, **kwargs: Any) -> Any:
        """Return the result of ``get_{obs_type}_obs`` if there is such a method, else `obs`."""
        name = f"get_{self.obs_type}_obs"
        return getattr(self, name)(obs, **kwargs) if name in _HOOKS else obs

    def get_coords_obs(self, obs: Any, **kwargs: Any) -> Any:
        """Return the observation that `step` returns with ``obs_type="coords"``."""
        return obs

    def get_rgb_obs(self, obs: Any, **kwargs: Any) -> Any:
        """Return the observation that `step` returns with ``obs_type="rgb"``."""
        return obs

    def get_grayscale_obs(self, obs: Any, **kwargs: Any) -> Any:
        """Return the observation that `step` returns with ``obs_type="grayscale"``."""
        return obs

    # Images

    def get_image(self) -> NDArray[np.uint8]:
        """Return an image of the current state, ``(height, width, 3)``.

        Raises
        ------
        RuntimeError
            The environment was made with ``render_mode=None``.
        """
        if self.render_mode is None:
            raise RuntimeError(
                "Cannot get image when render_mode=None: make the environment with "
                "render_mode='rgb_array'"
            )
        return self._live.get_image()

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the current state; show it if ``render_mode="human"``."""
        self._show()
        return self.get_image()

    def _show(self) -> None:
        if self.render_mode == "human":
            show_image(self._live.get_image(), self.name)

    # Batches

    def step_batch(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = True
    ) -> tuple[list[Any], ...]:
        """Step N times; return a list of N values for each value that `step` returns.

        Given `states` are stepped as one batch, and the current state does not change, unless a
        subclass overrides step methods. Without `states`, each step continues from the last one.
        """
        if without_states(states) or not self._steps_batches():
            return super().step_batch(actions, states, dt, return_state)
        steps = as_steps(dt, len(actions))
        frames = np.array(steps, np.int64) * self.frameskip
        core = self._live
        data: Any = core.step_batch(
            actions, states, dt=frames, return_state=return_state is not False
        )
        *found, obs, rewards, terminals, truncateds, infos = data
        rows = [
            self._ended(*row)
            for row in zip(
                (take(obs, index) for index in range(len(steps))),
                rewards.tolist(),
                terminals.tolist(),
                truncateds.tolist(),
                infos,
                strict=True,
            )
        ]
        for row, each in zip(rows, steps, strict=True):
            row[4]["dt"] = each
        self._complete_infos([row[4] for row in rows], states)
        return (*map(list, found), *columns_of(rows, 5))

    def _complete_infos(self, infos: list[dict[str, Any]], states: Any) -> None:
        """Add values that this class defines to `infos`, the infos of steps from `states`."""

    def _steps_batches(self) -> bool:
        """Return whether `plangym_like` can step a batch with the same results as `step`."""
        kind: Any = type(self)
        return (self._images_in_batches or not self.return_image) and not writes_hooks(kind)

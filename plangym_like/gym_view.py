"""`GymView`: a `PlanEnv` as a `gymnasium.Env`."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray


class GymView(gymnasium.Env[Any, Any]):
    """A `PlanEnv` as a `gymnasium.Env`; `PlanEnv.as_gym` returns it.

    Seeded episodes, including their infos, are the same as in the Gymnasium environment inside. The
    view is never reset automatically, even if the `PlanEnv` has ``autoreset=True``. The view also
    has the public attributes of the `PlanEnv`, such as ``get_state``, ``set_state`` and
    ``step_batch``.

    A state row holds the state of the Gymnasium environment inside and of the wrappers that the
    `PlanEnv` was made with, but not of wrappers around the view.

    Parameters
    ----------
    plan_env : PlanEnv
        It shares its current state with the view, and closing the view closes it.

    Attributes
    ----------
    plan_env : PlanEnv
    observation_space, action_space : gymnasium.Space
    metadata, render_mode
        The same as in the Gymnasium environment inside.

    Examples
    --------
    >>> import plangym_like
    >>> view = plangym_like.make("CartPole-v1").as_gym()
    >>> obs, info = view.reset(seed=0)
    >>> state = view.get_state()
    >>> first = view.step(1)
    >>> view.set_state(state)
    >>> bool((view.step(1)[0] == first[0]).all())
    True
    """

    def __init__(self, plan_env: Any) -> None:
        self.plan_env = plan_env
        self.observation_space = plan_env.observation_space
        self.action_space = plan_env.action_space
        self._inner: gymnasium.Env[Any, Any] = plan_env.row_stepper.simulator.env
        self.metadata = self._inner.metadata
        self.render_mode = self._inner.render_mode

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "plan_env":
            raise AttributeError(f"'GymView' object has no attribute {name!r}")
        return getattr(self.plan_env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode and return ``(obs, info)``; see `PlanEnv.reset`."""
        env = self.plan_env
        stepper = env.row_stepper
        with stepper.lock:
            _, obs, info = stepper.current.reset(seed, options, read=False, image=env.return_image)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step from the current state.

        Returns
        -------
        tuple
            ``(obs, reward, terminated, truncated, info)`` as the Gymnasium environment returns
            them; the info lacks ``n_step`` and ``dt``, which `PlanEnv.step` adds. If an action
            takes several steps (``frameskip=``), their rewards are summed.

        Raises
        ------
        gymnasium.error.ResetNeeded
            Neither `reset` nor `set_state` has been called yet.
        ActionError
            The action is not in the action space; the environment has not been stepped.
        StateLostError
            A call that should have replaced the current state raised an error.
        ClosedError
            The environment has been closed.
        """
        env = self.plan_env
        stepper = env._stepper
        if stepper is None or stepper.closed:
            stepper = env.row_stepper
        current = stepper.current
        with stepper.lock:
            if not current.started or current.lost:
                self._refuse(current)
            chosen = stepper.layout.check_action(action)
            result: tuple[Any, Any, bool, bool, dict[str, Any]] = current.step_env(chosen)
            if env.return_image:
                result[4]["rgb"] = current.image()
        return result

    # Other members of Gymnasium environments

    def render(self) -> Any:
        """Render the current state in ``render_mode``; like `step`, fail if there is none."""
        stepper = self.plan_env.row_stepper
        with stepper.lock:
            if not stepper.current.started or stepper.current.lost:
                self._refuse(stepper.current)
            if self.render_mode == "rgb_array":
                image: NDArray[np.uint8] = self.plan_env.get_image()
                return image
            return self.plan_env.gym_env.render()

    def _refuse(self, current: Any) -> NoReturn:
        """Raise the error for a current state that is lost or does not exist yet."""
        current.check(self.plan_env.name)
        raise ResetNeeded("there is no current state yet: call reset or set_state first")

    def close(self) -> None:
        """Close the `PlanEnv`; safe to call more than once."""
        self.plan_env.close()

    @cached_property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec with which `gymnasium.make` makes the Gymnasium environment inside.

        ``max_episode_steps`` is the time limit in use, or ``None`` if the id's limit was removed.
        """
        spec = copy.copy(self._inner.spec)
        link = self._inner
        while isinstance(link, gymnasium.Wrapper):
            if isinstance(link, TimeLimit):
                return spec
            link = link.env
        if spec is not None:
            spec.max_episode_steps = None
        return spec

    @property
    def np_random(self) -> np.random.Generator:
        """The random generator of the Gymnasium environment inside; it can be set."""
        generator: np.random.Generator = self.plan_env.gym_env.np_random
        return generator

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self.plan_env.gym_env.np_random = value

    @property
    def np_random_seed(self) -> int:
        """The seed of the last seeded reset; -1 if `np_random` was set."""
        seed: int = self.plan_env.gym_env.np_random_seed
        return seed

    @property
    def _np_random(self) -> np.random.Generator | None:  # type: ignore[override]
        """The random generator, or ``None`` if not made yet; Gymnasium's `check_env` reads it."""
        env: gymnasium.Env[Any, Any] = self.plan_env.gym_env
        while isinstance(env, gymnasium.Wrapper):
            env = env.env
        return env._np_random

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the Gymnasium environment inside.

        If that environment does not have the attribute, set it on the view; `force` is as in
        Gymnasium.
        """
        inside = self.plan_env.gym_env.set_wrapper_attr(name, value, force=False)
        return inside or super().set_wrapper_attr(name, value, force=force)

"""A task of dm_control's suite as a Gymnasium environment."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.envs.dm_control_random import RestorableRandom
from plangym_like.envs.headless import draw_without_a_display
from plangym_like.errors import InputError, MissingExtraError

_SHIMMY = re.compile(r"dm_control/(?P<domain>\w+)-(?P<task>\w+)-v0")
_PLAIN = re.compile(r"(?P<domain>[A-Za-z]\w*)-(?P<task>[A-Za-z]\w*)")


def parse(name: str) -> tuple[str, str, bool] | None:
    """Return the domain and task of `name`, and whether its observations are dicts.

    Return ``None`` if `name` does not have the form of a task's name.

    >>> parse("walker-walk"), parse("dm_control/walker-walk-v0")
    (('walker', 'walk', False), ('walker', 'walk', True))
    >>> parse("CartPole-v1")
    """
    dicts = _SHIMMY.fullmatch(name)
    found = dicts or _PLAIN.fullmatch(name)
    if found is None or re.fullmatch(r"v\d+", found["task"]):
        return None
    return found["domain"], found["task"], dicts is not None


def all_ids() -> list[str]:
    """Return the ids of all tasks: first in the form used by plangym, then in shimmy's form.

    Raises `ImportError` if dm_control is not installed.
    """
    tasks = sorted(f"{domain}-{task}" for domain, task in load_suite().ALL_TASKS)
    return [*tasks, *(f"dm_control/{task}-v0" for task in tasks)]


def load_suite() -> Any:
    """Import and return ``dm_control.suite``, set up to render without a display if possible."""
    with contextlib.suppress(MissingExtraError):
        draw_without_a_display()
    from dm_control import suite

    return suite


class SuiteEnv(gymnasium.Env[Any, Any]):
    """One task of the suite as a Gymnasium environment.

    Parameters
    ----------
    domain, task : str
    flat : bool
        Whether the parts of an observation are concatenated into one vector.
    limited : bool
        Whether episodes end at the suite's time limit.
    render_mode : {"rgb_array"}, optional
    width, height : int
        Size of images in pixels.
    camera_id : int or str
    suite_kwargs
        ``task_kwargs``, ``environment_kwargs`` and ``visualize_reward`` of ``suite.load``. By
        default, ``task_kwargs`` has ``"random": 0``, so random models (lqr) are always the same.

    Attributes
    ----------
    suite_env : dm_control.rl.control.Environment
    random : RestorableRandom
    seeded : bool
        Whether the next episode continues from the generator's current state. If not, the generator
        is first seeded with fresh entropy.
    """

    def __init__(
        self,
        domain: str,
        task: str,
        *,
        flat: bool,
        limited: bool,
        render_mode: str | None = None,
        width: int = 320,
        height: int = 240,
        camera_id: int | str = 0,
        task_kwargs: dict[str, Any] | None = None,
        **suite_kwargs: Any,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode must be 'rgb_array' or None, got {render_mode!r}")
        self.metadata = {"render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        self.suite_env = load_suite().load(
            domain, task, task_kwargs={"random": 0, **(task_kwargs or {})}, **suite_kwargs
        )
        if not limited:
            self.suite_env._step_limit = float("inf")
        self._camera_options = {"width": width, "height": height, "camera_id": camera_id}
        self.flat = flat
        self.seeded = False
        self.random = RestorableRandom(self.suite_env.task.random)
        self.suite_env.task._random = self.random
        spec = self.suite_env.action_spec()
        self.action_space = spaces.Box(spec.minimum, spec.maximum, spec.shape, spec.dtype.type)
        parts = self.suite_env.observation_spec()
        if flat:
            size = sum(int(np.prod(part.shape)) for part in parts.values())
            self.observation_space = _unbounded((size,), np.dtype(np.float64))
        else:
            self.observation_space = spaces.Dict(
                {name: _unbounded(part.shape, part.dtype) for name, part in parts.items()}
            )

    @property
    def physics(self) -> Any:
        """The ``Physics`` object of the suite."""
        return self.suite_env.physics

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Seed the task's random generator with `seed`, if given, and start an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.random.seed(seed)
        elif not self.seeded:
            self.random.seed(None)
        self.seeded = True
        return self._observed(self.suite_env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the task, even if the episode has ended (the suite would start another episode)."""
        self.suite_env._reset_next_step = False
        found = self.suite_env.step(action)
        over = found.last()
        obs = self._observed(found.observation)
        ended = bool(over and found.discount == 0.0)
        return obs, float(found.reward), ended, bool(over) and not ended, {}

    def _observed(self, parts: Any) -> Any:
        if not self.flat:
            return {name: np.asarray(part) for name, part in parts.items()}
        return np.concatenate([np.ravel(part) for part in parts.values()])

    def render(self) -> NDArray[np.uint8]:
        """Return the camera image, ``(height, width, 3)``."""
        image: NDArray[np.uint8] = self.physics.render(**self._camera_options)
        return image

    def close(self) -> None:
        """Release the resources used for rendering."""
        self.suite_env.close()


def _unbounded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, dtype.type)

"""`PlanEnv`: plangym's base class, which builds `step` from methods that subclasses define."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError


class PlanEnv:
    """An environment whose `step` can start from any state.

    A subclass defines `apply_action`, `apply_reset`, `get_state` and `set_state`, and the
    properties `obs_shape` and `action_shape`; it may define `get_image`, `sample_action`, `setup`,
    `close`, and the methods whose names begin with ``process_``.

    Parameters
    ----------
    name : str
        The name of the environment.
    frameskip : int
        The number of times that `step` applies an action for each unit of ``dt``.
    autoreset : bool
        Whether `step` begins a new episode once one has ended.
    delay_setup : bool
        If true, the constructor does not call `setup`; subclasses may call it at the first use.
    return_image : bool
        Put an image of each resulting state into ``info["rgb"]``.

    Examples
    --------
    >>> class Counter(PlanEnv):
    ...     obs_shape = action_shape = ()
    ...     def apply_action(self, action):
    ...         self.count += action
    ...         return self.count, float(action), self.count > 5, False, {}
    ...     def apply_reset(self, **kwargs):
    ...         self.count = 0
    ...         return self.count, {}
    ...     def get_state(self):
    ...         return np.array([self.count])
    ...     def set_state(self, state):
    ...         self.count = int(state[0])
    >>> state, obs, info = Counter("counter").reset()
    >>> Counter("counter").step(2, state, dt=2)[1]
    4
    """

    STATE_IS_ARRAY: bool = True
    OBS_IS_ARRAY: ClassVar[bool] = True
    SINGLETON: bool = False

    def __init__(
        self,
        name: str,
        frameskip: int = 1,
        autoreset: bool = True,
        delay_setup: bool = False,
        return_image: bool = False,
    ) -> None:
        self._name = name
        self.frameskip = frameskip
        self.autoreset = autoreset
        self.delay_setup = delay_setup
        self._return_image = return_image
        self._dt_step: Any = None
        self._returns_state = False
        self._begin_frames()
        if not delay_setup:
            self.setup()

    @property
    def name(self) -> str:
        """The name of the environment."""
        return self._name

    @property
    def obs_shape(self) -> tuple[int, ...] | None:
        """The shape of one observation."""
        raise NotImplementedError

    @property
    def action_shape(self) -> tuple[int, ...] | None:
        """The shape of one action."""
        raise NotImplementedError

    @property
    def unwrapped(self) -> Self:
        """This environment."""
        return self

    @property
    def return_image(self) -> bool:
        """Whether infos hold images."""
        return self._return_image

    @cached_property
    def img_shape(self) -> tuple[int, ...] | None:
        """The shape of images, or ``None`` if there are none."""
        try:
            image = self.get_image()
        except (RuntimeError, NotImplementedError, InputError):
            return None
        return None if image is None else image.shape

    def step(
        self, action: Any, state: Any = None, dt: Any = 1, return_state: bool | None = None
    ) -> tuple[Any, ...]:
        """Apply `action` for ``dt * frameskip`` steps, or until the episode ends.

        Returns
        -------
        tuple
            ``(state, obs, reward, terminal, truncated, info)``. The state is left out if
            `return_state` is false; by default, it is returned only if `state` is given.
        """
        self.begin_step(action=action, dt=dt, state=state, return_state=return_state)
        if state is not None:
            self.set_state(state)
        obs, reward, terminal, truncated, info = self.step_with_dt(action=action, dt=dt)
        obs, reward, terminal, truncated, info = self.process_step(
            obs=obs, reward=reward, terminal=terminal, truncated=truncated, info=info
        )
        data = self.get_step_tuple(
            obs=obs, reward=reward, terminal=terminal, truncated=truncated, info=info
        )
        self.run_autoreset(data)
        return data

    def reset(self, return_state: bool = True) -> tuple[Any, ...]:
        """Begin an episode; return ``(state, obs, info)``, or ``(obs, info)``."""
        obs, info = self.apply_reset()
        obs = self.process_obs(obs)
        info = self.process_info(obs=obs, reward=0, terminal=False, info=info or {})
        return (self.get_state(), obs, info) if return_state else (obs, info)

    def step_batch(
        self,
        actions: Sequence[Any] | NDArray[Any],
        states: Any = None,
        dt: Any = 1,
        return_state: bool | None = True,
    ) -> tuple[list[Any], ...]:
        """Step N times; return lists of N states, N observations, N rewards and so on.

        Without `states` (``None``, or a list of ``None``), each step continues from the one before.
        """
        steps = as_steps(dt, len(actions))
        bare = without_states(states)
        if bare:
            states = [None] * len(actions)
        width = 5 + bool(not bare if return_state is None else return_state)
        rows = (
            self.step(action, state, dt=each, return_state=return_state)
            for action, state, each in zip(actions, states, steps, strict=True)
        )
        return columns_of(rows, width)

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        given = {
            "name": self.name,
            "frameskip": self.frameskip,
            "autoreset": self.autoreset,
            "delay_setup": self.delay_setup,
            # A subclass may not have this argument.
            **({"return_image": True} if self.return_image else {}),
        }
        return type(self)(**{**given, **kwargs})

    # The parts of a step, in the order in which they are called

    def begin_step(
        self, action: Any = None, dt: Any = None, state: Any = None, return_state: Any = None
    ) -> None:
        """Record `dt`, and whether to return the state; called before the action is applied."""
        self._dt_step = dt
        self._returns_state = state is not None if return_state is None else bool(return_state)
        self._begin_frames()

    def _begin_frames(self) -> None:
        self._n_step = 0
        self._reward_step: float = 0
        self._terminal_step = False

    def step_with_dt(self, action: Any, dt: Any = 1) -> tuple[Any, Any, Any, Any, Any]:
        """Apply `action` for ``dt * frameskip`` steps; return no state and do not reset.

        Raises
        ------
        InputError
            `dt` is less than 1.
        """
        if int(dt) < 1:
            raise InputError(f"dt must be at least 1, got {dt!r}")
        self._begin_frames()
        for _ in range(int(dt) * self.frameskip):
            self._n_step += 1
            data = self.process_apply_action(*self.apply_action(action))
            _, self._reward_step, self._terminal_step, truncated, _ = data
            if self._terminal_step or truncated:
                break
        return data

    def process_apply_action(
        self, obs: Any, reward: Any, terminal: Any, truncated: Any, info: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Add the result of one `apply_action` to the results of this step so far."""
        info["n_step"] = self._n_step
        return obs, self._reward_step + reward, terminal or self._terminal_step, truncated, info

    def process_step(
        self, obs: Any, reward: Any, terminal: Any, truncated: Any, info: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Add ``n_step``, ``dt`` and, if requested, the image to the info of a step."""
        info.setdefault("n_step", self._n_step)
        info["dt"] = self._dt_step
        if self.return_image:
            info["rgb"] = self.get_image()
        return obs, reward, terminal, truncated, info

    def get_step_tuple(
        self, obs: Any, reward: Any, terminal: Any, truncated: Any, info: Any
    ) -> tuple[Any, ...]:
        """Apply the ``process_...`` methods to a result; return the tuple that `step` returns."""
        obs = self.process_obs(obs=obs, reward=reward, terminal=terminal, info=info)
        reward = self.process_reward(obs=obs, reward=reward, terminal=terminal, info=info)
        terminal = self.process_terminal(obs=obs, reward=reward, terminal=terminal, info=info)
        info = self.process_info(obs=obs, reward=reward, terminal=terminal, info=info)
        data = obs, reward, terminal, truncated, info
        return (self.get_state(), *data) if self._returns_state else data

    def run_autoreset(self, step_data: tuple[Any, ...]) -> None:
        """If `autoreset` is true and the step ended an episode, begin a new one."""
        if self.autoreset and (step_data[-3] or step_data[-2]):
            self.reset(return_state=False)

    # Methods that subclasses define

    def setup(self) -> None:
        """Make the parts of the environment that cannot be pickled."""

    def apply_action(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step once; return ``(obs, reward, terminal, truncated, info)``."""
        raise NotImplementedError

    def apply_reset(self, **kwargs: Any) -> tuple[Any, Any]:
        """Begin an episode; return ``(obs, info)``."""
        raise NotImplementedError

    def get_state(self) -> Any:
        """Return the current state."""
        raise NotImplementedError

    def set_state(self, state: Any) -> None:
        """Make `state` the current state."""
        raise NotImplementedError

    def get_image(self) -> NDArray[np.uint8] | None:
        """Return an image of the current state."""
        raise NotImplementedError

    def sample_action(self) -> Any:
        """Return a random action."""

    def process_obs(self, obs: Any, **kwargs: Any) -> Any:
        """Convert the environment's own observation to the observation that `step` returns."""
        return obs

    def process_reward(self, reward: Any, **kwargs: Any) -> Any:
        """Convert the environment's own reward to the reward that `step` returns."""
        return reward

    def process_terminal(self, terminal: Any, **kwargs: Any) -> Any:
        """Return whether a step ended the episode."""
        return terminal

    def process_info(self, info: Any, **kwargs: Any) -> Any:
        """Convert the environment's own info to the info that `step` returns."""
        return info

    def close(self) -> None:
        """Release the environment's resources."""


def without_states(states: Any) -> bool:
    """Return whether no states are given: `states` is ``None`` or a list of ``None``.

    Raises
    ------
    InputError
        Only some of `states` are ``None``.
    """
    if states is None or (isinstance(states, np.ndarray) and states.dtype != object):
        return states is None
    missing = [state is None for state in states]
    if any(missing) and not all(missing):
        raise InputError("states must be given for all actions or for none; some are None")
    return any(missing)


def as_steps(dt: Any, count: int) -> list[int]:
    """Return `dt` as one integer for each of `count` rows; fractions are cut off."""
    steps = np.asarray(dt)
    if steps.shape not in ((), (1,), (count,)):
        raise InputError(f"dt must be one number or {count}, one for each row, got {dt!r}")
    return [int(each) for each in np.broadcast_to(steps, (count,))]


def columns_of(rows: Iterable[tuple[Any, ...]], width: int) -> tuple[list[Any], ...]:
    """Return `width` lists, one for each value of the `rows`, which have `width` values each."""
    return tuple(map(list, zip(*rows, strict=True))) or tuple([] for _ in range(width))

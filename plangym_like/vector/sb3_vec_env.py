"""`Sb3VecEnv`: lanes as a vectorised environment of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from stable_baselines3.common.vec_env import VecEnv

from plangym_like.batch.ownership import owned_info
from plangym_like.errors import ClosedError
from plangym_like.vector.batching import batch_actions
from plangym_like.vector.lanes import Finals, Lanes, StepArrays
from plangym_like.vector.tree import tree_map

Indices = None | int | Iterable[int]


class Sb3VecEnv(VecEnv):
    """A `stable_baselines3.common.vec_env.VecEnv`; `PlanVectorEnv.as_sb3` returns it.

    With the same seeds, results are the same as with `DummyVecEnv`: an environment whose episode
    has ended is reset in the same step, and its last observation is
    ``infos[i]["terminal_observation"]``.

    Parameters
    ----------
    lanes : Lanes
        The environments. Closing this object closes them, too.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._obs: Any = None
        self._actions: Any = None
        self._closed = False
        super().__init__(lanes.num_lanes, lanes.observation_space, lanes.action_space)
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._terminated, self._truncated = np.zeros((2, self.num_envs), bool)
        self._batch_space = gymnasium.vector.utils.batch_space(self.action_space, self.num_envs)

    def reset(self) -> Any:
        """Reset all environments with the seeds and options that were set; return observations."""
        self._check_open()
        options = [each or None for each in self._options]
        if self._obs is None:
            self._obs = self._lanes.start(self._seeds, options)
        else:
            self._lanes.reset(self._obs, seeds=self._seeds, options=options)
        self.reset_infos = list(map(owned_info, self._lanes.infos))
        self._reset_seeds()
        self._reset_options()
        return tree_map(np.copy, self._obs)

    def step_async(self, actions: Any) -> None:
        """Store the actions ``(n, ...)`` for `step_wait`."""
        layout = self._lanes.action_layout
        self._actions = batch_actions(actions, self._batch_space, layout, self.num_envs)

    def step_wait(self) -> Any:
        """Step all environments.

        Returns
        -------
        tuple
            Observations, rewards ``(n,) float32``, dones ``(n,) bool``, and a list of n infos.
        """
        self._check_started()
        lanes, terminated, truncated = self._lanes, self._terminated, self._truncated
        out = StepArrays(self._obs, self._rewards, terminated, truncated)
        finals: Finals = {}
        lanes.step(self._actions, out, finals=finals)
        infos = []
        for lane, info in enumerate(lanes.infos):
            if lane in finals:
                final_obs, final_info = finals[lane]
                self.reset_infos[lane] = owned_info(info)
                info = {**owned_info(final_info), "terminal_observation": final_obs}
            else:
                info = owned_info(info)
            info["TimeLimit.truncated"] = bool(truncated[lane] and not terminated[lane])
            infos.append(info)
        return tree_map(np.copy, self._obs), self._rewards.copy(), terminated | truncated, infos

    def close(self) -> None:
        """Close the environments; safe to call more than once."""
        if not self._closed:
            self._closed = True
            self._lanes.close()

    # The environments

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return attribute `attr_name` of each environment."""
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set attribute `attr_name` of the environments.

        If it is set in all of them, it is also set in the environments of a new process that
        replaces a dead one.
        """
        if indices is not None:
            self.env_method("set_wrapper_attr", attr_name, value, indices=indices)
            return
        self._check_open()
        self._lanes.set_attr(attr_name, [value] * self.num_envs)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call method `method_name` of each environment, and return the results."""
        self._check_open()
        lanes = list(self._get_indices(indices))
        return self._lanes.call(method_name, *method_args, lanes=lanes, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: Any, indices: Indices = None) -> list[bool]:
        """Return whether each environment has a wrapper of this class."""
        self._check_open()
        wrapped = self._lanes.are_wrapped(wrapper_class)
        return [wrapped[index] for index in self._get_indices(indices)]

    def get_images(self) -> Sequence[Any]:
        """Return an image of each environment; ``None`` unless they render as ``"rgb_array"``."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return self.env_method("render")

    # States

    def get_states(self, indices: Indices = None) -> Any:
        """Return state rows; see `PlanVectorEnv.get_states`."""
        self._check_started()
        return self._lanes.get_states(list(self._get_indices(indices)))

    def set_states(self, states: Any, indices: Indices = None, seeds: Any = None) -> None:
        """Put environments into states; see `PlanVectorEnv.set_states`.

        This does not change the last observations that a model keeps (``model._last_obs``).
        """
        self._check_started()
        self._lanes.set_states(states, list(self._get_indices(indices)), seeds)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the environments have been closed: make others")

    def _check_started(self) -> None:
        self._check_open()
        if self._obs is None:
            raise ResetNeeded("reset the environments first")

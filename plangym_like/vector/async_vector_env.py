"""`AsyncPlanVectorEnv`: vectorised environments that need not wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.errors import InputError
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count
from plangym_like.vector.batching import batch_actions, batch_infos, checked_indices
from plangym_like.vector.lane_queue import LaneQueue, Ready
from plangym_like.vector.lanes import Lanes, Which
from plangym_like.vector.step_arrays import StepArrays
from plangym_like.vector.tree import Leaf, has_objects, take, tree_map, write_rows, zeros
from plangym_like.vector.vector_env import PlanVectorEnv, Step


class AsyncPlanVectorEnv(PlanVectorEnv):
    """A `PlanVectorEnv` that can also step a few environments at a time, as EnvPool does.

    `send` gives actions to some environments, and `recv` returns the results of the first
    `batch_size` that are ready. The order of the results depends on how long steps take, but the
    episodes of each environment are the same as with `step`. Other methods, such as `get_states`,
    first wait until the steps that `send` began are done; `recv` still returns the results of these
    steps, unless `reset` drops them. `step` raises an error if any result has not been received
    yet. `set_states` raises an error if it sets the state of an environment whose result has not
    been received.

    Parameters
    ----------
    lanes, options
        See `PlanVectorEnv`; ``autoreset_mode`` must not be ``"Disabled"``.
    batch_size : int
        The number of environments whose results `recv` returns, at most n.

    Raises
    ------
    InputError
        `batch_size` is out of range, or `autoreset_mode` is ``"Disabled"``.

    Examples
    --------
    >>> import plangym_like
    >>> with plangym_like.make_vec("CartPole-v1", 4, batch_size=2) as envs:
    ...     envs.async_reset(seed=0)
    ...     for _ in range(10):
    ...         obs, rewards, terminations, truncations, infos = envs.recv()
    ...         envs.send([0, 1], infos["env_id"])
    >>> obs.shape
    (2, 4)
    """

    def __init__(self, lanes: Lanes, *, batch_size: int, **options: Any) -> None:
        super().__init__(lanes, **options)
        self.batch_size = as_count("batch_size", batch_size)
        if self.batch_size > self.num_envs:
            raise InputError(
                f"batch_size must be at most the number of environments, {self.num_envs}, got "
                f"{batch_size}"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise InputError(
                "send and recv need environments that are reset when their episode has ended: "
                "autoreset_mode='Disabled' cannot be combined with batch_size"
            )
        self._queue: LaneQueue | None = None

    def async_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Start a new episode in every environment; `recv` returns the first observations.

        This method waits for the resets. Earlier results that were not received are dropped.

        Parameters
        ----------
        seed, options
            As in `reset`, without ``"reset_mask"``.

        Raises
        ------
        InputError
            `options` has ``"reset_mask"``, or a seed is invalid.
        """
        if options is not None and "reset_mask" in options:
            raise InputError("async_reset resets all environments: leave reset_mask out")
        self.reset(seed=seed, options=options)
        self._begin_queue().add_ready(map(dict, self._lanes.infos))

    def send(self, actions: Any, env_ids: Which = None) -> None:
        """Give actions to some environments, and begin to step them.

        If `autoreset_mode` is ``"NextStep"``, an environment whose episode has ended begins a new
        episode instead.

        Parameters
        ----------
        actions : array ``(K, ...)``, or an element of the action space of K environments
        env_ids : sequence of int, optional
            The environments; by default all. The last result of each must have been received.

        Raises
        ------
        InputError
            The last result of an environment has not been received, or an argument is invalid;
            nothing was sent.
        ResetNeeded
            The environments have never been reset; or, since the last reset, Ctrl-C has interrupted
            `send`, `recv`, or a call that was waiting for steps begun by `send`.
        """
        queue = self._begin_queue()
        chosen = checked_indices(env_ids, self.num_envs)
        lanes = np.arange(self.num_envs) if chosen is None else chosen
        if queue.pending[lanes].any():
            raise InputError(
                f"environments {lanes[queue.pending[lanes]].tolist()} have not been received since "
                "they were reset or sent an action: call recv first"
            )
        batch = self._scattered(actions, lanes)
        with self._dropped_if_interrupted():
            queue.put(lanes.tolist(), batch)

    def recv(self) -> Step:
        """Wait until `batch_size` environments are ready, and return their results.

        Returns
        -------
        observations : array ``(batch_size, ...)``, or a tree of them
        rewards : array ``(batch_size,) float64``
            0 for environments that were reset instead of stepped.
        terminations, truncations : array ``(batch_size,) bool``
        infos : dict
            The infos of these environments, as in `step`. ``"env_id"``, ``(batch_size,) int32``,
            holds the numbers of the environments.

        Raises
        ------
        InputError
            Fewer than `batch_size` environments have a result to be received.
        Exception
            An error that any environment raised, even if this call would not have returned its
            results. That environment, and others stepped together with it, have no results; they
            can be sent actions again.
        """
        queue = self._begin_queue()
        queue.raise_first()
        pending = int(np.count_nonzero(queue.pending))
        if pending < self.batch_size:
            raise InputError(
                f"recv returns batch_size={self.batch_size} environments, but only {pending} have "
                "a result to be received: send actions to more environments first"
            )
        with self._dropped_if_interrupted():
            ready = queue.take(self.batch_size)
        return self._batch(ready)

    def _batch(self, ready: Sequence[Ready]) -> Step:
        lanes = np.array([each.lane for each in ready], np.intp)
        finals = {place: each.final for place, each in enumerate(ready) if each.final is not None}
        infos = batch_infos(self._few, [each.info for each in ready], finals)
        infos["env_id"] = lanes.astype(np.int32)
        obs = tree_map(_as_batch, take(self._obs, lanes))
        flags = self._terminated[lanes], self._truncated[lanes]
        return obs, self._rewards[lanes], *flags, infos

    @cached_property
    def _few(self) -> VectorEnv[Any, Any, Any]:
        """A bare `VectorEnv` whose `num_envs` is `batch_size`; it is only used to batch infos."""
        few: VectorEnv[Any, Any, Any] = VectorEnv()
        few.num_envs = self.batch_size
        return few

    def _scattered(self, actions: Any, lanes: NDArray[np.intp]) -> Any:
        """Return actions for all environments: `actions` in the rows `lanes`, zeros elsewhere."""
        layout, count = self._lanes.action_layout, len(lanes)
        space = self.action_space
        if has_objects(layout):
            space = batch_space(self.single_action_space, count)
        batch = batch_actions(actions, space, layout, count)
        if has_objects(layout):
            batch = owned(batch)  # the caller may change its objects before they are used
        like = tree_map(lambda rows: Leaf(rows.shape[1:], rows.dtype), batch)
        scattered = zeros(like, (self.num_envs,))
        write_rows(scattered, lanes, batch)
        return scattered

    def _begin_queue(self) -> LaneQueue:
        super()._begin()
        if self._queue is None:
            raise ResetNeeded("call async_reset or reset before send and recv")
        return self._queue

    @contextmanager
    def _dropped_if_interrupted(self) -> Iterator[None]:
        """Drop the queue if a call is interrupted: it is then unknown which lanes were stepped."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._queue = None
            raise

    # Methods that concern all environments

    def _begin(self) -> None:
        super()._begin()
        if self._queue is not None:
            with self._dropped_if_interrupted():
                self._queue.finish()

    def _refresh(self) -> None:
        super()._refresh()
        if self._queue is not None:
            self._queue.use(self._lanes)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes, as `PlanVectorEnv.reset` does; drop results not yet received.

        With ``"reset_mask"``, nothing is dropped: all results must have been received already.
        """
        if options is not None and "reset_mask" in options:
            self._check_received()
            return super().reset(seed=seed, options=options)
        if self._queue is not None:
            with self._dropped_if_interrupted():
                self._queue.drop()
        result = super().reset(seed=seed, options=options)
        self._rewards[:] = 0.0
        out = StepArrays(self._obs, self._rewards, self._terminated, self._truncated)
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        method = "step_next" if next_step else "step_same"
        self._queue = LaneQueue(self._lanes, out, self._ended, method, self.batch_size)
        return result

    def step(self, actions: Any) -> Step:
        """Step every environment, as `PlanVectorEnv.step` does.

        Raises
        ------
        InputError
            Results of earlier resets or actions have not been received.
        """
        self._check_received()
        return super().step(actions)

    def set_states(self, states: Row, indices: Which = None, **options: Any) -> None:
        """Put environments into states, as `PlanVectorEnv.set_states` does.

        Raises
        ------
        InputError
            Earlier results of these environments have not been received.
        """
        self._check_received(checked_indices(indices, self.num_envs))
        super().set_states(states, indices, **options)

    def _check_received(self, chosen: NDArray[np.intp] | None = None) -> None:
        if self._queue is None:
            return
        waiting = np.flatnonzero(self._queue.pending)
        if chosen is not None:
            waiting = np.intersect1d(waiting, chosen)
        if len(waiting):
            raise InputError(
                f"environments {waiting.tolist()} have not been received yet: call recv first"
            )


def _as_batch(leaf: NDArray[Any]) -> Any:
    return tuple(map(owned, leaf)) if leaf.dtype.hasobject else leaf

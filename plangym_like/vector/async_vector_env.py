"""`AsyncPlanVectorEnv`: vectorised environments that need not wait for each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

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
from plangym_like.vector.lanes import Flags, Lanes, Step, StepArrays, Which
from plangym_like.vector.tree import Leaf, has_objects, take, tree_map, write_rows, zeros
from plangym_like.vector.vector_env import PlanVectorEnv
from plangym_like.vector.vector_env import Step as Results

# The longest sleep while waiting for a reply or a death; after it, timeouts are checked.
_SLEEP_SECONDS = 0.1


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

    def recv(self) -> Results:
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

    def _batch(self, ready: Sequence[Ready]) -> Results:
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
        resets_at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._queue = LaneQueue(
            self._lanes, out, self._ended, self.batch_size, resets_at_once=resets_at_once
        )
        return result

    def step(self, actions: Any) -> Results:
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


class Ready(NamedTuple):
    """A lane that has been stepped or reset.

    Attributes
    ----------
    lane : int
    info : dict
        Empty if the lane has no new info.
    final : (observation, info) or None
        The last observation and info of an episode that this step ended, if the step also reset the
        lane.
    """

    lane: int
    info: dict[str, Any]
    final: Any


class LaneQueue:
    """Steps the lanes of each process separately, and returns lanes as they become ready.

    Each process steps its lanes in the order in which they are given to `put`. This process steps
    its own lanes while it waits for the others. A lane can have one action at a time: `take` must
    return the lane before the lane is given to `put` again.

    Parameters
    ----------
    lanes : Lanes
        Lanes that have been started. Nothing else may step or reset them until all lanes that
        were given to `put` are ready; see `finish`.
    out : StepArrays
        Where the results of lanes are written.
    ended : array ``(n,) bool``
        Which lanes are at the end of an episode and not yet reset; updated by this object.
    batch_size : int
        How many lanes each call of `take` usually returns.
    resets_at_once : bool
        Whether lanes whose episodes end are reset in the same step, not in the next.

    Attributes
    ----------
    pending : array bool
        Which lanes have been given to `put`, or marked by `add_ready`, and not yet been taken.
    """

    def __init__(
        self,
        lanes: Lanes,
        out: StepArrays,
        ended: Flags,
        batch_size: int,
        *,
        resets_at_once: bool,
    ) -> None:
        self._out, self._ended, self._resets_at_once = out, ended, resets_at_once
        self._batch_size = batch_size
        self.pending = np.zeros(lanes.num_lanes, bool)
        self._ready: deque[Ready] = deque()
        # Exceptions of environments that `raise_first` has not raised yet.
        self._failures: deque[Exception] = deque()
        self._lanes, parts = lanes, lanes.parts
        # For each part, the lanes to step, each with the `actions` of its call of `put`.
        self._waiting: list[deque[tuple[int, Any]]] = [deque() for _ in parts]
        # For each part, the step that was submitted and not collected yet.
        self._steps: list[Step | None] = [None] * len(parts)
        self._part_of = [number for number, part in enumerate(parts) for _ in part]
        # The maximum number of lanes in one step, so that a slow lane delays few others: the share
        # of a batch that one process steps.
        self._most_at_once = -(-self._batch_size // len(parts))

    def add_ready(self, infos: Iterable[dict[str, Any]]) -> None:
        """Mark all lanes as ready, after a reset; `infos` has one entry for each lane."""
        self._ready.extend(Ready(lane, info, None) for lane, info in enumerate(infos))
        self.pending[:] = True

    def put(self, lanes: Sequence[int], actions: Any) -> None:
        """Begin to step `lanes` with their rows of `actions` ``(n, ...)``.

        None of `lanes` may be pending. `actions` must not be changed afterwards.
        """
        for lane in lanes:
            self._waiting[self._part_of[lane]].append((lane, actions))
            self.pending[lane] = True
        self._advance()

    def take(self, count: int) -> list[Ready]:
        """Wait until `count` lanes are ready, and return them; at least `count` must be pending.

        Raises
        ------
        Exception
            See `raise_first`.
        """
        self._advance()
        self.raise_first()
        while len(self._ready) < count:
            self._advance(wait=True)
            self.raise_first()
        taken = [self._ready.popleft() for _ in range(count)]
        for each in taken:
            self.pending[each.lane] = False
        return taken

    def raise_first(self) -> None:
        """If exceptions of environments are still to be raised, raise the first of them.

        The lanes that were stepped in the failed call are not pending any more.
        """
        if self._failures:
            raise self._failures.popleft()

    def finish(self) -> None:
        """Wait until all lanes that were given to `put` are ready; they stay pending."""
        while any(self._waiting) or any(self._steps):
            self._advance(wait=True)

    def drop(self) -> None:
        """Drop all pending lanes and their results; wait until no process is stepping lanes."""
        for waiting in self._waiting:
            waiting.clear()
        self._ready.clear()
        self.finish()
        self._ready.clear()
        self._failures.clear()
        self.pending[:] = False

    def _advance(self, *, wait: bool = False) -> None:
        """Take the results of processes that are done, and begin their next steps.

        With `wait`, this process first does its own step; without one, it waits for the others.
        """
        if wait and self._steps[0] is not None:
            self._collect(0)
        else:
            self._lanes.wait(_SLEEP_SECONDS if wait else 0.0)
        for part, step in enumerate(self._steps):
            if step is not None and self._lanes.is_done(step):
                self._collect(part)
            if self._steps[part] is None and self._waiting[part]:
                self._submit(part)

    def _submit(self, part: int) -> None:
        """Begin the next step of a part; all its lanes come from one call of `put`."""
        waiting = self._waiting[part]
        actions, lanes = waiting[0][1], list[int]()
        while waiting and waiting[0][1] is actions and len(lanes) < self._most_at_once:
            lanes.append(waiting.popleft()[0])
        lanes.sort()
        ended = np.zeros(len(self.pending), bool)
        ended[lanes] = self._ended[lanes]
        if self._resets_at_once:
            step = Step(actions, self._out, lanes, finals={})
        else:
            step = Step(actions, self._out, lanes, ended)
        try:
            self._lanes.submit(step)
        except Exception as error:
            self._fail(lanes, error)
        else:
            self._steps[part] = step

    def _collect(self, part: int) -> None:
        step, self._steps[part] = self._steps[part], None
        assert step is not None and step.lanes is not None
        try:
            self._lanes.collect(step)
        except Exception as error:
            self._fail(step.lanes, error)
            return
        infos, out, finals = self._lanes.infos, self._out, step.finals or {}
        for lane in step.lanes:
            is_over = out.terminated[lane] or out.truncated[lane]
            self._ended[lane] = is_over and lane not in finals
            self._ready.append(Ready(lane, infos[lane], finals.get(lane)))

    def _fail(self, lanes: Any, error: Exception) -> None:
        self.pending[lanes] = False
        self._failures.append(error)

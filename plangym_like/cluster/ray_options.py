"""`RayOptions`: how an environment's workers and actors are made on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from plangym_like.cluster import ray_session
from plangym_like.cluster.actor_options import check_resources
from plangym_like.cluster.actor_pool import ActorPool
from plangym_like.cluster.node_env import write_recipe
from plangym_like.cluster.ray_executor import RayExecutor
from plangym_like.counts import as_count
from plangym_like.errors import InputError
from plangym_like.execution.process_options import ProcessOptions
from plangym_like.execution.short_episode import ShortEpisode, episode_given
from plangym_like.row_stepper import RowStepper


class RayOptions:
    """Makes a `RayExecutor` whose actors host ``node_env(n_workers=...)``.

    Parameters
    ----------
    node_env : callable
        Returns the environment that steps rows on one node, in `n_workers` processes.
    name : str or callable
        The environment, as in `RayEnv`.
    local : ProcessOptions
        Makes the workers on this machine.
    address, object_store_memory
        See `RayEnv`.
    where
        ``n_workers``, ``resources``, ``placement``, ``runtime_env`` and ``cores_per_actor``; see
        `RayEnv`.

    Raises
    ------
    InputError
        An option is invalid.
    MissingExtraError
        Ray is not installed.
    """

    def __init__(
        self,
        node_env: Callable[..., Any],
        name: Any,
        local: ProcessOptions,
        *,
        address: str | None,
        object_store_memory: int | None,
        **where: Any,
    ) -> None:
        for number in ("n_workers", "cores_per_actor"):
            if where[number] is not None:
                as_count(number, where[number])
        check_resources(where["resources"])
        placement = where["placement"]
        if isinstance(placement, str) and placement not in ("spread", "pack"):
            raise InputError(
                f"placement must be 'spread', 'pack' or a placement group, got {placement!r}"
            )
        self.n_workers: int | None = where["n_workers"]
        self.isolated = local.isolated
        self._node_env, self._name, self._local = node_env, name, local
        self._session = (address, object_store_memory)
        self._where = where
        self._expected: ShortEpisode | None = None
        ray_session.load()

    def prepare(self) -> None:
        """Start the fork server for the workers on this machine."""
        self._local.prepare()

    def trials(self) -> AbstractContextManager[None]:
        """Return the context of `ProcessOptions.trials`, for the workers on this machine."""
        return self._local.trials()

    def make(self, stepper: RowStepper) -> RayExecutor:
        """Connect to the cluster and start actors, without waiting until they are ready."""
        self._expected = self._local.expected_of(stepper)
        with episode_given(self._expected):
            return self._make(stepper)

    def _make(self, stepper: RowStepper) -> RayExecutor:
        session = ray_session.join(*self._session)
        try:
            actors = ActorPool(self._recipe, stepper.layout, private=session.started, **self._where)
            try:
                executor = partial(RayExecutor, session, actors)
                return self._local.make_as(executor, stepper, actors.local_workers)
            except BaseException:
                actors.close()
                raise
        except BaseException:
            session.leave()
            raise

    def _recipe(self, n_workers: int) -> bytes:
        """Return the recipe for an actor with `n_workers` processes."""
        return write_recipe(
            partial(self._node_env, n_workers=n_workers), self._name, self._expected
        )

"""`RayEnv`: an environment whose batches are stepped on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plangym_like.compat.plangym.plan_env import without_states
from plangym_like.compat.plangym.vectorization.env import VectorizedEnv


class HostedEnv:
    """An environment in a Ray actor; see `RemoteEnv`.

    Parameters
    ----------
    env_callable : callable
        Returns the environment; `setup` calls it.
    """

    def __init__(self, env_callable: Callable[[], Any]) -> None:
        self._env_callable = env_callable
        self._env: Any = None

    def setup(self) -> None:
        """Make the environment."""
        self._env = self._env_callable()

    def step(
        self, action: Any, state: Any = None, dt: Any = 1, return_state: bool | None = None
    ) -> Any:
        """Step once."""
        return self._env.step(action, state, dt, return_state)

    def step_batch(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None
    ) -> Any:
        """Step N times."""
        return self._env.step_batch(actions, states, dt, return_state)

    def reset(self, return_state: bool = True) -> Any:
        """Begin an episode."""
        return self._env.reset(return_state=return_state)

    def get_state(self) -> Any:
        """Return the current state."""
        return self._env.get_state()

    def set_state(self, state: Any) -> None:
        """Make `state` the current state."""
        self._env.set_state(state)


def __getattr__(name: str) -> Any:
    """Return ``RemoteEnv``, the actor class of `HostedEnv`, which needs Ray."""
    if name != "RemoteEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import ray

    globals()[name] = ray.remote(HostedEnv)
    return globals()[name]


class RayEnv(VectorizedEnv):
    """An environment whose batches are stepped on a Ray cluster.

    See `VectorizedEnv` for the parameters.
    """

    _actors: list[Any] | None = None

    def _execution_options(self) -> dict[str, Any]:
        return {"n_workers": self.n_workers, "ray": True}

    @property
    def workers(self) -> list[Any]:
        """The actors that keep their own states; made when they are first needed."""
        if self._actors is None:
            import ray

            actor_class = __getattr__("RemoteEnv")
            make = self._create_worker_callable()
            self._actors = [actor_class.remote(make) for _ in range(self.n_workers)]
            ray.get([actor.setup.remote() for actor in self._actors])
            self._set_worker_states(self._first_state())
        return self._actors

    def make_transitions(
        self, actions: Any, states: Any, dt: Any, return_state: bool | None = None
    ) -> tuple[list[Any], ...]:
        """Step N times in actors; without states, each actor continues from its own state."""
        import ray

        if return_state is None:
            return_state = not without_states(states)
        parts = self.batch_step_data(actions, states, dt, self.n_workers)
        jobs = zip(self.workers, *parts, strict=False)
        waiting = [
            actor.step_batch.remote(some, each, steps, return_state)
            for actor, each, some, steps in jobs
        ]
        return self.unpack_transitions(ray.get(waiting), return_state)

    def _set_worker_states(self, state: Any) -> bool:
        if self._actors is not None:
            import ray

            try:
                ray.get([actor.set_state.remote(state) for actor in self._actors])
            except ray.exceptions.RayActorError:
                return False
        return True

    def _end_workers(self) -> None:
        if self._actors is not None:
            import ray

            for actor in self._actors:
                ray.kill(actor)
            self._actors = None

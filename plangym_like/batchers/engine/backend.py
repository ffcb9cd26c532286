"""`Backend`: where the workers of a batcher run."""

from __future__ import annotations

from typing import Any

from plangym_like.batchers.engine.local_workers import LocalWorkers
from plangym_like.batchers.engine.process_workers import ProcessWorkers
from plangym_like.batchers.engine.workers import PoolOptions, Workers
from plangym_like.cluster import ray_session
from plangym_like.cluster.sites import check_resources
from plangym_like.errors import InputError
from plangym_like.processes.start_methods import check_start_method

_NAMES = ("process", "ray")


class Backend:
    """Where workers run, as chosen by the user.

    Parameters
    ----------
    name : {"process", "ray"}
        Processes on this machine, or actors on a Ray cluster.
    start_method : {"forkserver", "spawn", "fork"}
        How processes are started; see `plangym_like.ExternalProcess`.
    address, resources, runtime_env
        Options for the Ray cluster and its actors; see `plangym_like.RayEnv`.

    Raises
    ------
    InputError
        `name` or `start_method` is unknown, `name` does not take an option that was given, or
        `resources` is not a dict.
    MissingExtraError
        `name` is ``"ray"``, but Ray is not installed.
    """

    def __init__(
        self,
        name: str = "process",
        *,
        start_method: str = "forkserver",
        address: str | None = None,
        resources: dict[str, Any] | None = None,
        runtime_env: dict[str, Any] | None = None,
    ) -> None:
        if name not in _NAMES:
            raise InputError(f"backend must be one of {', '.join(map(repr, _NAMES))}, got {name!r}")
        check_start_method(start_method)
        cluster: dict[str, Any] = {
            "address": address,
            "resources": resources,
            "runtime_env": runtime_env,
        }
        if name == "ray":
            ray_session.import_ray()
        elif given := [option for option, value in cluster.items() if value is not None]:
            raise InputError(f"only backend='ray' takes {', '.join(given)}, got {name!r}")
        check_resources(resources)
        self._name = name
        self._start_method = start_method
        self._cluster = cluster

    def workers(self, options: PoolOptions) -> Workers:
        """Start workers and return them."""
        if self._name == "ray":
            from plangym_like.batchers.engine.ray_workers import RayWorkers

            return RayWorkers(options, **self._cluster)
        if options.num_workers == 0:
            return LocalWorkers(options)
        return ProcessWorkers(options, self._start_method)

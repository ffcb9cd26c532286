"""Where the workers of a batcher are: what a user says about it."""

from __future__ import annotations

from typing import Any

from plangym_like.batchers.engine.hosts import Host, Staff
from plangym_like.batchers.engine.own_host import OwnHost
from plangym_like.batchers.engine.process_host import ProcessHost
from plangym_like.cluster import ray_session
from plangym_like.cluster.claims import check_resources
from plangym_like.errors import InputError

_NAMES = ("process", "ray")


class Backend:
    """A choice of hosts, checked when it is made.

    Parameters
    ----------
    name : {"process", "ray"}
        Processes of this machine, or actors on a Ray cluster.
    start_method : {"forkserver", "spawn", "fork"}
        Of processes.
    address, resources, runtime_env
        Of actors; see `plangym_like.RayEnv`.

    Raises
    ------
    InputError
        There is no such backend, or the options are another's.
    MissingExtraError
        Ray is not installed.
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
            raise InputError(f"backend is one of {', '.join(map(repr, _NAMES))}, got {name!r}")
        cluster: dict[str, Any] = {
            "address": address,
            "resources": resources,
            "runtime_env": runtime_env,
        }
        if name == "ray":
            ray_session.load()
        elif given := [option for option, value in cluster.items() if value is not None]:
            raise InputError(f"only backend='ray' takes {', '.join(given)}, got {name!r}")
        check_resources(resources)
        self._name = name
        self._start_method = start_method
        self._cluster = cluster

    def host(self, staff: Staff) -> Host:
        """Return the host of `staff`, its workers started."""
        if self._name == "ray":
            from plangym_like.batchers.engine.cluster_host import ClusterHost

            return ClusterHost(staff, **self._cluster)
        if staff.num_workers == 0:
            return OwnHost(staff)
        return ProcessHost(staff, self._start_method)

"""`RaySession`: the connection to Ray that the environments of this process share."""

from __future__ import annotations

import logging
import os
from typing import Any

from plangym_like.errors import InputError, WorkerStartError
from plangym_like.support.fork_safety import new_lock
from plangym_like.support.lazy_imports import needs_extra

# Turn off Ray's output, telemetry and warnings; variables that are already set are not changed.
_QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
}
# The least and most bytes of a local Ray's object store, which otherwise gets 1 / `_STORE_PART` of
# the memory; chunks in transit are small and short-lived.
_LEAST_STORE_NBYTES, _MOST_STORE_NBYTES, _STORE_PART = 1 << 27, 2 << 30, 8

_lock = new_lock()
_current: RaySession | None = None


def import_ray() -> Any:
    """Return the module `ray`.

    Raises
    ------
    MissingExtraError
        Ray is not installed.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    with needs_extra("batches on a cluster need Ray", "ray"):
        import ray  # type: ignore[import-not-found,unused-ignore]
    return ray


class RaySession:
    """A connection to Ray, made by `join`.

    When its last user leaves, a connection that this session made is closed, and a local Ray that
    it started is stopped. Other clusters, and connections that the program made itself, are kept.

    Attributes
    ----------
    started : bool
        Whether this session started a local Ray.
    """

    def __init__(self, address: str | None, object_store_memory: int | None) -> None:
        ray = import_ray()
        self.started = False
        self.users = 0
        self._connected = not ray.is_initialized()
        if not self._connected:
            _check_same(ray, address)
            return
        options: dict[str, Any] = {"address": address or os.environ.get("RAY_ADDRESS") or "local"}
        if options["address"] == "local":
            self.started = True
            options["include_dashboard"] = False
            options["object_store_memory"] = object_store_memory or _store_nbytes()
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, ray.exceptions.RayError) as error:
            raise WorkerStartError(
                f"this program cannot join the Ray cluster at {options['address']}: "
                f"{str(error).splitlines()[0]}. Is Ray running there, in the same version as here? "
                "If it was started with a token (as Ray 2.60 does), copy ~/.ray/auth_token from "
                "its first machine to this one, and set RAY_AUTH_MODE=token before the program "
                "starts"
            ) from error

    def leave(self) -> None:
        """Remove one user; after the last, close the connection if this session made it."""
        global _current
        with _lock:
            self.users -= 1
            if self.users > 0 or self is not _current:
                return
            _current = None
            ray = import_ray()
            if self._connected and ray.is_initialized():
                ray.shutdown()


def join(address: str | None, object_store_memory: int | None = None) -> RaySession:
    """Return the session with Ray; make it if needed. Each user must call `leave` once.

    Parameters
    ----------
    address : str, optional
        The cluster to join. By default the one in ``RAY_ADDRESS``; if that is not set, a local Ray
        is started. A program that is already connected keeps its connection.
    object_store_memory : int, optional
        Size in bytes of the object store, if a local Ray is started.

    Raises
    ------
    InputError
        The program is connected to another cluster.
    WorkerStartError
        The cluster cannot be joined, for example because it requires a token.
    """
    global _current
    with _lock:
        ray = import_ray()
        if _current is None or not ray.is_initialized():
            _current = RaySession(address, object_store_memory)
        else:
            _check_same(ray, address)
        _current.users += 1
        return _current


def _check_same(ray: Any, address: str | None) -> None:
    here = ray.get_runtime_context().gcs_address
    if address is not None and ":" in address and address != here:
        raise InputError(
            f"this program is already connected to the Ray at {here}, so it cannot join {address}: "
            "call ray.shutdown() first, or leave address out"
        )


def _store_nbytes() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 1 << 28
    return max(_LEAST_STORE_NBYTES, min(_MOST_STORE_NBYTES, memory // _STORE_PART))

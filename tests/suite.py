"""What the suites over every backend and family share."""

from __future__ import annotations

import importlib.metadata
import re
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import psutil
import pytest
from comparing import reached, sampler
from gymnasium.envs import registration
from packaging.version import Version


def is_at_least(package: str, version: str) -> bool:
    """Return whether `package` is installed in this version or a newer one."""
    try:
        return Version(importlib.metadata.version(package)) >= Version(version)
    except importlib.metadata.PackageNotFoundError:
        return False


def needs(package: str, version: str) -> pytest.MarkDecorator:
    """Mark a test, or one of its cases, of what older versions of `package` do not have."""
    return pytest.mark.skipif(
        not is_at_least(package, version), reason=f"{package} {version} or newer is needed"
    )


def newest(name: str) -> str:
    """Return the id of the newest version of an environment that Gymnasium has."""
    version = registration.find_highest_version(None, name)
    return f"{name}-v{version}"


# Gymnasium's robots. Version 4 of the pusher needs MuJoCo 2; versions 2 and 3, which Gymnasium 1.1
# still has, need mujoco-py.
ROBOTS = sorted(
    name
    for name, spec in registration.registry.items()
    if str(spec.entry_point).startswith("gymnasium.envs.mujoco.")
    and name.endswith(("-v4", "-v5"))
    and name != "Pusher-v4"
)
_ID = re.compile(r"\b([A-Z]\w*)-v(\d+)\b")


def newer_id(text: str) -> str | None:
    """Return an id in `text` of which Gymnasium has only older versions; ``None`` if there is none.

    Examples in docstrings and pages that mention such an id are skipped.
    """
    for name, version in _ID.findall(text):
        highest = registration.find_highest_version(None, name)
        if highest is not None and int(version) > highest:
            return f"{name}-v{version}"
    return None


# Older versions of Gymnasium have older ones.
TAXI, CLIFF = newest("Taxi"), newest("CliffWalking")


def batch_of(env: Any, count: int, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    """Return actions and reached states; some of the states have ended."""
    space = sampler(env, seed)
    return [space.sample() for _ in range(count)], reached(env, count, seed)


def assert_gone(pids: Iterable[int], *, seconds: float = 100.0) -> None:
    """Check that no process of `pids` lives; a cluster kills them without waiting."""
    left = set(pids)
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        left = {pid for pid in left if psutil.pid_exists(pid)}
        time.sleep(0.02)
    assert not left

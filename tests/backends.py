"""The backends and environments that many tests share."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from playground import AlwaysSend
from small_envs import Nested

import plangym_like

BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "parallel": {"n_workers": 2},
    "isolated": {"n_workers": 2, "isolate": True},
    # All batches go to one actor on another node. It claims no cores, so that many environments
    # share the cluster.
    "ray": {"ray": True, "n_workers": 1, "resources": {"num_cpus": 0, "elsewhere": 0.001}},
}
STORE_NBYTES = 100 << 20
# One environment of each kind.
ATARI = ("ALE/MsPacman-v5", {"obs_type": "ram"})
SUITE: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {}),
    "Pendulum": ("Pendulum-v1", {"remove_time_limit": False}),
    "FrozenLake": ("FrozenLake-v1", {"is_slippery": True}),
    "MsPacman": ATARI,
    "StickyPong": ("ALE/Pong-v5", {"obs_type": "ram", "repeat_action_probability": 0.4}),
    "Nested": (Nested, {}),
}
if importlib.util.find_spec("mujoco"):
    SUITE["Hopper"] = ("Hopper-v5", {"remove_time_limit": False})
RANDOM = ["FrozenLake", "StickyPong", "Nested"]
# What these do is done by others, too.
RARE = ("Pendulum", "MsPacman")
KINDS = [pytest.param(name, marks=[pytest.mark.full] * (name in RARE)) for name in SUITE]
# For what `tests/test_every_backend.py` does not try: copies, images, attributes, the end of an
# environment.
in_workers_too = pytest.mark.parametrize("backend", ["serial", "isolated"], indirect=True)


def make_on(backend: str, name: Any, **kwargs: Any) -> Any:
    """Make an environment on a backend whose workers get their part of every batch."""
    return sending(plangym_like.make(name, **{**BACKENDS[backend], **kwargs}))


def sending(env: Any) -> Any:
    """Return `env`, all its batches of two rows and more sent to workers that are ready."""
    if isinstance(env, plangym_like.RayEnv):
        # As nothing can be stepped here, the first batch waits until an actor is ready.
        env.executor._stepper, env.executor.isolated = None, True
    elif isinstance(env, plangym_like.ParallelEnv):
        env.batch_env.costs = AlwaysSend()
        env.batch_env.pool.wait_ready()
    return env


def add_node(cluster: Any, **more: Any) -> Any:
    """Have one more machine join, as far as Ray can tell."""
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_NBYTES, **more)

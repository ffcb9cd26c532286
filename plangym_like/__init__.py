"""Plan in any Gymnasium environment: save, restore and step it from any state, in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plangym_like.lazy_names import lazy_names

if TYPE_CHECKING:
    from plangym_like.archive.state_archive import StateArchive
    from plangym_like.batch_env import BatchEnv
    from plangym_like.envs.atari import AtariEnv
    from plangym_like.envs.auto_snapshot import AnyEnv
    from plangym_like.envs.box2d import Box2DEnv
    from plangym_like.envs.classic_control import ClassicControlEnv
    from plangym_like.envs.dm_control import DmControlEnv
    from plangym_like.envs.mujoco import MujocoEnv
    from plangym_like.envs.pickled import PickledEnv
    from plangym_like.envs.replayed import ReplayedEnv
    from plangym_like.envs.save_load_env import OwnEnv
    from plangym_like.envs.toy_text import ToyTextEnv
    from plangym_like.future import BatchFuture, Future
    from plangym_like.gym_view import GymView
    from plangym_like.lanes.async_vector_env import AsyncPlanVectorEnv
    from plangym_like.lanes.make_vec import make_vec
    from plangym_like.lanes.vector_env import PlanVectorEnv
    from plangym_like.parallel_env import ParallelEnv
    from plangym_like.plan_env import PlanEnv
    from plangym_like.processes.external_process import ExternalProcess
    from plangym_like.ray_env import RayEnv
    from plangym_like.registry import make, register
    from plangym_like.simulator import Simulator
    from plangym_like.testing.check_env import check_env
    from plangym_like.testing.report import Report
    from plangym_like.transitions import (
        BatchInfo,
        BatchStep,
        BatchTransition,
        ResetObservation,
        ResetResult,
        Rollout,
        Step,
        Transition,
    )

__version__ = "0.1.0"

_PLACES = {
    "AnyEnv": "envs.auto_snapshot",
    "AtariEnv": "envs.atari",
    "Box2DEnv": "envs.box2d",
    "ClassicControlEnv": "envs.classic_control",
    "DmControlEnv": "envs.dm_control",
    "MujocoEnv": "envs.mujoco",
    "OwnEnv": "envs.save_load_env",
    "PickledEnv": "envs.pickled",
    "ReplayedEnv": "envs.replayed",
    "ToyTextEnv": "envs.toy_text",
    "BatchFuture": "future",
    "Future": "future",
    "GymView": "gym_view",
    "AsyncPlanVectorEnv": "lanes.async_vector_env",
    "PlanVectorEnv": "lanes.vector_env",
    "make_vec": "lanes.make_vec",
    "BatchEnv": "batch_env",
    "ExternalProcess": "processes.external_process",
    "ParallelEnv": "parallel_env",
    "PlanEnv": "plan_env",
    "RayEnv": "ray_env",
    "make": "registry",
    "register": "registry",
    "Simulator": "simulator",
    "StateArchive": "archive.state_archive",
    "Report": "testing.report",
    "check_env": "testing.check_env",
    "BatchInfo": "transitions",
    "BatchStep": "transitions",
    "BatchTransition": "transitions",
    "ResetObservation": "transitions",
    "ResetResult": "transitions",
    "Rollout": "transitions",
    "Step": "transitions",
    "Transition": "transitions",
}

__all__ = [
    "AnyEnv",
    "AsyncPlanVectorEnv",
    "AtariEnv",
    "BatchEnv",
    "BatchFuture",
    "BatchInfo",
    "BatchStep",
    "BatchTransition",
    "Box2DEnv",
    "ClassicControlEnv",
    "DmControlEnv",
    "ExternalProcess",
    "Future",
    "GymView",
    "MujocoEnv",
    "OwnEnv",
    "ParallelEnv",
    "PickledEnv",
    "PlanEnv",
    "PlanVectorEnv",
    "RayEnv",
    "ReplayedEnv",
    "Report",
    "ResetObservation",
    "ResetResult",
    "Rollout",
    "Simulator",
    "StateArchive",
    "Step",
    "ToyTextEnv",
    "Transition",
    "check_env",
    "make",
    "make_vec",
    "register",
]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)

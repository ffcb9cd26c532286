"""Plan in any Gymnasium environment: save, restore and step it from any state, in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plangym_like.support.lazy_imports import lazy_names

if TYPE_CHECKING:
    from plangym_like.archive.state_archive import StateArchive
    from plangym_like.batch.simulator import Simulator
    from plangym_like.constructors import BatchEnv, ParallelEnv, RayEnv
    from plangym_like.env import PlanEnv
    from plangym_like.envs.atari import AtariEnv
    from plangym_like.envs.box2d import Box2DEnv
    from plangym_like.envs.classic.env import ClassicControlEnv
    from plangym_like.envs.dm_control import DmControlEnv
    from plangym_like.envs.family_env import AnyEnv
    from plangym_like.envs.mujoco.env import MujocoEnv
    from plangym_like.envs.mujoco.own_model import MujocoModel
    from plangym_like.envs.pickled import PickledEnv
    from plangym_like.envs.replayed import ReplayedEnv
    from plangym_like.envs.save_load_env import OwnEnv
    from plangym_like.envs.toy_text import ToyTextEnv
    from plangym_like.gym_view import GymView
    from plangym_like.processes.external_process import ExternalProcess
    from plangym_like.registry import make, make_mujoco, register
    from plangym_like.results import (
        BatchFuture,
        BatchInfo,
        BatchStep,
        BatchTransition,
        Future,
        ResetObservation,
        ResetResult,
        Rollout,
        Step,
        Transition,
    )
    from plangym_like.testing.check_env import check_env
    from plangym_like.testing.report import Report
    from plangym_like.vector.async_vector_env import AsyncPlanVectorEnv
    from plangym_like.vector.make_vec import make_vec
    from plangym_like.vector.vector_env import PlanVectorEnv

__version__ = "0.1.0"

# Module -> the public names that it defines.
_NAMES = {
    "archive.state_archive": "StateArchive",
    "batch.simulator": "Simulator",
    "constructors": "BatchEnv ParallelEnv RayEnv",
    "env": "PlanEnv",
    "envs.atari": "AtariEnv",
    "envs.box2d": "Box2DEnv",
    "envs.classic.env": "ClassicControlEnv",
    "envs.dm_control": "DmControlEnv",
    "envs.family_env": "AnyEnv",
    "envs.mujoco.env": "MujocoEnv",
    "envs.mujoco.own_model": "MujocoModel",
    "envs.pickled": "PickledEnv",
    "envs.replayed": "ReplayedEnv",
    "envs.save_load_env": "OwnEnv",
    "envs.toy_text": "ToyTextEnv",
    "gym_view": "GymView",
    "processes.external_process": "ExternalProcess",
    "registry": "make make_mujoco register",
    "results": "BatchFuture BatchInfo BatchStep BatchTransition Future "
    "ResetObservation ResetResult Rollout Step Transition",
    "testing.check_env": "check_env",
    "testing.report": "Report",
    "vector.async_vector_env": "AsyncPlanVectorEnv",
    "vector.make_vec": "make_vec",
    "vector.vector_env": "PlanVectorEnv",
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
    "MujocoModel",
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
    "make_mujoco",
    "make_vec",
    "register",
]

__getattr__, __dir__ = lazy_names(
    __name__, {name: module for module, names in _NAMES.items() for name in names.split()}
)

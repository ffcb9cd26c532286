"""Plan in any Gymnasium environment: save, restore and step it from any state, in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plangym_like.support.lazy_imports import lazy_names

if TYPE_CHECKING:
    from plangym_like.archive.state_archive import StateArchive as StateArchive
    from plangym_like.batch.simulator import Simulator as Simulator
    from plangym_like.constructors import BatchEnv as BatchEnv
    from plangym_like.constructors import ParallelEnv as ParallelEnv
    from plangym_like.constructors import RayEnv as RayEnv
    from plangym_like.env import PlanEnv as PlanEnv
    from plangym_like.envs.atari import AtariEnv as AtariEnv
    from plangym_like.envs.box2d import Box2DEnv as Box2DEnv
    from plangym_like.envs.classic.env import ClassicControlEnv as ClassicControlEnv
    from plangym_like.envs.dm_control import DmControlEnv as DmControlEnv
    from plangym_like.envs.family_env import AnyEnv as AnyEnv
    from plangym_like.envs.mujoco.env import MujocoEnv as MujocoEnv
    from plangym_like.envs.mujoco.own_model import MujocoModel as MujocoModel
    from plangym_like.envs.pickled import PickledEnv as PickledEnv
    from plangym_like.envs.replayed import ReplayedEnv as ReplayedEnv
    from plangym_like.envs.save_load_env import OwnEnv as OwnEnv
    from plangym_like.envs.toy_text import ToyTextEnv as ToyTextEnv
    from plangym_like.gym_view import GymView as GymView
    from plangym_like.processes.external_process import ExternalProcess as ExternalProcess
    from plangym_like.registry import make as make
    from plangym_like.registry import make_mujoco as make_mujoco
    from plangym_like.registry import register as register
    from plangym_like.results import BatchFuture as BatchFuture
    from plangym_like.results import BatchInfo as BatchInfo
    from plangym_like.results import BatchStep as BatchStep
    from plangym_like.results import BatchTransition as BatchTransition
    from plangym_like.results import Future as Future
    from plangym_like.results import ResetObservation as ResetObservation
    from plangym_like.results import ResetResult as ResetResult
    from plangym_like.results import Rollout as Rollout
    from plangym_like.results import Step as Step
    from plangym_like.results import Transition as Transition
    from plangym_like.testing.check_env import check_env as check_env
    from plangym_like.testing.report import Report as Report
    from plangym_like.vector.async_vector_env import AsyncPlanVectorEnv as AsyncPlanVectorEnv
    from plangym_like.vector.make_vec import make_vec as make_vec
    from plangym_like.vector.vector_env import PlanVectorEnv as PlanVectorEnv

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

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)

"""The suite of dm_control.

Payload of a row::

    ...         MuJoCo's integration state, the sensors, and those arrays of the *model* that
                episodes change (targets are moved there)
    8 bytes     steps since the episode began
    8 bytes     for each number that the task remembers in attributes
    2512 bytes  the task's random generator
    40 bytes    with wrappers, the generator that they draw from
    ...         the wrappers' memory

Everything that depends on positions and velocities is computed anew after a restore: between two
steps dm_control keeps all that up to date, so it comes out the same.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.chunked_physics import ChunkedPhysics
from plangym_like.envs.dm_control_random import RANDOM_NBYTES, RestorableRandom
from plangym_like.envs.dm_control_suite import SuiteEnv, parse
from plangym_like.envs.dm_control_walker import Walker
from plangym_like.envs.headless import draw_without_a_display
from plangym_like.envs.mujoco_physics import PhysicsMemory, model_arrays, model_digest
from plangym_like.envs.mujoco_robots.agreement import agrees
from plangym_like.envs.mujoco_robots.chunk_stepper import ChunkStepper
from plangym_like.envs.mujoco_robots.robot import Robot
from plangym_like.errors import InputError
from plangym_like.plan_env import PlanEnv
from plangym_like.random_state import (
    GENERATOR_NBYTES,
    load_generator,
    save_generator,
    seeded_generator,
)
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.states import Row

_TRIALS = 3
# Tasks whose observation and reward are worked out for many rows at once.
_FORMS: dict[str, type[Robot]] = {"dm_control.suite.walker.PlanarWalker": Walker}
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


class DmControlSimulator(ChunkedPhysics):
    """One task.

    Parameters
    ----------
    name : str
        ``"walker-walk"`` as in plangym, observed as one vector, or ``"dm_control/walker-walk-v0"``
        as in shimmy, observed as a dict.
    obs_type : {"coords", "dict", "rgb", "grayscale"}, optional
        One vector or a dict, whatever the name says; or pictures.
    env_kwargs
        ``width``, ``height``, ``camera_id`` (of pictures), ``task_kwargs``,
        ``environment_kwargs``, ``visualize_reward``.
    """

    family = "DMCS"
    obs_types = ("coords", "dict", "rgb", "grayscale")
    plain_infos = False

    def __init__(self, name: str, *, remove_time_limit: bool | None = None, **kwargs: Any) -> None:
        self._limited = remove_time_limit is False
        super().__init__(name, remove_time_limit=remove_time_limit, **kwargs)
        self.plain_infos = self.env is not self.base

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Load the task."""
        found = parse(self.name) if isinstance(self.name, str) else None
        if found is None:
            raise InputError(f"{self.name!r} is no name of a task, such as 'walker-walk'")
        domain, task, dicts = found
        self._task_name = f"{domain}-{task}"
        flat = not dicts if self.obs_type is None else self.obs_type != "dict"
        return SuiteEnv(
            domain,
            task,
            flat=flat,
            limited=self._limited,
            render_mode=self.render_mode,
            **self.env_kwargs,
        )

    def prepare(self) -> None:
        """Play the beginnings of some episodes, to see what they change."""
        env: SuiteEnv = self.base
        self._suite, self._task = env.suite_env, env.suite_env.task
        model, data = env.physics.model.ptr, env.physics.data.ptr
        self._model, self._data = model, data
        arrays = model_arrays(model)
        before = {name: array.copy() for name, array in arrays.items()}
        remembered = dict(vars(self._task))
        edited: set[str] = set()
        changed: set[str] = set()
        # A space of the user's own would give every environment the same sequence of actions.
        actions = copy.deepcopy(env.action_space)
        actions.seed(0)
        for seed in range(_TRIALS):
            self.env.reset(seed=seed)
            for _ in range(2):
                self.env.step(np.clip(actions.sample(), -1, 1))
                edited |= {name for name in arrays if (arrays[name] != before[name]).any()}
                now = vars(self._task)
                changed |= {name for name in now if _differs(now[name], remembered.get(name))}
        env.seeded = False
        task = vars(self._task)
        self._numbers: dict[str, slice] = {}
        end = 0
        for name in sorted(name for name in changed if _are_numbers(task[name])):
            self._numbers[name] = slice(end, end + int(np.size(task[name])))
            end = self._numbers[name].stop
        lost = sorted(changed - self._numbers.keys())
        if lost:
            self.exactness = "approximate"
            self.exactness_note = f"the task remembers what no row holds: {', '.join(lost)}"
        carried = {f"model.{name}": arrays[name] for name in sorted(edited)}
        if data.sensordata.size:
            carried["sensordata"] = data.sensordata
        self._edited = tuple(sorted(edited))
        self._physics = PhysicsMemory(model, data, carried)
        self._count_at = self._physics.nbytes
        self._random_at = self._count_at + 8 + 8 * end

    # What is the state

    def base_nbytes(self) -> int:
        """Return the bytes of physics, counter, task and generators."""
        self._wrapped = self.env is not self.base
        return self._random_at + RANDOM_NBYTES + GENERATOR_NBYTES * self._wrapped

    def meaning(self) -> Mapping[str, Any]:
        """Name task, model and versions; how it is observed and drawn has no part in it."""
        drawn = ("width", "height", "camera_id")
        meaning = super().meaning()
        kwargs = {key: value for key, value in meaning["kwargs"].items() if key not in drawn}
        return {
            **meaning,
            "id": self._task_name,
            "kwargs": kwargs,
            "limit": repr(self._suite._step_limit),
            "model": model_digest(self._model, without=self._edited),
            "carried": self._physics.carried,
            "numbers": list(self._numbers),
            "mujoco": mujoco.__version__,
            "dm_control": importlib.metadata.version("dm_control"),
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``qpos``, ``qvel``, ..., ``elapsed_steps``, the task's numbers, ``(N, ...)``."""
        named = self._physics.fields(payloads)
        rest = payloads[:, self._count_at : self._random_at]
        named["elapsed_steps"] = rest[:, :8].view(np.int64)[:, 0]
        numbers = rest[:, 8:].view(np.float64)
        for name, place in self._numbers.items():
            shape = np.shape(getattr(self._task, name))
            named[f"task.{name}"] = numbers[:, place].reshape(len(payloads), *shape)
        return {**named, **self.memory.fields(payloads[:, self._base_nbytes :])}

    def compose(self, payload: Row, **physics: Any) -> None:
        """Put ``qpos=``, ``qvel=`` and other fields of the integration state into `payload`.

        Raises
        ------
        InputError
            A name is unknown, or a value is not finite or of another shape.
        """
        self._physics.compose(payload[: self._physics.nbytes], physics)
        mujoco.mj_step1(self._model, self._data)

    # How is it read

    def read_base(self, payload: Row) -> None:
        """Read physics, counter, task and generators."""
        self._physics.read(payload)
        payload[self._count_at : self._count_at + 8].view(np.int64)[0] = self._suite._step_count
        if self._numbers:
            numbers = payload[self._count_at + 8 : self._random_at].view(np.float64)
            for name, place in self._numbers.items():
                numbers[place] = np.ravel(getattr(self._task, name))
        end = self._random_at + RANDOM_NBYTES
        self.base.random.read(payload[self._random_at : end])
        if self._wrapped:
            memory = save_generator(self.base.np_random)
            payload[end : end + GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Write them, and compute what depends on positions and velocities."""
        self._physics.write(payload)
        mujoco.mj_step1(self._model, self._data)
        self._suite._step_count = int(
            payload[self._count_at : self._count_at + 8].view(np.int64)[0]
        )
        if self._numbers:
            numbers = payload[self._count_at + 8 : self._random_at].view(np.float64)
            for name, place in self._numbers.items():
                old, part = getattr(self._task, name), numbers[place]
                if isinstance(old, np.ndarray):
                    setattr(self._task, name, part.astype(old.dtype).reshape(old.shape))
                else:
                    setattr(self._task, name, type(old)(part[0]))
        end = self._random_at + RANDOM_NBYTES
        self.base.random.write(payload[self._random_at : end])
        if self._wrapped:
            memory = payload[end : end + GENERATOR_NBYTES]
            own = vars(self.base).get("_np_random")
            self.base._np_random = load_generator(memory, own)
        self.base.seeded = True

    def reseed(self, seed: int) -> None:
        """Restart the task's generator, and those of the wrappers."""
        self.base.random.restart(seed)
        self.base._np_random = seeded_generator(seed)
        self.memory.reseed(seed)

    def renew(self) -> None:
        """Have the next episode draw a fresh generator."""
        super().renew()
        self.base.seeded = False

    # How is it stepped

    def _find_stepper(self, kind: str) -> ChunkStepper | None:
        """Return the stepper, once it has given the same bytes as the task itself."""
        form = _FORMS.get(qualified_name(type(self._task)))
        usual = self.base.flat and self._physics_is_usual() and not self._pictures
        if form is None or not usual or self._numbers:
            return None
        assert isinstance(self.frameskip, int)
        stepper = ChunkStepper(
            form(self._suite),
            self._physics,
            self.frameskip,
            self._write_generator,
            elapsed_at=self._count_at,
            limit=lambda: int(np.ceil(min(self._suite._step_limit, 2.0**62))),
        )
        return stepper if agrees(stepper, self, kind) else None

    def _physics_is_usual(self) -> bool:
        runge_kutta = self._model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
        edits = self._edited or self._task.visualize_reward
        return self.base.physics.legacy_step and not runge_kutta and not edits

    def _write_generator(self, payload: Row, seed: int) -> None:
        random = RestorableRandom(np.random.RandomState())
        random.restart(seed)
        random.read(payload[self._random_at : self._random_at + RANDOM_NBYTES])

    # What it looks like

    def image(self) -> NDArray[np.uint8]:
        """Render the current state, on a machine without a display too."""
        draw_without_a_display()
        if "hfield_data" in self._edited and self.render_mode is not None:
            self._upload_terrain()
        return super().image()

    def _upload_terrain(self) -> None:
        """Give the terrain of the current state to the graphics library, which has its own copy."""
        contexts = self.base.physics.contexts
        with contexts.gl.make_current() as context:
            for index in range(self._model.nhfield):
                context.call(mujoco.mjr_uploadHField, self._model, contexts.mujoco.ptr, index)


class DmControlEnv(PlanEnv):
    """A task of dm_control's suite; see `DmControlSimulator` for its options."""

    simulator_class = DmControlSimulator


def _are_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, _NUMBERS)


def _differs(now: Any, before: Any) -> bool:
    if now is before:
        return False
    if isinstance(now, np.ndarray) or isinstance(before, np.ndarray):
        return not np.array_equal(now, before)
    return type(now) is not type(before) or bool(now != before)

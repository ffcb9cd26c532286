"""The tasks of the dm_control suite.

Payload of a row::

    ...         MuJoCo's integration state, sensor data, and the arrays of the *model* that episodes
                change (to move targets)
    8 bytes     steps since the episode began
    8 bytes     for each number that the task keeps in attributes
    2512 bytes  the task's random generator
    40 bytes    the generator that wrappers draw from, if there are wrappers
    ...         the wrappers' state

After a restore, everything that depends on positions and velocities is computed again. dm_control
does the same after every step, so the result is the same.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.codec import Codec
from plangym_like.envs.dm_control_random import RANDOM_NBYTES, RestorableRandom
from plangym_like.envs.dm_control_suite import SuiteEnv, parse
from plangym_like.envs.dm_control_walker import Walker
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.fast_form import FastForm, disagreement
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.headless import draw_without_a_display
from plangym_like.envs.mujoco_physics import PhysicsMemory, model_digest
from plangym_like.envs.mujoco_robots import ChunkStepper, Robot
from plangym_like.envs.mujoco_settings import EditedArrays, ModelSettings, option_settings
from plangym_like.errors import InputError
from plangym_like.snapshots.base_settings import AttributeSettings, ClassSettings, Settings
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.states.rows import Row

_TRIALS = 3
# Tasks whose observation and reward are computed for many rows at once.
_ROBOTS: dict[str, type[Robot]] = {"dm_control.suite.walker.PlanarWalker": Walker}
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
# Options of images, which do not affect the state.
_DRAWN = ("width", "height", "camera_id")


class DmControlCodec(Codec):
    """Saves the physics, step count, numeric attributes and random generator of one task.

    The constructor plays the first steps of some episodes to find out which of the task's
    attributes change.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers.
    task_name : str
        Domain and task, such as ``"walker-walk"``.
    env_kwargs : mapping
        The arguments that `env` was made with.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], task_name: str, env_kwargs: Mapping[str, Any]
    ) -> None:
        base: Any = env.unwrapped
        self._base, self._task_name = base, task_name
        self._env_kwargs = {key: env_kwargs[key] for key in env_kwargs if key not in _DRAWN}
        self.suite, self.task = base.suite_env, base.suite_env.task
        self.model, self._data = base.physics.model.ptr, base.physics.data.ptr
        changed = self._changing = set[str]()
        self._edits = EditedArrays(self.model, self._play(env, changed))
        self.edited = tuple(self._edits.arrays)
        values = {name: getattr(self.task, name) for name in sorted(changed)}
        self.numbers: dict[str, slice] = {}
        end = 0
        for name in (name for name, value in values.items() if _are_numbers(value)):
            self.numbers[name] = slice(end, end + int(np.size(values[name])))
            end = self.numbers[name].stop
        notes = []
        if lost := sorted(changed - self.numbers.keys()):
            notes.append(f"the task keeps attributes that no row holds: {', '.join(lost)}")
        edited = self._edits.arrays
        carried = {f"model.{name}": array for name, array in edited.items()}
        if self._data.sensordata.size:
            carried["sensordata"] = self._data.sensordata
        self.physics = PhysicsMemory(self.model, self._data, carried)
        if self.physics.lost:
            notes.append(self.physics.lost)
        if notes:
            self.exactness, self.exactness_note = "approximate", "; ".join(notes)
        self.count_at = self.physics.nbytes
        self.random_at = self.count_at + 8 + 8 * end
        self.nbytes = self.random_at + RANDOM_NBYTES
        # Wrappers may draw from the environment's generator; the task has its own.
        self.saves_generator = env is not base
        self.columns = None if self.saves_generator else {}

    def _play(self, env: gymnasium.Env[Any, Any], changed: set[str]) -> Iterator[None]:
        """Play some steps; add the names of the task's attributes that change to `changed`.

        Yield after each reset and step.
        """
        remembered = dict(vars(self.task))
        # Sampling from the environment's own space would change its random sequence.
        actions = copy.deepcopy(self._base.action_space)
        actions.seed(0)
        for seed in range(_TRIALS):
            env.reset(seed=seed)
            if not seed:
                # Before any step, which a wrapper may use to change them.
                self._before = AttributeSettings(self.suite, ("_reset_next_step", "_step_count"))
                self._options = option_settings(self.model)
            yield
            for _ in range(2):
                env.step(np.clip(actions.sample(), -1, 1))
                yield
                now = vars(self.task)
                changed |= {name for name in now if _differs(now[name], remembered.get(name))}
        self._base.seeded = False

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the task, model and versions, but no options of observations or images."""
        return {
            "id": self._task_name,
            "kwargs": {k: describe(value) for k, value in sorted(self._env_kwargs.items())},
            "limit": repr(self.suite._step_limit),
            "model": model_digest(self.model, without=self.edited),
            "carried": self.physics.carried,
            "numbers": list(self.numbers),
            "mujoco": mujoco.__version__,
            "dm_control": importlib.metadata.version("dm_control"),
        }

    def settings(self) -> Sequence[Settings]:
        base = self._base
        return (
            AttributeSettings(base, ("random", "seeded")),
            AttributeSettings(self.task, self._changing),
            ModelSettings(self.model, without=self.edited),
            self._before,
            *self._options,
            *map(ClassSettings, (type(base), type(self.task))),
        )

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``qpos``, ``qvel``, ..., ``elapsed_steps`` and the task's numeric attributes.

        The attributes are named ``task.<attribute>``.
        """
        named = self.physics.view(payloads)
        rest = payloads[:, self.count_at : self.random_at]
        named["elapsed_steps"] = rest[:, :8].view(np.int64)[:, 0]
        numbers = rest[:, 8:].view(np.float64)
        for name, place in self.numbers.items():
            shape = np.shape(getattr(self.task, name))
            named[f"task.{name}"] = numbers[:, place].reshape(len(payloads), *shape)
        return named

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write `physics`, fields of the integration state such as ``qpos``, into `payload`."""
        self.physics.build_state(payload[: self.physics.nbytes], physics)
        mujoco.mj_step1(self.model, self._data)

    def read(self, payload: Row) -> None:
        self.physics.read(payload)
        payload[self.count_at : self.count_at + 8].view(np.int64)[0] = self.suite._step_count
        numbers = payload[self.count_at + 8 : self.random_at].view(np.float64)
        for name, place in self.numbers.items():
            numbers[place] = np.ravel(getattr(self.task, name))
        self._base.random.read(payload[self.random_at :])

    def write(self, payload: Row) -> None:
        """Restore the state in `payload`.

        Everything that depends on positions and velocities is computed again.
        """
        self.physics.write(payload)
        mujoco.mj_step1(self.model, self._data)
        count = payload[self.count_at : self.count_at + 8].view(np.int64)[0]
        self.suite._step_count = int(count)
        numbers = payload[self.count_at + 8 : self.random_at].view(np.float64)
        for name, place in self.numbers.items():
            old, part = getattr(self.task, name), numbers[place]
            if isinstance(old, np.ndarray):
                setattr(self.task, name, part.astype(old.dtype).reshape(old.shape))
            else:
                setattr(self.task, name, type(old)(part[0]))
        self._base.random.write(payload[self.random_at :])
        self._base.seeded = True

    def reseed(self, seed: int) -> None:
        self._base.random.restart(seed)

    def renew(self) -> None:
        """Ensure that the next episode begins with a fresh model and random generator."""
        self._edits.restore()
        self._base.seeded = False


class DmControlSimulator(GymnasiumSimulator):
    """A simulator of one task of dm_control's suite.

    Parameters
    ----------
    name : str
        ``"walker-walk"`` as in plangym, observed as one vector, or ``"dm_control/walker-walk-v0"``
        as in shimmy, observed as a dict.
    obs_type : {"coords", "dict", "rgb", "grayscale"}, optional
        One vector, a dict, or images. This option takes precedence over the name.
    env_kwargs
        ``width``, ``height``, ``camera_id`` (of images), ``task_kwargs``, ``environment_kwargs``,
        ``visualize_reward``.
    """

    family = "DMCS"
    fewest_rows = 64  # `benchmarks/lanes.py`
    obs_types = ("coords", "dict", "rgb", "grayscale")
    codec: DmControlCodec

    def __init__(self, name: str, *, remove_time_limit: bool | None = None, **kwargs: Any) -> None:
        self._limited = remove_time_limit is False
        super().__init__(name, remove_time_limit=remove_time_limit, **kwargs)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Load the task, and return it as a Gymnasium environment."""
        found = parse(self.name) if isinstance(self.name, str) else None
        if found is None:
            raise InputError(f"{self.name!r} is not the name of a task, such as 'walker-walk'")
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

    def make_codec(self) -> DmControlCodec:
        """Return the task's codec, after playing some steps to find the attributes that change."""
        return DmControlCodec(self.env, self._task_name, self.env_kwargs)

    def make_fast_form(self, kind: str) -> FastForm | None:
        """Return the stepper for the task's robot if there is one and it agrees with the task.

        Otherwise, return ``None``.
        """
        codec = self.codec
        robot_class = _ROBOTS.get(qualified_name(type(codec.task)))
        usual = self.base.flat and self._physics_is_usual() and self.env is self.base
        if robot_class is None or not usual or codec.numbers:
            return None
        assert isinstance(self.frameskip, int)
        stepper = ChunkStepper(
            robot_class(codec.suite),
            codec.physics,
            self.frameskip,
            self._write_generator,
            elapsed_at=codec.count_at,
            limit=lambda: int(np.ceil(min(codec.suite._step_limit, 2.0**62))),
        )
        return None if disagreement(stepper, self, kind) else stepper

    def _physics_is_usual(self) -> bool:
        runge_kutta = self.codec.model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
        edits = self.codec.edited or self.codec.task.visualize_reward
        more = runge_kutta or edits or not self.codec.physics.is_integration
        return self.base.physics.legacy_step and not more

    def _write_generator(self, payload: Row, seed: int) -> None:
        random = RestorableRandom(np.random.RandomState())
        random.restart(seed)
        begin = self.codec.random_at
        random.read(payload[begin : begin + RANDOM_NBYTES])

    # Images

    def image(self) -> NDArray[np.uint8]:
        """Render the current state; no display is needed."""
        draw_without_a_display()
        if "hfield_data" in self.codec.edited:
            self._upload_terrain()
        return np.asarray(self.env.render())

    def _upload_terrain(self) -> None:
        """Copy the terrain of the current state to the graphics library."""
        contexts, model = self.base.physics.contexts, self.codec.model
        with contexts.gl.make_current() as context:
            for index in range(model.nhfield):
                context.call(mujoco.mjr_uploadHField, model, contexts.mujoco.ptr, index)


class DmControlEnv(FamilyEnv):
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

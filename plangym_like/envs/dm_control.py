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

import contextlib
import importlib.metadata
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.kernel import Kernel
from plangym_like.envs.mujoco.batch import Array, Frames, Look, Robot, RobotKernel
from plangym_like.envs.mujoco.physics import (
    EditedArrays,
    PhysicsCodec,
    begun_episodes,
    model_digest,
)
from plangym_like.envs.mujoco.robots import put_parts
from plangym_like.envs.rendering import draw_without_a_display
from plangym_like.errors import InputError, MissingExtraError
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.states.rows import Row

_SHIMMY = re.compile(r"dm_control/(?P<domain>\w+)-(?P<task>\w+)-v0")
_PLAIN = re.compile(r"(?P<domain>[A-Za-z]\w*)-(?P<task>[A-Za-z]\w*)")
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
# Options of images, which do not affect the state.
_DRAWN = ("width", "height", "camera_id")
_KEY_NBYTES = 4 * 624
_REST = struct.Struct("<iid")
RANDOM_NBYTES = _KEY_NBYTES + _REST.size
# The height above which the walker stands, in metres.
_STAND_HEIGHT = 1.2


def parse(name: str) -> tuple[str, str, bool] | None:
    """Return the domain and task of `name`, and whether its observations are dicts.

    Return ``None`` if `name` does not have the form of a task's name.

    >>> parse("walker-walk"), parse("dm_control/walker-walk-v0")
    (('walker', 'walk', False), ('walker', 'walk', True))
    >>> parse("CartPole-v1")
    """
    dicts = _SHIMMY.fullmatch(name)
    found = dicts or _PLAIN.fullmatch(name)
    if found is None or re.fullmatch(r"v\d+", found["task"]):
        return None
    return found["domain"], found["task"], dicts is not None


def all_ids() -> list[str]:
    """Return the ids of all tasks: first in the form used by plangym, then in shimmy's form.

    Raises `ImportError` if dm_control is not installed.
    """
    tasks = sorted(f"{domain}-{task}" for domain, task in load_suite().ALL_TASKS)
    return [*tasks, *(f"dm_control/{task}-v0" for task in tasks)]


def load_suite() -> Any:
    """Import and return ``dm_control.suite``, set up to render without a display if possible."""
    with contextlib.suppress(MissingExtraError):
        draw_without_a_display()
    from dm_control import suite

    return suite


class SuiteEnv(gymnasium.Env[Any, Any]):
    """One task of the suite as a Gymnasium environment.

    Parameters
    ----------
    domain, task : str
    flat : bool
        Whether the parts of an observation are concatenated into one vector.
    limited : bool
        Whether episodes end at the suite's time limit.
    render_mode : {"rgb_array"}, optional
    width, height : int
        Size of images in pixels.
    camera_id : int or str
    suite_kwargs
        ``task_kwargs``, ``environment_kwargs`` and ``visualize_reward`` of ``suite.load``. By
        default, ``task_kwargs`` has ``"random": 0``, so random models (lqr) are always the same.

    Attributes
    ----------
    suite_env : dm_control.rl.control.Environment
    random : RestorableRandom
    seeded : bool
        Whether the next episode continues from the generator's current state. If not, the generator
        is first seeded with fresh entropy.
    """

    def __init__(
        self,
        domain: str,
        task: str,
        *,
        flat: bool,
        limited: bool,
        render_mode: str | None = None,
        width: int = 320,
        height: int = 240,
        camera_id: int | str = 0,
        task_kwargs: dict[str, Any] | None = None,
        **suite_kwargs: Any,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode must be 'rgb_array' or None, got {render_mode!r}")
        self.metadata = {"render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        self.suite_env = load_suite().load(
            domain, task, task_kwargs={"random": 0, **(task_kwargs or {})}, **suite_kwargs
        )
        if not limited:
            self.suite_env._step_limit = float("inf")
        self._camera_options = {"width": width, "height": height, "camera_id": camera_id}
        self.flat = flat
        self.seeded = False
        self.random = RestorableRandom(self.suite_env.task.random)
        self.suite_env.task._random = self.random
        spec = self.suite_env.action_spec()
        self.action_space = spaces.Box(spec.minimum, spec.maximum, spec.shape, spec.dtype.type)
        parts = self.suite_env.observation_spec()
        if flat:
            size = sum(int(np.prod(part.shape)) for part in parts.values())
            self.observation_space = _unbounded((size,), np.dtype(np.float64))
        else:
            self.observation_space = spaces.Dict(
                {name: _unbounded(part.shape, part.dtype) for name, part in parts.items()}
            )

    @property
    def physics(self) -> Any:
        """The ``Physics`` object of the suite."""
        return self.suite_env.physics

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Seed the task's random generator with `seed`, if given, and start an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.random.seed(seed)
        elif not self.seeded:
            self.random.seed(None)
        self.seeded = True
        return self._observed(self.suite_env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the task, even if the episode has ended (the suite would start another episode)."""
        self.suite_env._reset_next_step = False
        found = self.suite_env.step(action)
        over = found.last()
        obs = self._observed(found.observation)
        ended = bool(over and found.discount == 0.0)
        return obs, float(found.reward), ended, bool(over) and not ended, {}

    def _observed(self, parts: Any) -> Any:
        if not self.flat:
            return {name: np.asarray(part) for name, part in parts.items()}
        return np.concatenate([np.ravel(part) for part in parts.values()])

    def render(self) -> NDArray[np.uint8]:
        """Return the camera image, ``(height, width, 3)``."""
        image: NDArray[np.uint8] = self.physics.render(**self._camera_options)
        return image

    def close(self) -> None:
        """Release the resources used for rendering."""
        self.suite_env.close()


def _unbounded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, dtype.type)


class RestorableRandom:
    """A `numpy.random.RandomState` whose state can be read and written as bytes.

    Tasks of dm_control mostly draw random numbers when an episode begins, and restoring the
    generator costs half as much as a step. So `write` only stores the state, and the generator is
    updated when one of its methods is used.
    """

    def __init__(self, generator: np.random.RandomState) -> None:
        self._generator = generator
        self._written: NDArray[np.uint8] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._written is not None:
            _load(self._generator, self._written)
            self._written = None
        return getattr(self._generator, name)

    def read(self, memory: NDArray[np.uint8]) -> None:
        """Write the generator's state into `memory` ``(RANDOM_NBYTES,)``."""
        if self._written is not None:
            memory[:] = self._written
            return
        state: Any = self._generator.get_state(legacy=False)
        memory[:_KEY_NBYTES] = state["state"]["key"].astype("<u4").view(np.uint8)
        rest = state["state"]["pos"], state["has_gauss"], state["gauss"]
        _REST.pack_into(memory.data, _KEY_NBYTES, *rest)

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Set the generator's state to the one in `memory`."""
        self._written = memory.copy()

    def restart(self, seed: int) -> None:
        """Seed the generator with `seed`, an int of any size."""
        fresh: Any = np.random.MT19937(np.random.SeedSequence(int(seed))).state["state"]
        memory = np.zeros(RANDOM_NBYTES, np.uint8)
        memory[:_KEY_NBYTES] = fresh["key"].astype("<u4").view(np.uint8)
        _REST.pack_into(memory.data, _KEY_NBYTES, int(fresh["pos"]), 0, 0.0)
        self._written = memory


def _load(generator: np.random.RandomState, memory: NDArray[np.uint8]) -> None:
    position, has_gauss, gauss = _REST.unpack_from(memory.data, _KEY_NBYTES)
    key = memory[:_KEY_NBYTES].view("<u4").astype(np.uint32)
    # With a position above 624, NumPy would read outside the key.
    generator.set_state(("MT19937", key, min(max(position, 0), 624), int(has_gauss != 0), gauss))


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
        changed = set[str]()
        self._edits = EditedArrays(self.model, self._play(env, changed))
        self.edited = tuple(self._edits.arrays)
        values = {name: getattr(self.task, name) for name in sorted(changed)}
        self.numbers: dict[str, slice] = {}
        end = 0
        for name in (name for name, value in values.items() if _are_numbers(value)):
            self.numbers[name] = slice(end, end + int(np.size(values[name])))
            end = self.numbers[name].stop
        if lost := ", ".join(sorted(changed - self.numbers.keys())):
            self.exactness = "approximate"
            self.exactness_note = f"the task keeps attributes that no row holds: {lost}"
        edited = self._edits.arrays
        carried = {f"model.{name}": array for name, array in edited.items()}
        if self._data.sensordata.size:
            carried["sensordata"] = self._data.sensordata
        self.physics = PhysicsCodec(self.model, self._data, carried)
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
        for moment in begun_episodes(env):
            yield moment
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
    fewest_rows = 64  # From so many on, rows cost less CPU time stepped together than alone.
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

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel for the task's robot, or ``None`` if there is none."""
        codec = self.codec
        robot_class = _ROBOTS.get(qualified_name(type(codec.task)))
        is_bare = self.base.flat and self.env is self.base
        if robot_class is None or not is_bare or codec.numbers or codec.edited:
            return None
        assert isinstance(self.frameskip, int)
        return RobotKernel(
            robot_class(codec.suite),
            codec.physics,
            self.frameskip,
            self._write_generator,
            elapsed_at=codec.count_at,
            limit=lambda: int(np.ceil(min(codec.suite._step_limit, 2.0**62))),
        )

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


# The walker, whose steps are vectorised. The formulas come from dm_control/suite/walker.py and
# dm_control/utils/rewards.py.


def _advance(model: Any, data: Any, substeps: int) -> None:
    """Run one step of the task, as dm_control does.

    The first substep has already begun. Finish it, run the others, and begin the next step's first.
    """
    mujoco.mj_step2(model, data)
    if substeps > 1:
        mujoco.mj_step(model, data, substeps - 1)
    mujoco.mj_step1(model, data)


class Walker(Robot):
    """The planar walker; `env` is dm_control's own environment."""

    advance, stage = staticmethod(_advance), None
    refresh = staticmethod(mujoco.mj_step1)

    def simulation(self) -> tuple[Any, Any, int]:
        physics = self.env.physics
        return physics.model.ptr, physics.data.ptr, self.env._n_sub_steps

    def recorded(self) -> dict[str, Array]:
        data = self.env.physics.data.ptr
        torso = self.env.physics.model.name2id("torso", "body")
        sensor = self.env.physics.model.ptr.sensor("torso_subtreelinvel")
        return {
            "xmat": data.xmat,
            "torso": data.xpos[torso],
            "upright": data.xmat[torso, 8:],
            "speed": data.sensordata[int(sensor.adr[0]) :][:1],
        }

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        standing = _near(frames.after("torso")[..., 2], _STAND_HEIGHT)
        upright = (1 + frames.after("upright")[..., 0]) / 2
        reward = (3 * standing + upright) / 4
        wanted = self.env.task._move_speed
        if wanted != 0:
            moving = _along(frames.after("speed")[..., 0], wanted)
            reward = reward * (5 * moving + 1) / 6
        return reward, False, {}

    def observe(self, look: Look, out: Array) -> None:
        places = look("xmat")[..., 1:, [0, 2]]
        turned = places.reshape(*places.shape[:-2], -1)
        put_parts(out, turned, look("torso")[..., 2:], look("qvel"))


def _near(values: Array, least: float) -> Array:
    """Return ``tolerance(values, (least, inf), margin=least / 2)``; squares use libm's ``pow``."""
    gap = np.where(values < least, least - values, values - np.inf) / (least / 2)
    scaled = gap * np.sqrt(-2 * np.log(0.1))
    return np.where(least <= values, 1.0, np.exp(-0.5 * np.float_power(scaled, 2.0)))


def _along(values: Array, least: float) -> Array:
    """Return what `dm_control.utils.rewards.tolerance` returns for values of at least `least`.

    The other arguments are ``margin=least / 2, sigmoid="linear", value_at_margin=0.5``.
    """
    gap = np.where(values < least, least - values, values - np.inf) / (least / 2)
    scaled = gap * 0.5
    return np.where(least <= values, 1.0, np.where(np.abs(scaled) < 1, 1 - scaled, 0.0))


# Tasks whose observation and reward are computed for many rows at once.
_ROBOTS: dict[str, type[Robot]] = {"dm_control.suite.walker.PlanarWalker": Walker}

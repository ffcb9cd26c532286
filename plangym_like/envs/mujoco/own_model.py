"""`MujocoModel`: an environment made from a MuJoCo model and vectorised functions.

It holds the model and the functions, and makes a `ModelEnv`. `ModelRobot` steps blocks of its
rows. The functions are called with the `BatchData` of `BLOCK` simulations; if there are fewer, the
last one is repeated. NumPy and BLAS may round a row differently if its place in an array or the
array's shape differs. So the functions are tried with equal rows in all places when the environment
is made; if the results differ, they are called for one simulation at a time.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv as GymnasiumMujocoEnv
from numpy.typing import ArrayLike, NDArray

from plangym_like.batch.simulator import EnvSource
from plangym_like.envs.mujoco.batch import Array, Frames, Look, Robot
from plangym_like.envs.mujoco.env import MujocoEnv, MujocoSimulator
from plangym_like.envs.mujoco.physics import PARTS, with_fields
from plangym_like.errors import EnvApiError, InputError
from plangym_like.snapshots.differences import difference
from plangym_like.support.arguments import as_count

logger = logging.getLogger("plangym_like")
BLOCK = 64
# How many states the functions are tried with, and for how many simulation steps in between.
_TRIED_STATES, _STEPS_BETWEEN = 3, 7
_BODY = "xpos xquat xmat xipos ximat cvel cinert subtree_com xfrc_applied"
_JOINT = "qfrc_actuator qfrc_applied qfrc_bias qfrc_constraint qfrc_passive xanchor xaxis"
# Kind of object -> the prefix of its arrays in MjData, and its data.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "body": ("", tuple(_BODY.split())),
    "geom": ("geom_", ("xpos", "xmat")),
    "site": ("site_", ("xpos", "xmat")),
    "camera": ("cam_", ("xpos", "xmat")),
    "tendon": ("ten_", ("length", "velocity")),
    "actuator": ("actuator_", ("ctrl", "force", "length", "velocity")),
    "joint": ("", ("qpos", "qvel", "qacc", *_JOINT.split())),
    "sensor": ("", ("data",)),
}
# What every step computes from the state. MuJoCo computes other arrays only if something needs
# them, or leaves values of other states in their unused parts.
_DERIVED = """
xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos
cam_xmat light_xpos light_xdir subtree_com cdof cinert ten_length ten_velocity actuator_length
actuator_velocity actuator_force act_dot cvel cdof_dot qacc qacc_smooth qfrc_bias qfrc_passive
qfrc_spring qfrc_damper qfrc_gravcomp qfrc_fluid qfrc_actuator qfrc_smooth qfrc_constraint
sensordata
"""
# The number of positions and of degrees of freedom of each type of joint: free, ball, slide, hinge.
_WIDTHS = ((7, 6), (4, 3), (1, 1), (1, 1))

Vectorised = Callable[["BatchData"], ArrayLike]


class BatchData:
    """The data of N simulations, by the names that they have in ``mujoco.MjData``.

    Positions, velocities and everything that MuJoCo computes from them are those of the new state.
    Accelerations and forces, and sensors for these, are those of the last substep, as after
    ``Physics.step`` of dm_control.

    - ``data.qpos`` ``(N, nq)``, ``data.qvel`` ``(N, nv)``, ``data.ctrl`` ``(N, nu)``, ``data.time``
      ``(N,)``, ``data.sensordata``, ``data.xpos`` ``(N, nbody, 3)``, and so on
    - ``data.body("torso").xpos`` ``(N, 3)``, by a name or number, and in the same way ``geom``,
      ``site``, ``camera``, ``tendon`` and ``actuator``
    - ``data.joint("hip").qpos`` and ``.qvel``, ``(N, k)``; ``data.sensor("gyro").data`` ``(N, k)``
    - ``data.model``: the ``mujoco.MjModel``

    Arrays are read-only, and numbers have double precision. Arrays that MuJoCo computes only for
    sensors, such as ``subtree_linvel`` and ``cfrc_ext``, are not among them: add a sensor, and read
    ``data.sensor(name).data``.
    """

    def __init__(self, model: Any, look: Callable[[str], Array]) -> None:
        self.model, self._look = model, look

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(Named, self, name) if name in _KINDS else self._look(name)


class Named:
    """The data of one body, geom, joint, ... in N simulations; see `BatchData`."""

    def __init__(self, data: BatchData, kind: str, key: str | int) -> None:
        self._data, self._kind = data, kind
        self._at = _number(data.model, kind, key)

    @property
    def id(self) -> int:
        """The number of the object."""
        return self._at

    def __getattr__(self, name: str) -> Any:
        kind, (prefix, known) = self._kind, _KINDS[self._kind]
        if name not in known:
            raise AttributeError(f"a {kind} has {', '.join(known)} here, not {name!r}")
        data, model, at = self._data, self._data.model, self._at
        if kind == "sensor":
            begin = int(model.sensor_adr[at])
            return data.sensordata[:, begin : begin + int(model.sensor_dim[at])]
        if kind == "joint" and name.startswith("q"):
            positions, freedoms = _WIDTHS[int(model.jnt_type[at])]
            is_position = name == "qpos"
            begin = int((model.jnt_qposadr if is_position else model.jnt_dofadr)[at])
            width = positions if is_position else freedoms
            return getattr(data, name)[:, begin : begin + width]
        return getattr(data, name if name == "ctrl" else prefix + name)[:, at]


def _number(model: Any, kind: str, key: str | int) -> int:
    """Return the number of an object, by its name or number."""
    try:
        return int(getattr(model, kind)(key).id)
    except (KeyError, IndexError) as error:
        raise InputError(f"the model has no {kind} {key!r}: {error.args[0]}") from error


class MujocoModel(EnvSource):
    """A MuJoCo model with a reward; calling it returns a new Gymnasium environment.

    `make`, `make_vec` and all classes of environments take it in the place of an id. `make_mujoco`
    makes both this and its environment, and documents the parameters.
    """

    family = "mujoco.own_model:MujocoModelEnv"

    def __init__(
        self,
        model: Any,
        *,
        reward: Vectorised,
        observation: Vectorised | None = None,
        terminated: Vectorised | None = None,
        n_substeps: int = 1,
        reset: int | str | Callable[[Any, np.random.Generator], object] | None = None,
        control_range: tuple[ArrayLike, ArrayLike] | None = None,
        fields: Sequence[str] = (),
        models: Sequence[Any] | Mapping[str, ArrayLike] = (),
    ) -> None:
        self.model = as_model(model)
        self.versions = self._versions(models)
        functions = {"reward": reward, "observation": observation, "terminated": terminated}
        for name, function in functions.items():
            if not callable(function) and (function is not None or name == "reward"):
                raise InputError(f"{name} must be a function of the data, got {function!r}")
        self.reward, self.observation, self.terminated = reward, observation, terminated
        self.n_substeps, self.reset = as_count("n_substeps", n_substeps), reset
        self.keyframe = self._keyframe(reset)
        self.low, self.high = self._bounds(control_range)
        known = _readable(mujoco.MjData(self.model))
        if unknown := [name for name in fields if name not in known]:
            raise InputError(f"fields must be arrays of MjData, got {unknown[0]!r}")
        self.fields = tuple(fields)
        self.__name__ = self.model.names.split(b"\0")[0].decode() or "MuJoCo model"

    def _versions(self, models: Any) -> list[Any]:
        """Return the other versions of the model."""
        if isinstance(models, Mapping):
            return with_fields(self.model, models)
        if isinstance(models, str) or not isinstance(models, Iterable):
            raise InputError(f"models must be a sequence of models, or a dict, got {models!r}")
        versions = [as_model(version) for version in models]
        for version in versions:
            if found := difference(_sizes(self.model), _sizes(version), "model"):
                raise InputError(f"models must differ in numbers only; {found[0]} is {found[1]}")
        return versions

    def _keyframe(self, reset: Any) -> int | None:
        """Return the number of the keyframe where episodes begin, if `reset` names one."""
        if reset is None or callable(reset):
            return None
        try:
            return int(self.model.key(reset).id)
        except (KeyError, IndexError, TypeError) as error:
            raise InputError(
                "reset must be a keyframe of the model, or a function of (data, random generator); "
                f"got {reset!r}: {error.args[0]}"
            ) from error

    def _bounds(self, control_range: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if control_range is not None:
            shape = (self.model.nu,)
            try:
                low, high = (np.broadcast_to(np.asarray(x, float), shape) for x in control_range)
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"control_range must be a pair (low, high) of numbers or arrays of shape "
                    f"{shape}, got {control_range!r}"
                ) from error
            if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
                raise InputError(f"control_range must be finite, with low <= high, got {low, high}")
            return low.copy(), high.copy()
        limited = self.model.actuator_ctrllimited.astype(bool)
        low, high = self.model.actuator_ctrlrange.T
        return np.where(limited, low, -np.inf), np.where(limited, high, np.inf)

    def __call__(
        self,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
        camera_id: int | None = None,
        camera_name: str | None = None,
    ) -> ModelEnv:
        """Return a new environment; the arguments are those of its images."""
        camera = {"camera_id": camera_id, "camera_name": camera_name}
        return ModelEnv(self, render_mode=render_mode, width=width, height=height, **camera)


def as_model(model: Any) -> Any:
    """Return a compiled model, given one, or an ``MjSpec``, XML text, or the path of a file.

    Raises
    ------
    InputError
        `model` is something else, or MuJoCo cannot load it.
    """
    try:
        if isinstance(model, mujoco.MjModel):
            return copy.copy(model)
        if isinstance(model, mujoco.MjSpec):
            return model.compile()
        if isinstance(model, str) and model.lstrip().startswith("<"):
            return mujoco.MjModel.from_xml_string(model)
        if isinstance(model, str | os.PathLike):
            path = os.fspath(model)
            if path.endswith(".mjb"):
                return mujoco.MjModel.from_binary_path(path)
            return mujoco.MjModel.from_xml_path(path)
    except (ValueError, mujoco.FatalError) as error:
        raise InputError(f"MuJoCo cannot load the model: {error}") from error
    if isinstance(model, MujocoModel):
        raise InputError("model is a MujocoModel, which has a reward already: give it to make")
    raise InputError(
        f"model must be an MjModel, an MjSpec, XML text or the path of a file, got {model!r}"
    )


def _sizes(model: Any) -> dict[str, int]:
    """Return the sizes of a model, on which the layout of its data depends."""
    names = [name for name in dir(model) if name.startswith("n")]
    return {name: size for name in names if isinstance(size := getattr(model, name), int)}


def _readable(data: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that functions may read, by name."""
    names = [name for name in (*PARTS, *_DERIVED.split()) if hasattr(data, name)]
    return {name: np.shape(getattr(data, name)) for name in names}


class ModelRobot(Robot):
    """The step of a `ModelEnv` for many rows."""

    env: ModelEnv

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.advance, self.versions = advance(env), env.versions
        if env.reads_derived:
            self.stage = int(mujoco.mjtStage.mjSTAGE_VEL)

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"model": env.version} if env.versions else {}

    def recorded(self) -> dict[str, Array]:
        names = [name for name, shape in self.env.fields.items() if 0 not in shape]
        return {name: getattr(self.env.data, name) for name in names if name not in PARTS}

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        shape = frames.actions.shape[:2]
        rewards, ended = self.env.evaluate(self._flat(frames.after, shape))
        return rewards.reshape(shape), False if ended is None else ended.reshape(shape), {}

    def observe(self, look: Look, out: Array) -> None:
        shape = out.shape[: out.ndim - len(self.env.observation_space.shape or ())]
        out[...] = self.env.observe(self._flat(look, shape)).reshape(out.shape)

    def _flat(self, look: Look, lead: tuple[int, ...]) -> Look:
        """Return a function that returns the arrays of `look` ``(*lead, ...)`` as ``(N, ...)``."""
        shapes, count = self.env.fields, int(np.prod(lead))

        def flat(name: str) -> Array:
            shape = shapes[name]
            if 0 in shape:  # it is not recorded
                return np.empty((count, *shape))
            return look(name).reshape(count, *shape)

        return flat


class ModelEnv(GymnasiumMujocoEnv):
    """The Gymnasium environment of a `MujocoModel`.

    Attributes
    ----------
    fields : dict of str to shape
        The arrays that the functions read.
    reads_derived : bool
        Whether some of them are computed from the state, and therefore have to be brought up to
        date after each step.
    versions : list of MjModel
        The versions of the model that `make_mujoco` got; empty if there is only one.
    version : array ``() float64``
        The number of the current version.
    """

    def __init__(self, source: MujocoModel, **kwargs: Any) -> None:
        self.source = source
        dt = source.model.opt.timestep * source.n_substeps
        self.metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"]}
        if frames := int(np.round(1 / dt)):
            self.metadata["render_fps"] = frames
        self.version = np.zeros(())
        # The base class wants the path of a file; `_initialize_simulation` does not use it.
        super().__init__(os.path.abspath(__file__), source.n_substeps, None, **kwargs)
        mujoco.mj_forward(self.model, self.data)
        self.versions = [self.model, *source.versions] if source.versions else []
        self._known = _readable(self.data)
        self.fields: dict[str, tuple[int, ...]] = {}
        self.reads_derived = False
        self._learn_fields()

    def _initialize_simulation(self) -> tuple[Any, Any]:
        model = copy.copy(self.source.model)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def _set_action_space(self) -> gymnasium.Space[Any]:
        self.action_space = gymnasium.spaces.Box(self.source.low, self.source.high, dtype=float)
        return self.action_space

    def _learn_fields(self) -> None:
        """Try the functions; note which arrays they read, and check what they return.

        They are called with blocks of equal rows, in some states of an episode of their own.
        """
        read, ignore_places = dict.fromkeys(("time", *self.source.fields)), True
        for number, data in enumerate(self._tried_states()):
            batch = BatchData(self.model, partial(self._noted, read, data))
            results = self._observation(batch, BLOCK), self._rewards(batch, BLOCK)
            self._ended(batch, BLOCK)
            if not number:
                shape, dtype = results[0].shape[1:], results[0].dtype
            for found in results:
                ignore_places &= found.tobytes() == found[:1].tobytes() * BLOCK
        self.fields = {name: self._known[name] for name in read}
        self.reads_derived = any(name not in PARTS for name in self.fields)
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, shape, np.float32 if dtype == np.float32 else np.float64
        )
        self._block = BLOCK if ignore_places else 1
        if not ignore_places:
            logger.info(
                "%s: the functions round a simulation differently in other places of an array, so "
                "they are called for one at a time, which is slower",
                self.source.__name__,
            )

    def _noted(self, read: dict[str, None], data: Any, name: str) -> Array:
        """Return a block of an array of `data`, and note in `read` that it was read."""
        if name not in self._known:
            raise AttributeError(_unknown(name))
        read[name] = None
        return _block(_row_of(data, name), BLOCK)

    def _tried_states(self) -> Iterator[Any]:
        """Yield the data of the first state, and of some later ones."""
        data, rng = mujoco.MjData(self.model), np.random.default_rng(0)
        if self.source.keyframe is not None:
            mujoco.mj_resetDataKeyframe(self.model, data, self.source.keyframe)
        mujoco.mj_forward(self.model, data)
        low, high = np.maximum(self.source.low, -1.0), np.minimum(self.source.high, 1.0)
        for _ in range(_TRIED_STATES):
            yield data
            data.ctrl[:] = rng.uniform(np.minimum(low, high), np.maximum(low, high))
            mujoco.mj_step(self.model, data, _STEPS_BETWEEN)
            mujoco.mj_step1(self.model, data)
        yield data

    # The functions, for one block of `count` simulations

    def _observation(self, data: BatchData, count: int) -> Array:
        if self.source.observation is None:
            return self._positions_and_speeds(partial(getattr, data))
        found = np.asarray(self.source.observation(data))
        if found.ndim < 2 or len(found) != count or found.dtype.kind not in "fiub":
            raise EnvApiError(
                "observation must return numbers of shape (N, ...), one row for each simulation; "
                f"for N = {count}, it returned {found.dtype} of shape {found.shape}"
            )
        return found

    def _positions_and_speeds(self, look: Look) -> Array:
        """Return the observations if the user gives no function."""
        names = ("qpos", "qvel", "act") if self.model.na else ("qpos", "qvel")
        return np.concatenate([look(name) for name in names], axis=1)

    def _rewards(self, data: BatchData, count: int) -> NDArray[np.float64]:
        return self._vector(self.source.reward(data), "reward", count).astype(np.float64)

    def _ended(self, data: BatchData, count: int) -> NDArray[np.bool_] | None:
        if self.source.terminated is None:
            return None
        found = self._vector(self.source.terminated(data), "terminated", count)
        if found.dtype.kind != "b":
            raise EnvApiError(f"terminated must return true or false values, got {found.dtype}")
        return found

    def _vector(self, returned: Any, name: str, count: int) -> Array:
        found = np.asarray(returned)
        if found.shape != (count,) or found.dtype.kind not in "fiub":
            raise EnvApiError(
                f"{name} must return one number for each simulation, of shape (N,); for "
                f"N = {count}, it returned {found.dtype} of shape {found.shape}"
            )
        return found

    # The functions, for any number of simulations

    def evaluate(self, look: Look) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        """Return the rewards ``(N,)`` and the terminated flags, if episodes can end."""
        rewards, flags = [], []
        for data, count in self._blocks(look):
            rewards.append(self._rewards(data, self._block)[:count])
            ended = self._ended(data, self._block)
            if ended is not None:
                flags.append(ended[:count].copy())  # a function may use its memory again
        return np.concatenate(rewards), np.concatenate(flags) if flags else None

    def observe(self, look: Look) -> Array:
        """Return the observations ``(N, ...)``."""
        space, found = self.observation_space, list[Array]()
        assert space.dtype is not None
        if self.source.observation is None:
            return self._positions_and_speeds(look)
        for data, count in self._blocks(look):
            part = self._observation(data, self._block)
            if part.shape[1:] != space.shape or not np.can_cast(part.dtype, space.dtype):
                raise EnvApiError(
                    f"observation returned {part.dtype} of shape {part.shape[1:]} for each "
                    f"simulation; when it was first called, it was {space.dtype} of {space.shape}"
                )
            found.append(part[:count].astype(space.dtype))
        return np.concatenate(found)

    def _blocks(self, look: Look) -> Iterator[tuple[BatchData, int]]:
        """Yield the data of each block, and the number of its simulations that are asked for.

        ``look(name)`` returns an array ``(N, ...)``.
        """
        count, size = len(look("time")), self._block
        copied = _copies(look, self.fields, -(-count // size) * size)
        for begin in range(0, count, size):
            block = slice(begin, begin + size)
            yield BatchData(self.model, partial(_part, copied, block)), min(size, count - begin)

    # Gymnasium's interface

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Hold `action` for `n_substeps` steps of the simulation."""
        self.data.ctrl[:] = action
        model = self.versions[int(self.version)] if self.versions else self.model
        advance(self)(model, self.data, self.frame_skip)
        rewards, ended = self.evaluate(self._current)
        if self.render_mode == "human":
            self.mujoco_renderer.render("human")
        return self._get_obs(), float(rewards[0]), ended is not None and bool(ended[0]), False, {}

    def reset_model(self) -> Array:
        """Begin an episode; see `make_mujoco`."""
        if self.versions:
            self.version[...] = self.np_random.integers(len(self.versions))
        if self.source.keyframe is not None:
            mujoco.mj_resetDataKeyframe(self.model, self.data, self.source.keyframe)
        elif callable(self.source.reset):
            self.source.reset(self.data, self.np_random)
        mujoco.mj_forward(self.model, self.data)
        return self._get_obs()

    def _get_obs(self) -> Array:
        found: Array = self.observe(self._current)[0]
        return found

    def _current(self, name: str) -> Array:
        return _row_of(self.data, name)


def _copies(look: Look, names: Container[str], size: int) -> Look:
    """Return a function that returns a copy with `size` rows of one of the arrays of `look`."""

    copies: dict[str, Array] = {}

    def copied(name: str) -> Array:
        if name not in names:
            raise AttributeError(
                f"the functions read data.{name} now, but they did not when they were first "
                f"called: add fields=[{name!r}] to the arguments"
            )
        if name not in copies:
            copies[name] = _block(look(name), size)
        return copies[name]

    return copied


def _part(look: Look, block: slice, name: str) -> Array:
    return look(name)[block]


def _unknown(name: str) -> str:
    """Return the message for an array that functions cannot read."""
    if hasattr(mujoco.MjData, name):
        return (
            f"data.{name} cannot be read, because not every step computes it; if a sensor measures "
            "it, add the sensor to the model, and read data.sensor(name).data"
        )
    return (
        f"data has no {name!r}: it has arrays of MjData, such as qpos, qvel, ctrl, sensordata and "
        "xpos, and body(), geom(), site(), camera(), joint(), tendon(), actuator() and sensor()"
    )


def _row_of(data: Any, name: str) -> Array:
    """Return an array of one simulation, ``(1, ...)``, with double precision."""
    return np.asarray(getattr(data, name), np.float64)[None]


def _block(rows: Array, size: int) -> Array:
    """Return a read-only copy of `rows` ``(N, ...)``, with `size` rows; the last is repeated."""
    block = np.empty((size, *rows.shape[1:]), rows.dtype)
    block[: len(rows)], block[len(rows) :] = rows, rows[-1]
    block.flags.writeable = False
    return block


def advance(env: ModelEnv) -> Callable[[Any, Any, int], None]:
    """Return the function that simulates one step of `env`."""
    return _advance_and_derive if env.reads_derived else mujoco.mj_step


def _advance_and_derive(model: Any, data: Any, substeps: int) -> None:
    """Simulate; then compute positions and velocities of bodies, sites, ... in the new state."""
    mujoco.mj_step(model, data, substeps)
    mujoco.mj_step1(model, data)


class ModelSimulator(MujocoSimulator):
    """A simulator of a `MujocoModel`."""

    def robot_class(self, base: Any) -> type[Robot]:
        return ModelRobot

    @property
    def _edits_model(self) -> bool:
        # A function that begins episodes may change the model, if there is only one.
        source = self.base.source
        return (callable(source.reset) and not source.versions) or super()._edits_model


class MujocoModelEnv(MujocoEnv):
    """A `PlanEnv` of a `MujocoModel`; see `plangym_like.make_mujoco`."""

    simulator_class = ModelSimulator

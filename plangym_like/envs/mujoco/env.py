"""Gymnasium's MuJoCo robots, versions 4 and 5.

Payload of a row::

    ...         MuJoCo's integration state, float64
    ...         the arrays that the robot's ``step`` reads before it simulates (Ant's torso
                position, ...); with ``render_mode="rgb_array"``, the data that images are rendered
                from
    40 bytes    the random generator
    ...         the wrappers' state

If there are no wrappers except a time limit and those of `envs.transforms`, whole blocks of rows
are stepped at once: the simulation runs row by row, but Gymnasium's computations around it are
vectorised. The results are the same.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Mapping
from typing import Any, Self

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome
from plangym_like.batch.ownership import owned, owned_info
from plangym_like.envs import rendering
from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.kernel import Kernel, trial_actions
from plangym_like.envs.mujoco.batch import Robot, RobotKernel
from plangym_like.envs.mujoco.physics import (
    INTEGRATION,
    EditedArrays,
    PhysicsCodec,
    begun_episodes,
    drawn,
    model_digest,
)
from plangym_like.envs.mujoco.robots import robot_for
from plangym_like.envs.rendering import draw_without_a_display
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.known_wrappers import foreign_wrappers
from plangym_like.states.random_state import GENERATOR_NBYTES, save_generator, seeded_generator
from plangym_like.states.rows import HEADER_NBYTES, Row

logger = logging.getLogger("plangym_like")


class MujocoCodec(PhysicsCodec, Codec):
    """Saves the physics of a robot, and the arrays that its ``step`` reads before it simulates.

    After `write`, the next step computes everything else. The fields that `build_state` takes, such
    as ``qpos`` and ``qvel``, are in MuJoCo's order and units, as in ``env.unwrapped.set_state``.

    Parameters
    ----------
    base : gymnasium.envs.mujoco.MujocoEnv
        The robot, reset at least once.
    robot_class : type of Robot
        The vectorised step of the robot's class.
    images : bool
        Whether states hold the data that images are rendered from.
    edited : EditedArrays, optional
        The arrays of the model that wrappers change.

    Attributes
    ----------
    robot : Robot
    info_types : dict of str to type
        The type of each info as the environment returns it.
    """

    def __init__(
        self,
        base: Any,
        robot_class: type[Robot],
        *,
        images: bool,
        edited: EditedArrays | None = None,
    ) -> None:
        self._base, self._edited = base, edited
        edited_arrays = {} if edited is None else edited.arrays
        self.robot = robot_class(base)
        carried = dict(robot_class.carried(base))
        if images:
            carried = {**drawn(base.data), **carried}
        carried = {**carried, **{f"model.{name}": edited_arrays[name] for name in edited_arrays}}
        super().__init__(base.model, base.data, carried, len(self.robot.versions))
        self._find_columns()

    @property
    def edits_model(self) -> bool:
        """Whether rows hold arrays of the model."""
        return bool(self._edited_names)

    @property
    def _edited_names(self) -> tuple[str, ...]:
        return () if self._edited is None else tuple(self._edited.arrays)

    def renew(self) -> None:
        """Set the arrays that wrappers change to what they were before the first reset."""
        if self._edited is not None:
            self._edited.restore()

    def _find_columns(self) -> None:
        """Find out which infos every step returns, by taking one step and undoing it.

        The action of this step has double precision, so that the columns can hold infos for actions
        of any precision.
        """
        memory = np.zeros(self.nbytes, np.uint8)
        self.read(memory)
        info = self._base.step(trial_actions(self._base.action_space, "d")[0])[4]
        self.write(memory)
        self.info_types = {name: type(value) for name, value in info.items()}
        self.robot.info_names = tuple(info)
        arrays = {name: np.asarray(value) for name, value in info.items()}
        self.columns = {name: (array.shape, array.dtype) for name, array in arrays.items()}

    def fingerprint_fields(self) -> Mapping[str, Any]:
        return {
            "class": qualified_name(type(self._base)),
            "model": model_digest(self._base.model, without=self._edited_names),
            "carried": self.carried,
            "versions": list(map(model_digest, self.robot.versions)),
            "mujoco": mujoco.__version__,
        }


class MujocoSimulator(GymnasiumSimulator):
    """A simulator of one robot.

    `make_state` takes ``qpos``, ``qvel`` and the other parts of MuJoCo's integration state
    (``act``, ``time``, ``qacc_warmstart``, ``qfrc_applied``, ``xfrc_applied``, ``eq_active``, ...),
    and ``elapsed_steps`` if there is a time limit.
    """

    family = "MUJO"
    other_ways = ("replay",)
    fewest_rows = 256  # From so many on, rows cost less CPU time stepped together than alone.
    codec: MujocoCodec
    # Finalizers that free the memory used for rendering; ``None`` before the first image.
    _frees: list[weakref.finalize[..., Any]] | None = None

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Make the robot; MuJoCo's warnings about Gymnasium's own models are only logged."""
        if "xml_file" in self.env_kwargs or callable(self.name):
            env = super().make_env()
            self._declare_observations(env.unwrapped)
            return env
        usual = mujoco.get_mju_user_warning()
        # Otherwise every worker would print them and write them to a file in the current directory.
        mujoco.set_mju_user_warning(lambda message: logger.info("MuJoCo: %s", message))
        try:
            return super().make_env()
        finally:
            mujoco.set_mju_user_warning(usual)

    def robot_class(self, base: Any) -> type[Robot] | None:
        """Return the vectorised step of `base`, or ``None`` if there is none."""
        return robot_for(base)

    def _declare_observations(self, base: Any) -> None:
        """Correct the observation space of the robot `base`.

        Gymnasium's pendulums and Reacher declare the shape of their own model's observations, even
        if the user's model has more joints.
        """
        if self.robot_class(base) is None:
            return
        shape, declared = np.shape(base._get_obs()), base.observation_space
        if shape != declared.shape:
            base.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, declared.dtype)

    @property
    def _edits_model(self) -> bool:
        """Whether resets or wrappers may change the model."""
        return bool(foreign_wrappers(self.env))

    def make_codec(self) -> MujocoCodec:
        """Reset the robot, and return its codec.

        Raises
        ------
        SnapshotError
            It is not one of Gymnasium's robots: another class may have more state.
        """
        robot_class = self.robot_class(self.base)
        if robot_class is None:
            raise SnapshotError(
                f"{type(self.base).__name__} is not one of Gymnasium's robots; use "
                "plangym_like.AnyEnv for it"
            )
        edited = None
        if self._edits_model:
            edited = EditedArrays(self.base.model, begun_episodes(self.env))
        self.reset_once()
        images = self.render_mode == "rgb_array"
        codec = MujocoCodec(self.base, robot_class, images=images, edited=edited)
        # A damaged number of a version is an index of a list.
        self.checksum = bool(codec.robot.versions)
        return codec

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel for the robot, or ``None`` if there is none."""
        if self.codec.edits_model:
            return None
        assert isinstance(self.frameskip, int)
        limit: Any = self.time_limit
        return RobotKernel(
            self.codec.robot,
            self.codec,
            self.frameskip,
            self._write_generator,
            elapsed_at=None if limit is None else self.wrappers_at,
            limit=lambda: limit._max_episode_steps,
        )

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one of Gymnasium's robots by one frame; return ``None`` if this is not possible.

        The random generator is copied with the row, because these robots use it only in resets.
        """
        # Replaced methods and wrappers may use the generator, so both are ruled out.
        is_plain = not self.memory.nbytes and not self._transforms
        has_quick_step = is_plain and self.kernel_for(action) is not None
        if not has_quick_step or dt * self.frameskip != 1:
            return None
        self.codec.write(row[HEADER_NBYTES:])
        obs, reward, terminated, truncated, info, count = self.hold(action, 1)
        fresh = row.copy()
        self.codec.read(fresh[HEADER_NBYTES:])
        return fresh, (owned(obs), reward, terminated, truncated, owned_info(info), count)

    def _write_generator(self, payload: Row, seed: int) -> None:
        memory = save_generator(seeded_generator(seed))
        begin = self._generator_at
        payload[begin : begin + GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)

    # Images

    def image(self) -> NDArray[np.uint8]:
        """Render the current state; no display is needed."""
        draw_without_a_display()
        if self.render_mode != rendering.MODE:
            return super().image()
        # Another environment in this process may have rendered last.
        for viewer in self._viewers():
            viewer.make_context_current()
        image = super().image()
        if self._frees is None:
            self._frees = [
                weakref.finalize(self.base, _free_drawing_memory, viewer.opengl_context, viewer.con)
                for viewer in self._viewers()
            ]
            for free in self._frees:
                free.atexit = False  # at exit, OpenGL is not needed and may be gone
        return image

    def copy_state(self, other: Self) -> None:
        """Copy the state of `other`, and compute the data that images are rendered from."""
        model, data = self.base.model, self.base.data
        state = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
        mujoco.mj_getState(other.base.model, other.base.data, state, INTEGRATION)
        mujoco.mj_setState(model, data, state, INTEGRATION)
        mujoco.mj_forward(model, data)

    def _viewers(self) -> list[Any]:
        found = getattr(self.base.mujoco_renderer, "_viewers", {}).values()
        return [viewer for viewer in found if isinstance(viewer, OffScreenViewer)]

    def close(self) -> None:
        """Release the simulator's resources; safe to call more than once."""
        for free in self._frees or ():
            free()
        super().close()


def _free_drawing_memory(context: Any, drawn: mujoco.MjrContext) -> None:
    """Free the objects that MuJoCo has made in the OpenGL context `context`.

    MuJoCo's own destructor runs later, when the context of another environment may be current. It
    would then free the objects with the same numbers in that context.
    """
    with contextlib.suppress(Exception):  # at exit, OpenGL may be gone
        context.make_current()
        drawn.free()


class MujocoEnv(FamilyEnv):
    """A MuJoCo robot that can be stepped from any state; see `MujocoSimulator`.

    `view_state` returns the variables of states, and `make_state` makes states from variables.

    Examples
    --------
    >>> env = MujocoEnv("InvertedPendulum-v5")
    >>> state, obs, info = env.reset(seed=0)
    >>> env.view_state(state)["qpos"].shape
    (2,)
    >>> upright = env.make_state(qpos=[0, 0], qvel=[0, 0])
    >>> env.step_batch([[0.0], [3.0]], upright).terminateds
    array([False, False])
    """

    simulator_class = MujocoSimulator

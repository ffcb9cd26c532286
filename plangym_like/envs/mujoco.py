"""Gymnasium's MuJoCo robots, versions 4 and 5.

Payload of a row::

    ...         MuJoCo's integration state, float64
    ...         what the robot's step reads before it simulates (the torso's place on Ant, ...),
                and, with ``render_mode="rgb_array"``, what pictures are drawn from
    40 bytes    the random generator
    ...         the wrappers' memory

Where nothing but a time limit is wrapped around the robot, whole chunks are stepped at once: the
simulation row by row, and everything that Gymnasium does around it in one go. The results are the
same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv as GymnasiumMujocoEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.batches import Leaf
from plangym_like.envs.chunked_physics import ChunkedPhysics
from plangym_like.envs.headless import draw_without_a_display
from plangym_like.envs.mujoco_physics import PhysicsMemory, derived, drawn, model_digest
from plangym_like.envs.mujoco_robots import ChunkStepper, robot_for
from plangym_like.envs.mujoco_robots.agreement import agrees, trial_actions
from plangym_like.errors import InputError, SnapshotError
from plangym_like.plan_env import PlanEnv
from plangym_like.random_state import (
    GENERATOR_NBYTES,
    load_generator,
    save_generator,
    seeded_generator,
)
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.states import Row

logger = logging.getLogger("plangym_like")

_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)


class MujocoSimulator(ChunkedPhysics):
    """One robot, or a class of your own on Gymnasium's ``MujocoEnv``.

    States are made of ``qpos``, ``qvel`` and whatever else MuJoCo integrates (``act``, ``time``,
    ``qacc_warmstart``, ``qfrc_applied``, ``xfrc_applied``, ...), and, where a time limit is kept,
    of ``elapsed_steps``.
    """

    family = "MUJO"

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Make the robot; what MuJoCo has to say of a model that is not the user's is logged."""
        if "xml_file" in self.env_kwargs or callable(self.name):
            return super().make_env()
        usual = mujoco.get_mju_user_warning()
        # Otherwise every worker would print it, and write it to a file where the user stands.
        mujoco.set_mju_user_warning(lambda message: logger.info("MuJoCo: %s", message))
        try:
            return super().make_env()
        finally:
            mujoco.set_mju_user_warning(usual)

    def prepare(self) -> None:
        """Find out which robot it is, and reset it."""
        base = self.base
        if not isinstance(base, GymnasiumMujocoEnv):
            raise SnapshotError(
                f"{type(base).__name__} is no gymnasium.envs.mujoco.MujocoEnv: this family saves "
                "nothing else"
            )
        super().prepare()
        robot_class = robot_for(base)
        carried = derived(base.data) if robot_class is None else dict(robot_class.carried(base))
        if self.render_mode == "rgb_array":
            carried = {**drawn(base.data), **carried}
        self._physics = PhysicsMemory(base.model, base.data, carried)
        self._robot = None if robot_class is None else robot_class(base)
        self._note_inexactness()
        if self._is_plain():
            self.plain_infos = False
            self.columns = self._find_columns()

    def _note_inexactness(self) -> None:
        base, model = self.base, self.base.model
        notes = []
        if self._robot is None:
            notes.append(
                f"{type(base).__name__} is none of Gymnasium's own robots: what it remembers in "
                "attributes, and contacts that it reads before it simulates, are not in the rows"
            )
        if model.nplugin or model.nflex:
            notes.append("plugins and flexible bodies keep memory of their own inside MuJoCo")
        if notes:
            self.exactness, self.exactness_note = "approximate", "; ".join(notes)

    def _is_plain(self) -> bool:
        """Tell whether observation, reward and flags are the robot's own."""
        link: Any = self.env
        while isinstance(link, gymnasium.Wrapper):
            if type(link) not in _TRANSPARENT:
                return False
            link = link.env
        return self._robot is not None and not self._pictures

    def _find_columns(self) -> dict[str, Leaf]:
        """Return the info that every step gives, after one step that is taken back.

        That step's action is in double precision, so that the columns hold infos of any action.
        """
        memory = np.zeros(self._physics.nbytes, np.uint8)
        self._physics.read(memory)
        info = self.base.step(trial_actions(self.env, "d")[0])[4]
        self._physics.write(memory)
        arrays = {name: np.asarray(value) for name, value in info.items()}
        return {name: (array.shape, array.dtype) for name, array in arrays.items()}

    # What is the state

    def base_nbytes(self) -> int:
        """Return the bytes of physics and generator."""
        return self._physics.nbytes + GENERATOR_NBYTES

    def meaning(self) -> Mapping[str, Any]:
        """Add class, model, and what is saved beside the integration state."""
        return {
            **super().meaning(),
            "class": qualified_name(type(self.base)),
            "model": model_digest(self.base.model),
            "carried": self._physics.carried,
            "mujoco": mujoco.__version__,
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``qpos``, ``qvel``, ... ``(N, ...)``, and the wrappers' memory."""
        physics = self._physics.fields(payloads)
        return {**physics, **self.memory.fields(payloads[:, self._base_nbytes :])}

    def compose(self, payload: Row, **physics: Any) -> None:
        """Put physical quantities into `payload`, and derive what depends on them.

        Parameters
        ----------
        payload : row
            A copy of a state's, which keeps what is not named here.
        physics
            ``qpos``, ``qvel`` and the other fields of the state, in MuJoCo's order and units, as
            ``env.unwrapped.set_state`` takes them. ``elapsed_steps``: how much of the time limit
            is used up.

        Raises
        ------
        InputError
            A name is unknown, or a value is not finite or of another shape.
        """
        steps = None
        if self.memory.time_limit is not None and "elapsed_steps" in physics:
            steps = physics.pop("elapsed_steps")
            whole = isinstance(steps, (int, np.integer)) and not isinstance(steps, bool)
            if not whole or not 0 <= steps < 2**63:
                raise InputError(f"elapsed_steps is a whole number of at least 0, got {steps!r}")
        if physics:
            self._physics.compose(payload[: self._physics.nbytes], physics)
        if steps is not None:
            payload[self._base_nbytes :][:8].view(np.int64)[0] = steps

    # How is it read

    def read_base(self, payload: Row) -> None:
        """Read physics and generator."""
        self._physics.read(payload)
        begin = self._physics.nbytes
        memory = save_generator(self.base._np_random)
        payload[begin : begin + GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Write physics and generator; what else is derived is derived anew by the next step."""
        self._physics.write(payload)
        begin = self._physics.nbytes
        memory = payload[begin : begin + GENERATOR_NBYTES]
        self.base._np_random = load_generator(memory, self.base._np_random)

    # How is it stepped

    def _find_stepper(self, kind: str) -> ChunkStepper | None:
        """Return the stepper, once it has given the same bytes as the environment itself."""
        assert self._robot is not None and isinstance(self.frameskip, int)
        limit: Any = self.memory.time_limit
        stepper = ChunkStepper(
            self._robot,
            self._physics,
            self.frameskip,
            self._write_generator,
            elapsed_at=None if limit is None else self._base_nbytes,
            limit=lambda: limit._max_episode_steps,
        )
        return stepper if agrees(stepper, self, kind) else None

    def _write_generator(self, payload: Row, seed: int) -> None:
        begin = self._physics.nbytes
        memory = save_generator(seeded_generator(seed))
        payload[begin : begin + GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)

    # What it looks like

    def image(self) -> NDArray[np.uint8]:
        """Render the current state, on a machine without a display too."""
        draw_without_a_display()
        # Another environment of this process may have drawn last.
        for viewer in getattr(self.base.mujoco_renderer, "_viewers", {}).values():
            viewer.make_context_current()
        return super().image()


class MujocoEnv(PlanEnv):
    """A robot whose whole state can be read, set and stepped from; see `MujocoSimulator`."""

    simulator_class = MujocoSimulator

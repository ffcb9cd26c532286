"""The vectorised steps of Gymnasium's MuJoCo robots, versions 4 and 5.

The last axes of an array hold the data of one frame. The axes before them, written ``...``, are
rows and frames; operations keep these axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.envs.mujoco.batch import Array, Frames, Look, Robot
from plangym_like.snapshots.configuration import qualified_name

# HalfCheetah, Hopper, Walker2d and Swimmer


class HalfCheetah(Robot):
    """HalfCheetah-v5."""

    run_key = "reward_forward"

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        x = frames.after("qpos")[..., 0]
        speed = (x - frames.before("qpos")[..., 0]) / env.dt
        forward = env._forward_reward_weight * speed
        cost = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        infos = {
            "x_position": x,
            "x_velocity": speed,
            self.run_key: forward,
            "reward_ctrl": -cost,
        }
        return forward - cost, False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 1), look("qvel"))


class HalfCheetahV4(HalfCheetah):
    """HalfCheetah-v4."""

    run_key = "reward_run"


class Walker2d(Robot):
    """Walker2d-v5."""

    def healthy(self, qpos: Array, qvel: Array) -> Array:
        """Return whether the robot is upright, ``(...,)``."""
        env = self.env
        z, angle = qpos[..., 1], qpos[..., 2]
        low, high = env._healthy_z_range
        least, most = env._healthy_angle_range
        upright: Array = (low < z) & (z < high) & (least < angle) & (angle < most)
        return upright

    def over(self) -> bool:
        env = self.env
        qpos = env.data.qpos
        z, angle = qpos.item(1), qpos.item(2)
        low, high = env._healthy_z_range
        least, most = env._healthy_angle_range
        upright = low < z < high and least < angle < most
        return not upright and env._terminate_when_unhealthy

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        qpos = frames.after("qpos")
        speed = (qpos[..., 0] - frames.before("qpos")[..., 0]) / env.dt
        healthy = self.healthy(qpos, frames.after("qvel"))
        forward = env._forward_reward_weight * speed
        cost = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        alive = self.alive(healthy)
        ended = ~healthy if env._terminate_when_unhealthy else False
        infos = self.infos(qpos, speed, forward, cost, alive)
        return forward + alive - cost, ended, infos

    def alive(self, healthy: Array) -> Array:
        """Return the reward for being healthy, ``(...,)``."""
        reward: Array = healthy * self.env._healthy_reward
        return reward

    def infos(
        self, qpos: Array, speed: Array, forward: Array, cost: Array, alive: Array
    ) -> dict[str, Any]:
        """Return the infos; all arrays have the shape ``(...,)``."""
        return {
            "x_position": qpos[..., 0],
            "z_distance_from_origin": qpos[..., 1] - self.env.init_qpos[1],
            "x_velocity": speed,
            "reward_forward": forward,
            "reward_ctrl": -cost,
            "reward_survive": alive,
        }

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 1), np.clip(look("qvel"), -10, 10))


class Walker2dV4(Walker2d):
    """Walker2d-v4, where a step that ends the episode still gets the reward for being healthy."""

    def alive(self, healthy: Array) -> Array:
        env = self.env
        given = (healthy | bool(env._terminate_when_unhealthy)).astype(np.float64)
        reward: Array = given * env._healthy_reward
        return reward

    def infos(
        self, qpos: Array, speed: Array, forward: Array, cost: Array, alive: Array
    ) -> dict[str, Any]:
        return {"x_position": qpos[..., 0], "x_velocity": speed}


class Hopper(Walker2d):
    """Hopper-v5: the whole state except the x position must stay in range, unlike in Walker2d."""

    def healthy(self, qpos: Array, qvel: Array) -> Array:
        low, high = self.env._healthy_state_range
        upright = super().healthy(qpos, qvel)
        for part in (qpos[..., 2:], qvel):
            upright &= ((low < part) & (part < high)).all(axis=-1)
        return upright


class HopperV4(Hopper, Walker2dV4):
    """Hopper-v4."""


class Swimmer(Robot):
    """Swimmer-v5."""

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        place = frames.after("qpos")[..., :2]
        speed = (place - frames.before("qpos")[..., :2]) / env.dt
        forward = env._forward_reward_weight * speed[..., 0]
        cost = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        return forward - cost, False, self.infos(place, speed, forward, cost)

    def infos(self, place: Array, speed: Array, forward: Array, cost: Array) -> dict[str, Any]:
        """Return the infos; all arrays have the shape ``(...,)``."""
        return {
            **moved(place, speed),
            "reward_forward": forward,
            "reward_ctrl": -cost,
        }

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 2), look("qvel"))


class SwimmerV4(Swimmer):
    """Swimmer-v4."""

    def infos(self, place: Array, speed: Array, forward: Array, cost: Array) -> dict[str, Any]:
        return {
            "reward_fwd": forward,
            "reward_ctrl": -cost,
            **moved(place, speed),
            "forward_reward": forward,
        }


# Ant


class Ant(Robot):
    """Ant-v5. The speed of its main body is computed from positions that are one substep old."""

    contact_forces = True

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"torso": env.data.body(env._main_body).xpos}

    def recorded(self) -> dict[str, Array]:
        return {"cfrc_ext": self.env.data.cfrc_ext}

    def over(self) -> bool:
        env = self.env
        low, high = env._healthy_z_range
        return not low <= env.data.qpos.item(2) <= high and env._terminate_when_unhealthy

    def healthy(self, frames: Frames) -> Array:
        """Return whether each state is finite, with its height in the healthy range, ``(...,)``."""
        qpos, qvel = frames.after("qpos"), frames.after("qvel")
        low, high = self.env._healthy_z_range
        z = qpos[..., 2]
        finite = np.isfinite(qpos).all(axis=-1) & np.isfinite(qvel).all(axis=-1)
        upright: Array = finite & (low <= z) & (z <= high)
        return upright

    def contacts(self, forces: Array) -> Array:
        """Return `forces`, clipped to the range of contact forces, ``(..., bodies, 6)``."""
        low, high = self.env._contact_force_range
        clipped: Array = np.clip(forces, low, high)
        return clipped

    def speed(self, frames: Frames) -> tuple[Array, Array]:
        """Return the position and speed of the main body, each ``(..., 2)``."""
        place = frames.after("torso")[..., :2]
        return place, (place - frames.before("torso")[..., :2]) / self.env.dt

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        _, speed = self.speed(frames)
        healthy = self.healthy(frames)
        forward = speed[..., 0] * env._forward_reward_weight
        alive = healthy * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        contacts = self.contacts(frames.after("cfrc_ext"))
        touch = env._contact_cost_weight * total_of(np.square(contacts), 2)
        qpos = frames.after("qpos")
        infos = {
            **moved(qpos[..., :2], speed),
            "reward_forward": forward,
            "reward_ctrl": -effort,
            "reward_contact": -touch,
            "reward_survive": alive,
        }
        ended = ~healthy if env._terminate_when_unhealthy else False
        return forward + alive - (effort + touch), ended, infos

    def observe(self, look: Look, out: Array) -> None:
        env = self.env
        parts = [self.shown_positions(look, 2), look("qvel")]
        if env._include_cfrc_ext_in_observation:
            parts.append(rows_of(self.contacts(look("cfrc_ext")[..., 1:, :])))
        put_parts(out, *parts)


class AntV4(Ant):
    """Ant-v4, where contact forces are optional."""

    contact_forces = False

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.contact_forces = bool(env._use_contact_forces)  # type: ignore[misc]

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"torso": env.get_body_com("torso")}

    def recorded(self) -> dict[str, Array]:
        return super().recorded() if self.env._use_contact_forces else {}

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        place, speed = self.speed(frames)
        healthy = self.healthy(frames)
        ending = bool(env._terminate_when_unhealthy)
        forward = speed[..., 0]
        alive = (healthy | ending).astype(np.float64) * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        costs = effort
        infos = {
            "reward_forward": forward,
            "reward_ctrl": -effort,
            "reward_survive": alive,
            **moved(place, speed),
            "forward_reward": forward,
        }
        if env._use_contact_forces:
            contacts = self.contacts(frames.after("cfrc_ext"))
            touch = env._contact_cost_weight * total_of(np.square(contacts), 2)
            costs = effort + touch
            infos["reward_ctrl"] = -touch  # Gymnasium's name for it in version 4
        return forward + alive - costs, ~healthy if ending else False, infos

    def observe(self, look: Look, out: Array) -> None:
        env = self.env
        parts = [self.shown_positions(look, 2), look("qvel")]
        if env._use_contact_forces:
            parts.append(rows_of(self.contacts(look("cfrc_ext"))))
        put_parts(out, *parts)


# Humanoid and HumanoidStandup


class _Humanoid(Robot):
    """The base class of all humanoids, with the observation of version 5."""

    contact_forces = True

    def recorded(self) -> dict[str, Array]:
        data = self.env.data
        names = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity")
        return {name: getattr(data, name) for name in names}

    def observe(self, look: Look, out: Array) -> None:
        env = self.env
        parts = [self.shown_positions(look, 2), look("qvel")]
        if env._include_cinert_in_observation is True:
            parts.append(rows_of(look("cinert")[..., 1:, :]))
        if env._include_cvel_in_observation is True:
            parts.append(rows_of(look("cvel")[..., 1:, :]))
        if env._include_qfrc_actuator_in_observation is True:
            parts.append(look("qfrc_actuator")[..., 6:])
        if env._include_cfrc_ext_in_observation is True:
            parts.append(rows_of(look("cfrc_ext")[..., 1:, :]))
        put_parts(out, *parts)


class Humanoid(_Humanoid):
    """Humanoid-v5. The speed of its centre of mass uses positions that are one substep old."""

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"xipos": env.data.xipos}

    def over(self) -> bool:
        env = self.env
        low, high = env._healthy_z_range
        return not low < env.data.qpos.item(2) < high and env._terminate_when_unhealthy

    def healthy(self, frames: Frames) -> Array:
        """Return whether the robot's height is in its healthy range, ``(...,)``."""
        z = frames.after("qpos")[..., 2]
        low, high = self.env._healthy_z_range
        upright: Array = (low < z) & (z < high)
        return upright

    def speed(self, frames: Frames) -> tuple[Array, Array]:
        """Return the position and speed of the centre of mass, each ``(..., 2)``."""
        place = self._centre(frames.after("xipos"))
        return place, (place - self._centre(frames.before("xipos"))) / self.env.dt

    def _centre(self, places: Array) -> Array:
        mass = self.env.model.body_mass
        centre: Array = (np.einsum("b,nfbj->nfj", mass, places) / mass.sum())[..., :2]
        return centre

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        _, speed = self.speed(frames)
        healthy = self.healthy(frames)
        forward = env._forward_reward_weight * speed[..., 0]
        alive = healthy * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.after("ctrl")))
        touch = env._contact_cost_weight * total_of(np.square(frames.after("cfrc_ext")), 2)
        touch = np.clip(touch, *env._contact_cost_range)
        qpos = frames.after("qpos")
        infos = {
            "x_position": qpos[..., 0],
            "y_position": qpos[..., 1],
            "tendon_length": frames.after("ten_length"),
            "tendon_velocity": frames.after("ten_velocity"),
            # The first two keys, which are in `moved` too, keep their order in the dict.
            **moved(qpos[..., :2], speed),
            "reward_survive": alive,
            "reward_forward": forward,
            "reward_ctrl": -effort,
            "reward_contact": -touch,
        }
        ended = ~healthy if env._terminate_when_unhealthy else False
        return forward + alive - (effort + touch), ended, infos


class HumanoidV4(Humanoid):
    """Humanoid-v4, without contact costs, and with the world body in the observation."""

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        place, speed = self.speed(frames)
        healthy = self.healthy(frames)
        ending = bool(env._terminate_when_unhealthy)
        forward = env._forward_reward_weight * speed[..., 0]
        alive = (healthy | ending).astype(np.float64) * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.after("ctrl")))
        infos = {
            "reward_linvel": forward,
            "reward_quadctrl": -effort,
            "reward_alive": alive,
            **moved(place, speed),
            "forward_reward": forward,
        }
        return forward + alive - effort, ~healthy if ending else False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 2), *_everything_else(look))


class HumanoidStandup(_Humanoid):
    """HumanoidStandup-v5."""

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        qpos = frames.after("qpos")
        upward, effort, impact = self._costs(frames)
        infos = {
            "x_position": qpos[..., 0],
            "y_position": qpos[..., 1],
            "z_distance_from_origin": qpos[..., 2] - env.init_qpos[2],
            "tendon_length": frames.after("ten_length"),
            "tendon_velocity": frames.after("ten_velocity"),
            "reward_linup": upward,
            "reward_quadctrl": -effort,
            "reward_impact": -impact,
        }
        return upward - effort - impact + 1, False, infos

    def _costs(self, frames: Frames) -> tuple[Array, Array, Array]:
        env = self.env
        upward = (frames.after("qpos")[..., 2] - 0) / env.model.opt.timestep
        effort = env._ctrl_cost_weight * total_of(np.square(frames.after("ctrl")))
        impact = env._impact_cost_weight * total_of(np.square(frames.after("cfrc_ext")), 2)
        return upward, effort, np.clip(impact, *env._impact_cost_range)


class HumanoidStandupV4(HumanoidStandup):
    """HumanoidStandup-v4."""

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        upward = (frames.after("qpos")[..., 2] - 0) / self.env.model.opt.timestep
        effort = 0.1 * total_of(np.square(frames.after("ctrl")))
        impact = 0.5e-6 * total_of(np.square(frames.after("cfrc_ext")), 2)
        impact = np.minimum(impact, 10)
        infos = {
            "reward_linup": upward,
            "reward_quadctrl": -effort,
            "reward_impact": -impact,
        }
        return upward - effort - impact + 1, False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, look("qpos")[..., 2:], *_everything_else(look))


def _everything_else(look: Look) -> list[Array]:
    return [
        look("qvel"),
        rows_of(look("cinert")),
        rows_of(look("cvel")),
        look("qfrc_actuator"),
        rows_of(look("cfrc_ext")),
    ]


# InvertedPendulum and InvertedDoublePendulum


class InvertedPendulum(Robot):
    """InvertedPendulum-v5."""

    def over(self) -> bool:
        return bool(abs(self.env.data.qpos.item(1)) > 0.2)

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        qpos, qvel = frames.after("qpos"), frames.after("qvel")
        finite = np.isfinite(qpos).all(axis=-1) & np.isfinite(qvel).all(axis=-1)
        ended = ~finite | (np.abs(qpos[..., 1]) > 0.2)
        return self.rewards(ended)[0], ended, self.rewards(ended)[1]

    def rewards(self, ended: Array) -> tuple[Array, dict[str, Any]]:
        """Return the rewards and the infos, in arrays of the shape of `ended`."""
        upright = (~ended).astype(np.int64)
        return upright, {"reward_survive": upright}

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, look("qpos"), look("qvel"))


class InvertedPendulumV4(InvertedPendulum):
    """InvertedPendulum-v4, where every step is rewarded."""

    def rewards(self, ended: Array) -> tuple[Array, dict[str, Any]]:
        return np.ones(ended.shape), {}


class InvertedDoublePendulum(Robot):
    """InvertedDoublePendulum-v5."""

    seen_forces = 1

    def recorded(self) -> dict[str, Array]:
        data = self.env.data
        return {"tip": data.site_xpos[0], "qfrc_constraint": data.qfrc_constraint}

    def over(self) -> bool:
        return bool(self.env.data.site_xpos[0, 2] <= 1)

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        tip, qvel = frames.after("tip"), frames.after("qvel")
        x, y = tip[..., 0], tip[..., 2]
        ended = y <= 1
        distance = 0.01 * _squared(x) + _squared(y - 2)
        velocity = 1e-3 * _squared(qvel[..., 1]) + 5e-3 * _squared(qvel[..., 2])
        bonus = self.bonus(ended)
        infos = {
            "reward_survive": bonus,
            "distance_penalty": -distance,
            "velocity_penalty": -velocity,
        }
        return bonus - distance - velocity, ended, self.infos(infos)

    def bonus(self, ended: Array) -> Array:
        """Return the reward for staying upright, ``(...,)``."""
        standing: Array = self.env._healthy_reward * (~ended).astype(np.int64)
        return standing

    def infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return the entries of `infos` that this version of the environment has."""
        return infos

    def observe(self, look: Look, out: Array) -> None:
        qpos = look("qpos")
        put_parts(
            out,
            qpos[..., :1],
            np.sin(qpos[..., 1:]),
            np.cos(qpos[..., 1:]),
            np.clip(look("qvel"), -10, 10),
            np.clip(look("qfrc_constraint"), -10, 10)[..., : self.seen_forces],
        )


class InvertedDoublePendulumV4(InvertedDoublePendulum):
    """InvertedDoublePendulum-v4."""

    seen_forces = 3

    def bonus(self, ended: Array) -> Array:
        return np.full(ended.shape, 10)

    def infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {}


def _squared(numbers: Array) -> Array:
    """Return ``x**2`` of each number, computed with libm's ``pow``, not as ``x * x``."""
    squares: Array = np.float_power(numbers, 2.0)
    return squares


# Reacher and Pusher


class Reacher(Robot):
    """Reacher-v5."""

    seen = 2

    def recorded(self) -> dict[str, Array]:
        env = self.env
        return {name: env.get_body_com(name) for name in ("fingertip", "target")}

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        gap = frames.after("fingertip") - frames.after("target")
        distance = -length_of(gap) * env._reward_dist_weight
        effort = -total_of(np.square(frames.actions)) * env._reward_control_weight
        return distance + effort, False, {"reward_dist": distance, "reward_ctrl": effort}

    def observe(self, look: Look, out: Array) -> None:
        qpos = look("qpos")
        gap = look("fingertip") - look("target")
        put_parts(
            out,
            np.cos(qpos[..., :2]),
            np.sin(qpos[..., :2]),
            qpos[..., 2:],
            look("qvel")[..., :2],
            gap[..., : self.seen],
        )


class ReacherV4(Reacher):
    """Reacher-v4, whose reward depends on the tip's position before the step."""

    seen = 3

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {name: env.get_body_com(name) for name in ("fingertip", "target")}

    def recorded(self) -> dict[str, Array]:
        return {}

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        distance = -length_of(frames.before("fingertip") - frames.before("target"))
        effort = -total_of(np.square(frames.actions))
        return distance + effort, False, {"reward_dist": distance, "reward_ctrl": effort}


class Pusher(Robot):
    """Pusher-v5."""

    def recorded(self) -> dict[str, Array]:
        env = self.env
        return {name: env.get_body_com(name) for name in ("tips_arm", "object", "goal")}

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        thing = frames.after("object")
        near = -length_of(thing - frames.after("tips_arm")) * env._reward_near_weight
        distance = -length_of(thing - frames.after("goal")) * env._reward_dist_weight
        effort = -total_of(np.square(frames.actions)) * env._reward_control_weight
        infos = {"reward_dist": distance, "reward_ctrl": effort, "reward_near": near}
        return distance + effort + near, False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(
            out,
            look("qpos")[..., :7],
            look("qvel")[..., :7],
            *(look(name) for name in ("tips_arm", "object", "goal")),
        )


# All robots

_OWN = "gymnasium.envs.mujoco."

# Robots by module and class. Pusher-v4 is left out, because it needs an older MuJoCo.
ROBOTS: dict[str, type[Robot]] = {
    "ant_v4.AntEnv": AntV4,
    "ant_v5.AntEnv": Ant,
    "half_cheetah_v4.HalfCheetahEnv": HalfCheetahV4,
    "half_cheetah_v5.HalfCheetahEnv": HalfCheetah,
    "hopper_v4.HopperEnv": HopperV4,
    "hopper_v5.HopperEnv": Hopper,
    "humanoid_v4.HumanoidEnv": HumanoidV4,
    "humanoid_v5.HumanoidEnv": Humanoid,
    "humanoidstandup_v4.HumanoidStandupEnv": HumanoidStandupV4,
    "humanoidstandup_v5.HumanoidStandupEnv": HumanoidStandup,
    "inverted_double_pendulum_v4.InvertedDoublePendulumEnv": InvertedDoublePendulumV4,
    "inverted_double_pendulum_v5.InvertedDoublePendulumEnv": InvertedDoublePendulum,
    "inverted_pendulum_v4.InvertedPendulumEnv": InvertedPendulumV4,
    "inverted_pendulum_v5.InvertedPendulumEnv": InvertedPendulum,
    "pusher_v5.PusherEnv": Pusher,
    "reacher_v4.ReacherEnv": ReacherV4,
    "reacher_v5.ReacherEnv": Reacher,
    "swimmer_v4.SwimmerEnv": SwimmerV4,
    "swimmer_v5.SwimmerEnv": Swimmer,
    "walker2d_v4.Walker2dEnv": Walker2dV4,
    "walker2d_v5.Walker2dEnv": Walker2d,
}


def robot_for(env: Any) -> type[Robot] | None:
    """Return the `Robot` class for `env`, or ``None`` if there is none for its class.

    It is the attribute ``vectorised_step`` of the class, or that of `ROBOTS`.
    """
    own: type[Robot] | None = getattr(type(env), "vectorised_step", None)
    if own is not None:
        return own
    name = qualified_name(type(env))
    return ROBOTS.get(name.removeprefix(_OWN)) if name.startswith(_OWN) else None


# Operations on the data of many simulated frames


def length_of(vectors: Array) -> Array:
    """Return the norm of each vector; as in ``np.linalg.norm``, BLAS computes the dot product."""
    lengths: Array = np.sqrt(np.vecdot(vectors, vectors))
    return lengths


def total_of(values: Array, axes: int = 1) -> Array:
    """Flatten the last `axes` axes of `values`, and return the sum over them."""
    lead = values.shape[: values.ndim - axes]
    runs = values if axes == 1 else np.ascontiguousarray(values).reshape(*lead, -1)
    sums: Array = np.sum(runs, axis=-1)
    return sums


def put_parts(out: Array, *parts: Array) -> None:
    """Write `parts`, each ``(..., k)``, one after the other into the last axis of `out`."""
    at = 0
    for part in parts:
        size = part.shape[-1]
        out[..., at : at + size] = part
        at += size


def rows_of(matrices: Array) -> Array:
    """Reshape `matrices` from ``(..., m, k)`` to ``(..., m * k)``."""
    return matrices.reshape(*matrices.shape[:-2], -1)


def moved(place: Array, speed: Array) -> dict[str, Array]:
    """Return the infos of a robot that is at `place` and moves at `speed` in a plane.

    `place` and `speed` are ``(..., 2)``.
    """
    return {
        "x_position": place[..., 0],
        "y_position": place[..., 1],
        "distance_from_origin": length_of(place),
        "x_velocity": speed[..., 0],
        "y_velocity": speed[..., 1],
    }

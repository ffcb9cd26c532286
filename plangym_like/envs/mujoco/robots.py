"""The vectorised steps of Gymnasium's MuJoCo robots, versions 4 and 5.

The last axes of an array hold the data of one frame. The axes before them, written ``...``, are
rows and frames; operations keep these axes. A class is that of both versions, unless there is one
for version 4 too; infos have all names that either version uses (see `Robot.info_names`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plangym_like.envs.mujoco.batch import Array, Frames, Look, Robot


class Parts(NamedTuple):
    """The parts of rewards, each ``(...,)``; `place` and `speed` are ``(..., 2)``.

    `touch` is ``None`` if contacts have no cost.
    """

    place: Array
    speed: Array
    forward: Array
    effort: Array
    alive: Array
    touch: Array | None = None


# The names of parts of rewards in infos.
_FORWARD = "reward_forward", "reward_run", "reward_fwd", "reward_linvel", "forward_reward"
_EFFORT = "reward_ctrl", "reward_quadctrl"
_ALIVE = "reward_survive", "reward_alive"


# HalfCheetah and Swimmer


class Runner(Robot):
    """The base of robots that are rewarded for moving forward."""

    hidden = 2

    def motion(self, frames: Frames) -> tuple[Array, Array]:
        """Return the position and speed in a plane, each ``(..., 2)``."""
        place = frames.after("qpos")[..., :2]
        return place, (place - frames.before("qpos")[..., :2]) / self.env.dt

    def effort(self, frames: Frames) -> Array:
        """Return the costs of the controls, ``(...,)``."""
        costs: Array = self.env._ctrl_cost_weight * total_of(np.square(frames.actions))
        return costs

    def infos(self, frames: Frames, parts: Parts) -> dict[str, Any]:
        """Return the infos."""
        place, speed = self.shown_place(frames, parts), parts.speed
        found = {
            "x_position": place[..., 0],
            "y_position": place[..., 1],
            "x_velocity": speed[..., 0],
            "y_velocity": speed[..., 1],
            **dict.fromkeys(_FORWARD, parts.forward),
            **dict.fromkeys(_EFFORT, -parts.effort),
            **dict.fromkeys(_ALIVE, parts.alive),
        }
        if "distance_from_origin" in self.info_names:
            found["distance_from_origin"] = length_of(place)
        if parts.touch is not None:
            found["reward_contact"] = -parts.touch
        return found

    def shown_place(self, frames: Frames, parts: Parts) -> Array:
        """Return the position ``(..., 2)`` that infos have."""
        return parts.place

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        place, speed = self.motion(frames)
        forward, effort = self.env._forward_reward_weight * speed[..., 0], self.effort(frames)
        infos = self.infos(frames, Parts(place, speed, forward, effort, effort))
        return forward - effort, False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, self.hidden), look("qvel"))


class HalfCheetah(Runner):
    """HalfCheetah."""

    hidden = 1


class Swimmer(Runner):
    """Swimmer."""


# Walker2d, Hopper and Ant


class Legged(Runner):
    """The base of robots that are also rewarded for being healthy.

    Attributes
    ----------
    rewards_end : bool
        Whether the step that ends an episode still gets the reward for being healthy, as in
        version 4.
    """

    rewards_end = False

    def healthy(self, frames: Frames) -> Array:
        """Return whether the robot is healthy, ``(...,)``."""
        raise NotImplementedError

    def touch(self, frames: Frames) -> Array | None:
        """Return the costs of contacts, ``(...,)``; ``None`` if they have no cost."""
        return None

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        place, speed = self.motion(frames)
        healthy, ending = self.healthy(frames), bool(env._terminate_when_unhealthy)
        rewarded = (healthy | ending).astype(np.float64) if self.rewards_end else healthy
        alive = rewarded * env._healthy_reward
        # Version 4 of Ant has no weight.
        forward = getattr(env, "_forward_reward_weight", 1.0) * speed[..., 0]
        effort, touch = self.effort(frames), self.touch(frames)
        costs = effort if touch is None else effort + touch
        infos = self.infos(frames, Parts(place, speed, forward, effort, alive, touch))
        return forward + alive - costs, ~healthy if ending else False, infos


class Walker2d(Legged):
    """Walker2d-v5."""

    hidden = 1

    def healthy(self, frames: Frames) -> Array:
        env, qpos = self.env, frames.after("qpos")
        z, angle = qpos[..., 1], qpos[..., 2]
        low, high = env._healthy_z_range
        least, most = env._healthy_angle_range
        upright: Array = (low < z) & (z < high) & (least < angle) & (angle < most)
        return upright

    def over(self) -> bool:
        env, qpos = self.env, self.env.data.qpos
        low, high = env._healthy_z_range
        least, most = env._healthy_angle_range
        upright = low < qpos.item(1) < high and least < qpos.item(2) < most
        return not upright and env._terminate_when_unhealthy

    def infos(self, frames: Frames, parts: Parts) -> dict[str, Any]:
        height = parts.place[..., 1] - self.env.init_qpos[1]
        return {**super().infos(frames, parts), "z_distance_from_origin": height}

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 1), np.clip(look("qvel"), -10, 10))


class Walker2dV4(Walker2d):
    """Walker2d-v4."""

    rewards_end = True


class Hopper(Walker2d):
    """Hopper-v5: the whole state except the x position must stay in range, unlike in Walker2d."""

    def healthy(self, frames: Frames) -> Array:
        low, high = self.env._healthy_state_range
        upright = super().healthy(frames)
        for part in (frames.after("qpos")[..., 2:], frames.after("qvel")):
            upright &= ((low < part) & (part < high)).all(axis=-1)
        return upright


class HopperV4(Hopper, Walker2dV4):
    """Hopper-v4."""


class Ant(Legged):
    """Ant-v5. The speed of its main body is computed from positions that are one substep old."""

    contact_forces = True

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"torso": env.data.body(env._main_body).xpos}

    def recorded(self) -> dict[str, Array]:
        return {"cfrc_ext": self.env.data.cfrc_ext}

    def healthy(self, frames: Frames) -> Array:
        qpos, qvel = frames.after("qpos"), frames.after("qvel")
        low, high = self.env._healthy_z_range
        z = qpos[..., 2]
        finite = np.isfinite(qpos).all(axis=-1) & np.isfinite(qvel).all(axis=-1)
        upright: Array = finite & (low <= z) & (z <= high)
        return upright

    def over(self) -> bool:
        low, high = self.env._healthy_z_range
        is_upright = low <= self.env.data.qpos.item(2) <= high
        return not is_upright and self.env._terminate_when_unhealthy

    def motion(self, frames: Frames) -> tuple[Array, Array]:
        place = frames.after("torso")[..., :2]
        return place, (place - frames.before("torso")[..., :2]) / self.env.dt

    def contacts(self, forces: Array) -> Array:
        """Return `forces`, clipped to the range of contact forces, ``(..., bodies, 6)``."""
        clipped: Array = np.clip(forces, *self.env._contact_force_range)
        return clipped

    def touch(self, frames: Frames) -> Array | None:
        contacts = self.contacts(frames.after("cfrc_ext"))
        costs: Array = self.env._contact_cost_weight * total_of(np.square(contacts), 2)
        return costs

    def shown_place(self, frames: Frames, parts: Parts) -> Array:
        return frames.after("qpos")[..., :2]

    def observe(self, look: Look, out: Array) -> None:
        parts = [self.shown_positions(look, 2), look("qvel")]
        if self.env._include_cfrc_ext_in_observation:
            parts.append(rows_of(self.contacts(look("cfrc_ext")[..., 1:, :])))
        put_parts(out, *parts)


class AntV4(Ant):
    """Ant-v4, where contact forces are optional."""

    contact_forces = False
    rewards_end = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.contact_forces = bool(env._use_contact_forces)  # type: ignore[misc]

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"torso": env.get_body_com("torso")}

    def recorded(self) -> dict[str, Array]:
        return super().recorded() if self.env._use_contact_forces else {}

    def touch(self, frames: Frames) -> Array | None:
        return super().touch(frames) if self.env._use_contact_forces else None

    def infos(self, frames: Frames, parts: Parts) -> dict[str, Any]:
        # With contact forces, version 4 returns their costs as those of the controls.
        costs = {} if parts.touch is None else {"reward_ctrl": -parts.touch}
        return {**super().infos(frames, parts), **costs}

    def shown_place(self, frames: Frames, parts: Parts) -> Array:
        return parts.place

    def observe(self, look: Look, out: Array) -> None:
        parts = [self.shown_positions(look, 2), look("qvel")]
        if self.env._use_contact_forces:
            parts.append(rows_of(self.contacts(look("cfrc_ext"))))
        put_parts(out, *parts)


# Humanoid and HumanoidStandup


class Humanoid(Legged):
    """Humanoid-v5. The speed of its centre of mass uses positions that are one substep old."""

    contact_forces = True

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"xipos": env.data.xipos}

    def recorded(self) -> dict[str, Array]:
        data = self.env.data
        names = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity")
        return {name: getattr(data, name) for name in names}

    def healthy(self, frames: Frames) -> Array:
        z = frames.after("qpos")[..., 2]
        low, high = self.env._healthy_z_range
        upright: Array = (low < z) & (z < high)
        return upright

    def over(self) -> bool:
        return bool(self.env._terminate_when_unhealthy and not self.env.is_healthy)

    def motion(self, frames: Frames) -> tuple[Array, Array]:
        place = self._centre(frames.after("xipos"))
        return place, (place - self._centre(frames.before("xipos"))) / self.env.dt

    def _centre(self, places: Array) -> Array:
        mass = self.env.model.body_mass
        centre: Array = (np.einsum("b,nfbj->nfj", mass, places) / mass.sum())[..., :2]
        return centre

    def effort(self, frames: Frames) -> Array:
        costs: Array = self.env._ctrl_cost_weight * total_of(np.square(frames.after("ctrl")))
        return costs

    def touch(self, frames: Frames) -> Array | None:
        costs = self.env._contact_cost_weight * total_of(np.square(frames.after("cfrc_ext")), 2)
        clipped: Array = np.clip(costs, *self.env._contact_cost_range)
        return clipped

    def infos(self, frames: Frames, parts: Parts) -> dict[str, Any]:
        tendons = {f"tendon_{name}": frames.after(f"ten_{name}") for name in ("length", "velocity")}
        return {**super().infos(frames, parts), **tendons}

    def shown_place(self, frames: Frames, parts: Parts) -> Array:
        return frames.after("qpos")[..., :2]

    def observe(self, look: Look, out: Array) -> None:
        parts = [self.shown_positions(look, 2), look("qvel")]
        for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext"):
            if getattr(self.env, f"_include_{name}_in_observation") is True:
                is_force = name == "qfrc_actuator"
                parts.append(look(name)[..., 6:] if is_force else rows_of(look(name)[..., 1:, :]))
        put_parts(out, *parts)


class HumanoidV4(Humanoid):
    """Humanoid-v4, without contact costs, and with the world body in the observation."""

    rewards_end = True

    def touch(self, frames: Frames) -> Array | None:
        return None

    def shown_place(self, frames: Frames, parts: Parts) -> Array:
        return parts.place

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 2), *_everything_else(look))


class HumanoidStandup(Robot):
    """HumanoidStandup-v5."""

    contact_forces = True
    recorded, observe = Humanoid.recorded, Humanoid.observe

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        # Version 4 has no weights.
        control_weight = getattr(self.env, "_ctrl_cost_weight", 0.1)
        impact_weight = getattr(self.env, "_impact_cost_weight", 0.5e-6)
        impacts = getattr(self.env, "_impact_cost_range", (-np.inf, 10))
        upward = (frames.after("qpos")[..., 2] - 0) / self.env.model.opt.timestep
        effort = control_weight * total_of(np.square(frames.after("ctrl")))
        impact = impact_weight * total_of(np.square(frames.after("cfrc_ext")), 2)
        impact = np.clip(impact, *impacts)
        qpos = frames.after("qpos")
        infos = {
            "x_position": qpos[..., 0],
            "y_position": qpos[..., 1],
            "z_distance_from_origin": qpos[..., 2] - self.env.init_qpos[2],
            "tendon_length": frames.after("ten_length"),
            "tendon_velocity": frames.after("ten_velocity"),
            "reward_linup": upward,
            "reward_quadctrl": -effort,
            "reward_impact": -impact,
        }
        return upward - effort - impact + 1, False, infos


class HumanoidStandupV4(HumanoidStandup):
    """HumanoidStandup-v4."""

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, look("qpos")[..., 2:], *_everything_else(look))


def _everything_else(look: Look) -> list[Array]:
    bodies = rows_of(look("cinert")), rows_of(look("cvel"))
    return [look("qvel"), *bodies, look("qfrc_actuator"), rows_of(look("cfrc_ext"))]


# InvertedPendulum and InvertedDoublePendulum


class InvertedPendulum(Robot):
    """InvertedPendulum-v5."""

    def over(self) -> bool:
        return bool(abs(self.env.data.qpos.item(1)) > 0.2)

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        qpos, qvel = frames.after("qpos"), frames.after("qvel")
        finite = np.isfinite(qpos).all(axis=-1) & np.isfinite(qvel).all(axis=-1)
        ended = ~finite | (np.abs(qpos[..., 1]) > 0.2)
        upright = (~ended).astype(np.int64)
        return upright, ended, {"reward_survive": upright}

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, look("qpos"), look("qvel"))


class InvertedPendulumV4(InvertedPendulum):
    """InvertedPendulum-v4, where every step is rewarded."""

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        rewards, ended, infos = super().compute_rewards(frames)
        return np.ones(rewards.shape), ended, infos


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
        return bonus - distance - velocity, ended, infos

    def bonus(self, ended: Array) -> Array:
        """Return the reward for staying upright, ``(...,)``."""
        standing: Array = self.env._healthy_reward * (~ended).astype(np.int64)
        return standing

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

    def gap(self, frames: Frames) -> Array:
        """Return the vector from the target to the tip, ``(..., 3)``."""
        away: Array = frames.after("fingertip") - frames.after("target")
        return away

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        # Version 4 has no weights.
        near = getattr(self.env, "_reward_dist_weight", 1)
        distance = -length_of(self.gap(frames)) * near
        control = getattr(self.env, "_reward_control_weight", 1)
        effort = -total_of(np.square(frames.actions)) * control
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

    def gap(self, frames: Frames) -> Array:
        away: Array = frames.before("fingertip") - frames.before("target")
        return away


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


# All robots


def robot_for(env: Any) -> type[Robot] | None:
    """Return the `Robot` class for `env`, or ``None`` if it is not one of Gymnasium's robots."""
    folder, _, module = type(env).__module__.rpartition(".")
    if folder != "gymnasium.envs.mujoco":
        return None
    name, robots = type(env).__name__.removesuffix("Env"), globals()
    found: type[Robot] | None = robots.get(name)
    return robots.get(f"{name}V4", found) if module.endswith("_v4") else found

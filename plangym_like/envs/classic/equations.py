"""The vectorised steps of the five environments of Gymnasium's classic control.

Every result is bit-identical to the result of the environment's own ``step``. So every expression
keeps the operands, order and dtypes of the formulas in ``gymnasium/envs/classic_control``.
Two rules of NumPy matter here:

- ``x**2`` uses libm's ``pow`` for a single number but ``x * x`` for an array, and the two sometimes
  differ in the last bit; ``np.float_power`` uses ``pow`` for arrays too.
- A ``float32`` combined with a Python ``float`` stays ``float32``, in arithmetic and comparisons.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.classic_control import (
    AcrobotEnv,
    CartPoleEnv,
    Continuous_MountainCarEnv,
    MountainCarEnv,
    PendulumEnv,
)
from numpy.typing import NDArray

from plangym_like.envs.kernel import NotVectorisableError, States

Array = NDArray[Any]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
# MountainCar's rows with a larger number than this are refused, and CartPole's rows with a larger
# sum of squares are stepped by the environment itself.
_LARGEST = 1e30
# Acrobot's rows that reach a larger angle in a step are stepped by the environment itself, which
# subtracts turns faster from a single angle.
_FAR = 1e5


@dataclass(slots=True)
class Motions(States):
    """The states of N rows: positions and velocities.

    ``x`` ``(size, N)`` is the physical state, and ``hidden`` ``(N,)`` is `Dynamics.hidden`.
    ``single`` ``(N,) bool`` marks the rows that the environment would store in ``float32``
    (``None`` means no row). ``elapsed`` ``(N,) int64`` counts the steps of lanes with a time limit.
    """

    x: Floats
    hidden: NDArray[Any]
    single: NDArray[np.bool_] | None = None
    elapsed: NDArray[np.int64] | None = None


class Dynamics(abc.ABC):
    """The vectorised step of one environment, for N rows, with the constants that it has now.

    Attributes
    ----------
    order : tuple of int
        Row k of ``Motions.x`` is ``env.state[order[k]]``.
    constants : tuple of str
        Attributes of the environment that its step reads.
    num_actions : int
        The number of discrete actions; 0 if the space is a ``float32`` box of shape ``(1,)``, whose
        actions may have any dtype.
    hidden : str
        The attribute, other than ``state``, that affects later steps or images; "" if none does.
    no_hidden : numpy.int32 or numpy.float64
        The value in ``Motions.hidden`` that means ``None``. The array has the dtype of this value.
    takes_single, leaves_single : bool
        Whether `advance` can step ``float32`` states, and whether its next states are ``float32``.
    most_singly : int
        The number of rows up to which `advance_one` is faster than `advance`; 0 if there is only
        `advance` (measured by `benchmarks/vector.py`).
    fewest_lanes : int
        The number of environments from which they are stepped together in `make_vec`, because that
        is faster than ``env.step`` (measured by `benchmarks/vector.py`).
    """

    order: ClassVar[tuple[int, ...]]
    constants: ClassVar[tuple[str, ...]]
    num_actions: ClassVar[int]
    hidden: ClassVar[str] = ""
    no_hidden: ClassVar[np.int32 | np.float64] = np.int32(-1)
    takes_single: ClassVar[bool] = False
    leaves_single: ClassVar[bool] = False
    most_singly: ClassVar[int] = 0
    fewest_lanes: ClassVar[int] = 4

    # Returns the values of `constants`.
    _values_of: ClassVar[Callable[[Any], tuple[Any, ...]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._values_of = attrgetter(*cls.constants)

    def __init__(self, env: Any) -> None:
        values = attrgetter(*self.constants)(env)
        self.values: Any = SimpleNamespace(**dict(zip(self.constants, values, strict=True)))

    @classmethod
    def settings(cls, env: Any) -> tuple[Any, ...]:
        """Return all that the step of `env` reads: the values of `constants`."""
        return cls._values_of(env)

    @classmethod
    def largest(cls, env: Any) -> float:
        """Return the bound of numbers in a state: one of a larger absolute value is refused."""
        return math.inf

    @classmethod
    def as_hidden(cls, number: Any) -> Any:
        """Return the value of the hidden attribute that was saved as `number`."""
        return None if number == -1 else int(number)

    def load(self, states: Floats, x: Floats) -> None:
        """Fill `x` ``(size, N)`` from `states` ``(N or 1, size)``."""
        for row, column in enumerate(self.order):
            x[row] = states[:, column]

    def store(self, x: Floats, states: Floats) -> None:
        """Fill `states` ``(N, size)`` from `x`: the inverse of `load`."""
        for row, column in enumerate(self.order):
            states[:, column] = x[row]

    @abc.abstractmethod
    def advance(self, states: Motions, actions: Array, rewards: Floats, terminated: Flags) -> None:
        """Step `states` in place with N `actions`; fill `rewards` and `terminated` ``(N,)``.

        ``states.single`` and ``states.elapsed`` stay as they are.

        Raises
        ------
        NotVectorisableError
            A row must be stepped by the environment itself; `states` are undefined.
        """

    def advance_one(
        self, x: Sequence[float], hidden: Any, action: Any
    ) -> tuple[Sequence[float], Any, float, bool] | None:
        """Step one state, given as Python numbers; faster than `advance` for a few rows.

        Return the next `x` and `hidden`, the reward and the terminated flag, or ``None`` if this
        method cannot step the state. `x` is in the order of ``env.state``.
        """
        return None

    def observe(self, x: Floats, states: Floats, out: NDArray[np.float32]) -> None:
        """Fill `out` ``(N, *obs_shape)`` with the observations; by default, these are the states.

        `x` ``(size, N)`` and `states` ``(N, size)`` hold the same numbers: `store` has filled
        `states` from `x`.
        """
        out[:] = states


def cosine(angles: Floats) -> Floats:
    """Return ``math.cos`` of each angle; raise `NotVectorisableError` if one is not finite."""
    cosines: Floats = np.cos(angles)
    if np.isnan(cosines).any():
        raise NotVectorisableError
    return cosines


class CartPole(Dynamics):
    """CartPole, with positions before velocities in ``Motions.x``.

    In this order, both positions are updated in one operation, and so are both velocities.
    Expressions are split into in-place operations, because allocating arrays would double the cost.
    """

    order = (0, 2, 1, 3)
    constants = (
        "gravity",
        "masscart",
        "masspole",
        "total_mass",
        "length",
        "polemass_length",
        "force_mag",
        "tau",
        "theta_threshold_radians",
        "x_threshold",
        "kinematics_integrator",
        "_sutton_barto_reward",
    )
    num_actions = 2
    hidden = "steps_beyond_terminated"
    most_singly = 6
    fewest_lanes = 1

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._numbers = SimpleNamespace(**vars(self.values))
        self._forces = np.array([-env.force_mag, env.force_mag], np.float64)
        # NumPy reads a zero-dimensional array twice as fast as a Python number.
        for name, value in vars(self.values).items():
            if type(value) in (int, float):
                setattr(self.values, name, np.array(value, np.float64))
        self._ratio = np.array(4.0 / 3.0)
        self._scratch = np.empty((4, 0))

    def load(self, states: Floats, x: Floats) -> None:
        x.reshape(2, 2, -1)[:] = states.reshape(len(states), 2, 2).transpose(2, 1, 0)

    def advance(self, states: Motions, actions: Array, rewards: Floats, terminated: Flags) -> None:
        if self._scratch.shape[1] != len(actions):
            self._scratch = np.empty((4, len(actions)))
        c, scratch = self.values, self._scratch
        accelerations, moved = scratch[:2], scratch[2:]
        temp, turning, cosine, other = scratch
        positions, velocities = states.x[:2], states.x[2:]
        np.cos(positions[1], out=cosine)
        np.sin(positions[1], out=turning)

        np.square(velocities[1], out=temp)
        temp *= c.polemass_length
        temp *= turning
        temp += self._forces.take(actions, out=other, mode="clip")
        temp /= c.total_mass

        turning *= c.gravity
        turning -= np.multiply(cosine, temp, out=other)
        np.square(cosine, out=other)
        other *= c.masspole
        other /= c.total_mass
        np.subtract(self._ratio, other, out=other)
        other *= c.length
        turning /= other

        np.multiply(turning, c.polemass_length, out=other)
        other *= cosine
        other /= c.total_mass
        temp -= other

        accelerations *= c.tau
        if c.kinematics_integrator == "euler":
            positions += np.multiply(velocities, c.tau, out=moved)
            velocities += accelerations
        else:
            velocities += accelerations
            positions += np.multiply(velocities, c.tau, out=moved)

        np.absolute(positions, out=moved)
        np.greater(moved[0], c.x_threshold, out=terminated)
        terminated |= moved[1] > c.theta_threshold_radians
        rewards.fill(0.0 if c._sutton_barto_reward else 1.0)
        if np.count_nonzero(terminated):
            (ended,) = terminated.nonzero()
            steps = states.hidden[ended]
            # The step that ends the episode is rewarded like any other, but later steps are not.
            rewards[ended] = -1.0 if c._sutton_barto_reward else steps == self.no_hidden
            states.hidden[ended] = steps + 1

    def advance_one(
        self, x: Sequence[float], hidden: Any, action: Any
    ) -> tuple[Sequence[float], Any, float, bool] | None:
        c = self._numbers
        place, speed, angle, turning = x
        # Rows with numbers near overflow, or with NaN, are stepped by the environment itself.
        if not speed * speed + angle * angle + turning * turning < _LARGEST:
            return None
        force = c.force_mag if action == 1 else -c.force_mag
        cosine, sine = math.cos(angle), math.sin(angle)
        temp = (force + c.polemass_length * (turning * turning) * sine) / c.total_mass
        bend = (c.gravity * sine - cosine * temp) / (
            c.length * (4.0 / 3.0 - c.masspole * (cosine * cosine) / c.total_mass)
        )
        push = temp - c.polemass_length * bend * cosine / c.total_mass
        if c.kinematics_integrator == "euler":
            place, angle = place + c.tau * speed, angle + c.tau * turning
            speed, turning = speed + c.tau * push, turning + c.tau * bend
        else:
            speed, turning = speed + c.tau * push, turning + c.tau * bend
            place, angle = place + c.tau * speed, angle + c.tau * turning
        ended = abs(place) > c.x_threshold or abs(angle) > c.theta_threshold_radians
        reward = 1.0
        if c._sutton_barto_reward:
            reward = -1.0 if ended else 0.0
        elif ended:
            reward = float(hidden == -1)
        return (place, speed, angle, turning), hidden + ended, reward, ended


class MountainCar(Dynamics):
    """MountainCar with its three discrete actions."""

    order = (0, 1)
    constants = (
        "min_position",
        "max_position",
        "max_speed",
        "goal_position",
        "goal_velocity",
        "force",
        "gravity",
    )
    num_actions = 3

    @classmethod
    def largest(cls, env: Any) -> float:
        return _LARGEST  # a step needs the cosine of three times the position

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._pushes = np.array([(action - 1) * env.force for action in range(3)], np.float64)

    def advance(self, states: Motions, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c = self.values
        position, velocity = states.x
        velocity += self._pushes.take(actions) + cosine(3 * position) * -c.gravity
        np.clip(velocity, -c.max_speed, c.max_speed, out=velocity)
        position += velocity
        np.clip(position, c.min_position, c.max_position, out=position)
        velocity[(position == c.min_position) & (velocity < 0)] = 0.0
        np.greater_equal(position, c.goal_position, out=terminated)
        terminated &= velocity >= c.goal_velocity
        rewards.fill(-1.0)


class MountainCarContinuous(Dynamics):
    """MountainCarContinuous, whose states have single precision after the first step.

    The first step after a reset is computed in double precision, and so are steps with actions in
    double precision that are not clipped.
    """

    order = (0, 1)
    constants = (
        "min_action",
        "max_action",
        "min_position",
        "max_position",
        "max_speed",
        "goal_position",
        "goal_velocity",
        "power",
    )
    num_actions = 0
    takes_single = True
    leaves_single = True
    fewest_lanes = 16

    @classmethod
    def largest(cls, env: Any) -> float:
        return _LARGEST  # as in `MountainCar`, also in single precision

    def advance(self, states: Motions, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c, (position, velocity), action = self.values, states.x, actions[:, 0]
        cost = np.float_power(action.astype(np.float64), 2.0) * 0.1
        if action.dtype == np.float64 and not np.isfinite(cost).all():
            raise NotVectorisableError  # math.pow raises OverflowError
        single = np.zeros(len(action), bool) if states.single is None else states.single
        low, high = action < c.min_action, action > c.max_action
        # A clipped force or speed is a Python number, which keeps the precision of its operand.
        limited = low | high
        limits = np.where(low, float(c.min_action), float(c.max_action)) * c.power
        pushes = action * c.power
        narrow = ~limited & (pushes.dtype != np.float64)
        slope = 0.0025 * cosine(_rounded(3 * position, single))
        push = np.where(limited, limits, pushes) - _rounded(slope, narrow, pushes.dtype)
        push = _rounded(push, narrow, pushes.dtype)
        kept = single & (limited | narrow)
        speed = _rounded(velocity + _rounded(push, kept), kept)
        fastest = _rounded(c.max_speed, kept)
        fast, slow = speed > fastest, speed < -fastest
        clipped = fast | slow
        speed[fast], speed[slow] = c.max_speed, -c.max_speed
        goal_speed = _rounded(c.goal_velocity, kept & ~clipped)
        kept = single & (kept | clipped)
        place = _rounded(position + _rounded(speed, kept), kept)
        left, right = _rounded(c.min_position, kept), _rounded(c.max_position, kept)
        speed[(place <= left) & (speed < 0)] = 0.0
        above, below = place > right, place < left
        place[above], place[below] = c.max_position, c.min_position
        goal_place = _rounded(c.goal_position, kept & ~(above | below))
        np.greater_equal(place, goal_place, out=terminated)
        terminated &= speed >= goal_speed
        np.subtract(np.where(terminated, 100.0, 0.0), cost, out=rewards)
        position[:], velocity[:] = place.astype(np.float32), speed.astype(np.float32)


def _rounded(numbers: Any, where: Flags, dtype: Any = np.float32) -> Any:
    """Return `numbers` ``(N,)``, or a single number, rounded to `dtype` in the rows `where`.

    A sum, difference or product of two ``float32`` is the same if it is computed in ``float64`` and
    then rounded. The result may be `numbers` itself.
    """
    count = np.count_nonzero(where)
    if not count:
        return numbers
    rounded = np.asarray(numbers).astype(dtype).astype(np.float64)
    return rounded if count == len(where) else np.where(where, rounded, numbers)


class Pendulum(Dynamics):
    """Pendulum. Torques have the precision of the actions; only images depend on ``last_u``."""

    order = (0, 1)
    constants = ("max_speed", "max_torque", "dt", "g", "m", "l")
    num_actions = 0
    hidden = "last_u"
    no_hidden = np.float64(np.nan)

    @classmethod
    def as_hidden(cls, number: Any) -> Any:
        # Actions of the space's own dtype are in single precision.
        single = np.float32(number)
        return None if np.isnan(number) else single if float(single) == number else number

    def advance(self, states: Motions, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c = self.values
        angle, speed = states.x
        torque = np.clip(actions[:, 0], -c.max_torque, c.max_torque)
        states.hidden[:] = torque
        costs = np.float_power(np.remainder(angle + np.pi, 2 * np.pi) - np.pi, 2.0)
        costs += 0.1 * np.float_power(speed, 2.0)
        costs += 0.001 * _squared(torque)
        fall = 3 * c.g / (2 * c.l) * np.sin(angle)
        speed += (fall + 3.0 / (c.m * c.l**2) * torque) * c.dt
        np.clip(speed, -c.max_speed, c.max_speed, out=speed)
        angle += speed * c.dt
        np.subtract(0.0, costs, out=rewards)
        terminated.fill(False)

    def observe(self, x: Floats, states: Floats, out: NDArray[np.float32]) -> None:
        out[:, 0] = np.cos(x[0])
        out[:, 1] = np.sin(x[0])
        out[:, 2] = x[1]


def _squared(torque: Array) -> Array:
    """Return the square of each torque as ``**`` computes it for a single number."""
    if torque.dtype == np.float64:
        squares: Array = np.float_power(torque, 2.0)
        return squares
    # `**` of a single float32 calls libm's powf, which no operation on float32 arrays does.
    return np.array([number**2 for number in torque], torque.dtype)


class Acrobot(Dynamics):
    """Acrobot, with one fourth-order Runge-Kutta step. The next states have double precision."""

    order = (0, 1, 2, 3)
    constants = (
        "dt",
        "LINK_LENGTH_1",
        "LINK_MASS_1",
        "LINK_MASS_2",
        "LINK_COM_POS_1",
        "LINK_COM_POS_2",
        "LINK_MOI",
        "MAX_VEL_1",
        "MAX_VEL_2",
        "torque_noise_max",
        "book_or_nips",
    )
    num_actions = 3
    takes_single = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._torques = np.array(env.AVAIL_TORQUE, np.float64)

    @classmethod
    def settings(cls, env: Any) -> tuple[Any, ...]:
        return *super().settings(env), *env.AVAIL_TORQUE

    @classmethod
    def largest(cls, env: Any) -> float:
        # Angles are wrapped one turn at a time; from larger numbers, a step leads too far for that,
        # but the environment itself may reach velocities up to its two constants.
        return max(30.0, float(env.MAX_VEL_1), float(env.MAX_VEL_2))

    def advance(self, states: Motions, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c, x = self.values, states.x
        if states.single is not None and states.single.any():
            x[:, states.single] = x[:, states.single].astype(np.float32)
        torque = self._torques.take(actions)
        half = c.dt / 2.0
        first = self._slope(x, torque)
        second = self._slope(x + half * first, torque)
        third = self._slope(x + half * second, torque)
        fourth = self._slope(x + c.dt * third, torque)
        x += c.dt / 6.0 * (first + 2 * second + 2 * third + fourth)
        _wrap(x[0])
        _wrap(x[1])
        np.clip(x[2], -c.MAX_VEL_1, c.MAX_VEL_1, out=x[2])
        np.clip(x[3], -c.MAX_VEL_2, c.MAX_VEL_2, out=x[3])
        np.greater(-np.cos(x[0]) - np.cos(x[1] + x[0]), 1.0, out=terminated)
        np.subtract(terminated, 1.0, out=rewards)

    def _slope(self, x: Floats, torque: Floats) -> Floats:
        c = self.values
        m1, m2, l1, g = c.LINK_MASS_1, c.LINK_MASS_2, c.LINK_LENGTH_1, 9.8
        lc1, lc2, inertia = c.LINK_COM_POS_1, c.LINK_COM_POS_2, c.LINK_MOI
        theta1, theta2, dtheta1, dtheta2 = x
        cos2, sin2 = np.cos(theta2), np.sin(theta2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + inertia + inertia
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + inertia
        phi2 = m2 * lc2 * g * np.cos(theta1 + theta2 - np.pi / 2.0)
        phi1 = (
            -m2 * l1 * lc2 * np.float_power(dtheta2, 2.0) * sin2
            - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2
            + (m1 * lc1 + m2 * l1) * g * np.cos(theta1 - np.pi / 2)
            + phi2
        )
        pull = torque + d2 / d1 * phi1
        if c.book_or_nips != "nips":
            pull -= m2 * l1 * lc2 * np.float_power(dtheta1, 2.0) * sin2
        slope = np.empty_like(x)
        slope[:2] = x[2:]
        slope[3] = (pull - phi2) / (m2 * lc2**2 + inertia - np.float_power(d2, 2.0) / d1)
        np.divide(-(d2 * slope[3] + phi1), d1, out=slope[2])
        return slope

    def observe(self, x: Floats, states: Floats, out: NDArray[np.float32]) -> None:
        out[:, 0] = np.cos(x[0])
        out[:, 1] = np.sin(x[0])
        out[:, 2] = np.cos(x[1])
        out[:, 3] = np.sin(x[1])
        out[:, 4] = x[2]
        out[:, 5] = x[3]


def _wrap(angles: Floats) -> None:
    """Wrap `angles` into ``[-pi, pi]`` in place.

    As in Gymnasium, turns are added or subtracted one by one, because each result is rounded.
    """
    if (np.abs(angles) > _FAR).any():
        raise NotVectorisableError
    turn = np.pi - -np.pi
    while len(far := np.flatnonzero(angles > np.pi)):
        angles[far] -= turn
    while len(far := np.flatnonzero(angles < -np.pi)):
        angles[far] += turn


DYNAMICS: dict[type[Any], type[Dynamics]] = {
    AcrobotEnv: Acrobot,
    CartPoleEnv: CartPole,
    Continuous_MountainCarEnv: MountainCarContinuous,
    MountainCarEnv: MountainCar,
    PendulumEnv: Pendulum,
}

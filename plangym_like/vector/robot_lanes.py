"""`RobotLanes`: lanes of one of Gymnasium's MuJoCo robots, with results computed together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.mujoco_physics import INTEGRATION, PhysicsMemory, lay_out
from plangym_like.envs.mujoco_robots import robot_for
from plangym_like.envs.mujoco_robots.record import Record
from plangym_like.envs.mujoco_robots.robot import Frames, look_in
from plangym_like.envs.mujoco_settings import robot_settings
from plangym_like.states.rows import Row
from plangym_like.vector.lanes import Lanes, Which, gym_env_of, is_plan_env
from plangym_like.vector.plain_envs import WrapperChain, is_bare, shows_its_base, time_limit
from plangym_like.vector.sequential_lanes import LiveEnv, SequentialLanes, one_by_one
from plangym_like.vector.step_arrays import StepArrays

# How many of the first steps the environments take themselves, to check the computed results.
_TRIED = 2
_PYTHONS = (bool, int, float)
# Attributes that resets change, and that steps do not read.
_OF_RESETS = frozenset(("_np_random", "_np_random_seed", "cylinder_pos", "goal", "goal_pos"))
# Attributes that may differ between robots with the same settings.
_OF_EACH = _OF_RESETS | {
    *("_ezpickle_args", "_ezpickle_kwargs", "action_space", "data", "metadata", "model"),
    *("init_qpos", "mujoco_renderer", "observation_space", "observation_structure", "spec"),
}


class RobotLanes(SequentialLanes):
    """Lanes that are simulated one after the other, each in its own environment.

    Rewards, observations and infos of all lanes are computed from the simulations' data with NumPy.
    They equal the environments' own results bit for bit. The first steps also call the
    environments' own ``step``, to check the results. If the results differ, all steps call it.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
        Environments for which `has_robot_form` is true.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__(envs)
        self._bodies: list[_Body] = []
        # The number of compared steps; negative if the environments must be stepped themselves.
        self._tried = 0
        # The infos of the last step, until they are requested, and the lanes of that step.
        self._columns: dict[str, NDArray[Any]] | None = None
        self._stepped: Sequence[int] = ()
        # The type of each info as the environment returns it. Only Python types are restored:
        # NumPy types depend on the dtype of the actions.
        self._kinds: dict[str, type] = {}
        # Whether the record of a lane's last step still describes its environment.
        self._known = np.zeros(len(envs), bool)

    @property
    def infos(self) -> list[dict[str, Any]]:
        columns, self._columns = self._columns, None
        if columns is not None:
            for place, lane in enumerate(self._stepped):
                self._infos[lane] = self._as_returned(columns, place)
        return self._infos

    def _as_returned(self, columns: dict[str, NDArray[Any]], place: int) -> dict[str, Any]:
        """Return the info of row `place` with the types that the environment uses."""
        info = {name: column[place] for name, column in columns.items()}
        for name, value in info.items():
            if self._kinds.get(name) in _PYTHONS:
                info[name] = value.item()
        return info

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        return self._columns if isinstance(self._stepped, range) else None

    def expose(self) -> None:
        super().expose()
        if not self._derives:
            for lane in np.flatnonzero(self._known).tolist():
                self._bodies[lane].derive()
        self._known[:] = False

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        self._known[lane] = False
        return super()._reset(lane, seed, options)

    def _set_state(self, lane: int, row: Row, seed: int | None = None) -> None:
        self._known[lane] = False
        super()._set_state(lane, row, seed)

    def refreshed(self) -> Lanes:
        _ = self.infos
        self._bodies, self._tried = [], 0
        return self if has_robot_form(self.envs) else one_by_one(self)

    def step(self, actions: Any, out: StepArrays, lanes: Which = None) -> None:
        chosen = self._chosen(lanes)
        bodies = self._bodies
        if self.exposed and bodies and any(bodies[lane].has_changed() for lane in (0, *chosen)):
            self._bodies, self._tried = [], 0
        if lanes is not None or not self._usable:
            _ = self.infos  # stores the infos of the previous step, which other lanes keep
        if len(chosen) == 0:
            return
        rows: Any = slice(None) if lanes is None else np.asarray(chosen, np.intp)
        if not self._usable:
            self._stepped = ()
            self._try(actions, out, chosen, rows)
            return
        self._columns, self._stepped = None, ()
        mine = actions[rows]
        if self._known[rows].all():
            self._record.numbers[rows, 0] = self._record.numbers[rows, 1]
        else:
            for lane in chosen:
                bodies[lane].note(0)
        self._known[rows] = False
        derives = self.exposed or self._derives
        truncated = [bodies[lane].advance(mine[at], derives) for at, lane in enumerate(chosen)]
        self._known[rows] = not self.exposed
        found = out if lanes is None else StepArrays(*(array[rows] for array in out))
        found.truncated[...] = truncated
        self._columns, self._stepped = self._settle(rows, mine, found), chosen
        if lanes is not None:
            for target, values in zip(out, found, strict=True):
                target[rows] = values
        for place in np.flatnonzero(found.terminated | found.truncated).tolist():
            self._final_observations[chosen[place]] = found.obs[place].copy()

    @property
    def _usable(self) -> bool:
        return self._tried >= _TRIED

    @property
    def _derives(self) -> bool:
        """Whether the robot's own step reads data that `mj_rnePostConstraint` computes."""
        return bool(self._bodies) and self._robot.contact_forces

    def _settle(self, rows: Any, actions: Any, out: StepArrays) -> dict[str, NDArray[Any]]:
        """Compute all results of the lanes `rows`, except `truncated`, from the recorded data.

        Return the infos as columns.
        """
        numbers = self._record.numbers[rows]
        frames = Frames(numbers, self._places, actions[:, None])
        with np.errstate(all="ignore"):
            rewards, ended, infos = self._robot.settle(frames)
            self._robot.observe(lambda name: look_in(numbers[:, 1], self._places, name), out.obs)
        out.rewards[...] = rewards[:, 0]
        out.terminated[...] = ended if isinstance(ended, bool) else ended[:, 0]
        return {name: column[:, 0].copy() for name, column in infos.items()}

    # The first steps

    def _try(self, actions: Any, out: StepArrays, chosen: Sequence[int], rows: Any) -> None:
        """Step the environments themselves, and compare their results with the computed ones."""
        if self._tried < 0 or not self._is_laid_out():
            self._tried = -1
            super().step(actions, out, chosen)
            return
        for lane in chosen:
            self._bodies[lane].note(0)
        super().step(actions, out, chosen)
        for lane in chosen:
            self._bodies[lane].note(1)
        same = self._computes(actions[rows], out, chosen, rows)
        self._tried = self._tried + 1 if same else -1

    def _computes(self, actions: Any, out: StepArrays, chosen: Sequence[int], rows: Any) -> bool:
        """Return whether the computed results of the last step are those in `out`.

        If the model of the robots has other joints than Gymnasium's, computing may raise any error.
        """
        theirs = StepArrays(*(array[rows] for array in out))
        mine = StepArrays(*(np.empty_like(array) for array in theirs))
        mine.truncated[...] = theirs.truncated
        infos = [self._infos[lane] for lane in chosen]
        self._kinds = {name: type(value) for name, value in infos[0].items()}
        with contextlib.suppress(Exception):
            columns = self._settle(rows, actions, mine)
            told = [self._as_returned(columns, place) for place in range(len(chosen))]
            return all(map(_same_bytes, mine, theirs)) and _alike(told, infos)
        return False

    def _is_laid_out(self) -> bool:
        """Lay out the lanes' data if this has not been done; return whether it is possible."""
        if not self._tried and not has_robot_form(self.envs):
            return False
        if not self._bodies:
            with contextlib.suppress(Exception):
                self._lay_out()
                return True
            self._bodies = []
        return bool(self._bodies)

    def _lay_out(self) -> None:
        bases = [gym_env_of(env).unwrapped for env in self.envs]
        robot_class: Any = robot_for(bases[0])
        self._robot = robot_class(bases[0])
        for lane, env in enumerate(self.envs):
            base = bases[lane]
            physics = PhysicsMemory(base.model, base.data, robot_class.carried(base))
            places = dict(physics.places)
            slices, nbytes = lay_out(robot_class(base).recorded(), physics.nbytes, places)
            if not lane:
                self._places = places
                self._record = Record(self.num_lanes, 1, physics.state_nbytes, nbytes)
                views = self._record.views(self.num_lanes)
            live = self._gym_envs[lane]
            self._bodies.append(_Body(gym_env_of(env), live, physics.slices + slices, views[lane]))


class _Body:
    """The simulation of one lane, and the record of its data before and after a step."""

    def __init__(self, env: Any, live: Any, parts: Any, views: Any) -> None:
        base, limit = env.unwrapped, time_limit(env)
        self._model, self._data, self._substeps = base.model, base.data, base.frame_skip
        self._current = live.current if isinstance(live, LiveEnv) else None
        self._ctrl, self._limit, self._parts = base.data.ctrl, limit, parts
        self._views = views
        self._settings, self._wrappers = robot_settings(base), WrapperChain(env)

    def has_changed(self) -> bool:
        """Return whether the settings of the environment or the wrappers around it have changed."""
        return any(part.change() for part in self._settings) or self._wrappers.has_changed()

    def note(self, when: int) -> None:
        """Record the simulation's data before a step (`when` is 0) or after it (`when` is 1)."""
        self._bring_back()
        state, everything = self._views[when]
        mujoco.mj_getState(self._model, self._data, state, INTEGRATION)
        for view, place in self._parts:
            everything[place] = view

    def derive(self) -> None:
        """Compute the data that `MujocoEnv` derives after each step, such as contact forces."""
        mujoco.mj_rnePostConstraint(self._model, self._data)

    def _bring_back(self) -> None:
        if self._current is not None and self._current.row is not None:
            self._current.bring_back()

    def advance(self, action: Any, derives: bool) -> bool:
        """Simulate a step as `MujocoEnv` does; return whether the time limit has been reached.

        `derives` says whether to call `derive`; no simulation step depends on the data of `derive`.
        """
        self._bring_back()
        self._ctrl[:] = action
        mujoco.mj_step(self._model, self._data, self._substeps)
        if derives:
            self.derive()
        self.note(1)
        limit = self._limit
        if limit is None:
            return False
        limit._elapsed_steps += 1
        return bool(limit._elapsed_steps >= limit._max_episode_steps)


def has_robot_form(envs: Sequence[Any]) -> bool:
    """Return whether `envs` are the same supported robot, bare (`is_bare`), with equal settings."""
    if len({is_plan_env(env) for env in envs}) > 1 or not all(map(shows_its_base, envs)):
        return False
    gym_envs = [gym_env_of(env) for env in envs]
    bases: list[Any] = [env.unwrapped for env in gym_envs]
    if robot_for(bases[0]) is None or not all(map(is_bare, gym_envs)):
        return False
    first = _settings_of(bases[0])
    return all(_settings_of(base) == first for base in bases[1:])


def _settings_of(base: Any) -> tuple[Any, ...]:
    """Return all settings that affect a robot's results, in a form that can be compared."""
    values = {name: _comparable(each) for name, each in vars(base).items() if name not in _OF_EACH}
    return type(base), base.dt, base.model.nq, base.model.nbody, values


def _comparable(value: Any) -> Any:
    """Return a comparable form of `value`; values with equal forms affect a robot equally."""
    if type(value) in (*_PYTHONS, str, type(None)):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return tuple(map(_comparable, value))
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    # Other values may have any effect (a function may replace a method), so they are never equal.
    return object()


def _same_bytes(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.tobytes() == other.tobytes()


def _alike(mine: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]) -> bool:
    """Return whether `mine` and `theirs` hold the same numbers, with the same names and types."""

    def plain(infos: Iterable[dict[str, Any]]) -> list[Any]:
        return [
            [(name, str(type(value)), np.asarray(value).tobytes()) for name, value in each]
            for each in (info.items() for info in infos)
        ]

    return plain(mine) == plain(theirs)

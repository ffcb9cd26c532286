"""Steps of robots in MuJoCo: simulates row by row, and vectorises all other computations.

`simulate` restores, simulates and records; a `Robot` computes rewards, infos and observations from
the record. `RobotKernel` steps the rows of batches in this way, and `RobotLaneKernel` the
environments of a vectorised environment. If MuJoCo has ``mujoco.batch`` (3.17 and later), `Engine`
takes the place of `simulate` in batches of robots for which both give the same results.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import py_object, pythonapi
from itertools import repeat
from typing import Any, ClassVar, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Rows, given_states, single_steps
from plangym_like.envs.kernel import Kernel, NotVectorisableError, held_frames
from plangym_like.envs.mujoco.physics import INTEGRATION, PhysicsCodec, lay_out
from plangym_like.states.rows import HEADER_NBYTES, Row
from plangym_like.support import fork_safety

mujoco_batch: Any = None
if importlib.util.find_spec("mujoco.batch"):
    mujoco_batch = importlib.import_module("mujoco.batch")

# The number of frames to simulate before computing their results. Their data fit into a cache.
_FRAMES_AT_ONCE = 1024
# The largest number of frames of one row; the data of all of them are in memory together.
_MOST_FRAMES = 4096
_KEPT_RECORDS = 2
# The number of rows that an `Engine` of one thread simulates before it notes in which row it is.
_ENGINE_ROWS = 128
# The most rows that each of several threads simulates at once, and the bytes of their data.
_THREAD_ROWS, _THREAD_NBYTES = 256, 8 << 20
# Threads wait for each other after each frame. So worker processes step rows of several frames if
# there are fewer rows, or if the data of more would not fit.
_FEWEST_THREAD_ROWS = 32

Array = NDArray[Any]
Look = Callable[[str], Array]
Places = Mapping[str, tuple[slice, tuple[int, ...]]]
# The record of one row at each time: the integration state, and all bytes.
Views = list[tuple[NDArray[np.float64], NDArray[np.uint8]]]


class Robot(abc.ABC):
    """The vectorised step of one class of robots in Gymnasium or dm_control.

    Every result is bit-identical to the result of the environment's own ``step``. So each
    expression keeps the operands, order and dtypes of the formulas in the environment's source.
    Settings are read from the environment at each call, because users may change them there.

    Attributes
    ----------
    contact_forces : bool
        Whether the step reads results of `mj_rnePostConstraint`.
    advance : callable
        ``advance(model, data, substeps)`` simulates one frame.
    refresh : callable or None
        ``refresh(model, data)`` is called after a restore to compute the arrays `advance` reads.
    stage : int or None
        The ``mujoco.mjtStage`` up to which `advance` computes the new state after ``mj_step``;
        ``None`` if it does something else.
    versions : sequence of MjModel
        The versions of the model, if states say in their number ``model`` which is theirs.
    info_names : sequence of str
        The keys of the environment's infos, in order.
    """

    contact_forces: ClassVar[bool] = False
    stage: int | None = int(mujoco.mjtStage.mjSTAGE_NONE)
    advance: Callable[[Any, Any, int], None] = staticmethod(mujoco.mj_step)
    refresh: Callable[[Any, Any], None] | None = None

    def __init__(self, env: Any) -> None:
        self.env = env
        self.versions: Sequence[Any] = ()
        self.info_names: Sequence[str] = ()

    def simulation(self) -> tuple[Any, Any, int]:
        """Return the model, the data, and the number of substeps per frame."""
        return self.env.model, self.env.data, self.env.frame_skip

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        """Return the simulation's arrays that a step reads *before* it simulates, by name."""
        return {}

    def recorded(self) -> dict[str, Array]:
        """Return the arrays that a step reads after it simulates but that states do not hold."""
        return {}

    def shown_positions(self, look: Look, hidden: int) -> Array:
        """Return ``qpos``, without its first `hidden` numbers if observations exclude them."""
        excluded = self.env._exclude_current_positions_from_observation
        return look("qpos")[..., hidden if excluded else 0 :]

    def over(self) -> bool:
        """Return whether the current state certainly ends the episode."""
        return False

    @abc.abstractmethod
    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        """Return the rewards, terminated flags and infos of all frames, each ``(N, F, ...)``.

        Infos may have more keys than `info_names`.
        """

    @abc.abstractmethod
    def observe(self, look: Look, out: Array) -> None:
        """Write observations into `out`; ``look(name)`` returns an array ``(..., *shape)``."""


class Simulation(NamedTuple):
    """A simulation, and its arrays to record: (array as bytes, slice of the recorded bytes)."""

    model: Any
    data: Any
    substeps: int
    parts: list[tuple[NDArray[np.uint8], slice]]


class Recording:
    """Which data of a robot's simulation are recorded, and where.

    Parameters
    ----------
    robot : Robot
    physics : PhysicsCodec
        The layout of the simulation's state, with which the data of each frame begin.

    Attributes
    ----------
    robot : Robot
    places : dict of str to (slice, shape)
        For each array, its place among the data of one frame, in units of 8 bytes, and its shape.
    nbytes : int
        The bytes of the data of one frame.
    """

    def __init__(self, robot: Robot, physics: PhysicsCodec) -> None:
        self.robot = robot
        self.places = dict(physics.places)
        slices, self.nbytes = lay_out(robot.recorded(), physics.nbytes, self.places)
        self._parts, self._state_nbytes = physics.slices + slices, physics.state_nbytes

    def simulation(self) -> Simulation:
        """Return the robot's simulation, with the current number of substeps."""
        return Simulation(*self.robot.simulation(), self._parts)

    def simulations(self, numbers: NDArray[np.float64]) -> Iterable[Simulation]:
        """Return the simulation of each row; `numbers` are the data of the rows, ``(N, W)``."""
        one, versions = self.simulation(), self.robot.versions
        if not versions:
            return repeat(one)
        chosen = numbers[:, self.places["model"][0]].astype(int).ravel().tolist()
        return [one._replace(model=versions[version]) for version in chosen]

    def memory(self, capacity: int, frames: int) -> Record:
        """Return memory for up to `capacity` rows of `frames` frames each."""
        return Record(capacity, frames, self._state_nbytes, self.nbytes)

    def look(self, numbers: NDArray[np.float64]) -> Look:
        """Return a function that returns an array ``(..., *shape)`` of the data ``(..., W)``."""
        return lambda name: _look_in(numbers, self.places, name)

    def compute_rewards(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        """Return the result of `Robot.compute_rewards`, with the infos that the step has."""
        with np.errstate(all="ignore"):
            rewards, ended, infos = self.robot.compute_rewards(frames)
        return rewards, ended, {name: infos[name] for name in self.robot.info_names}


class Record:
    """The data of simulations before and after each frame.

    Parameters
    ----------
    capacity, frames : int
    state_nbytes, nbytes : int
        Bytes of the integration state, and of all data recorded at one time.

    Attributes
    ----------
    bytes : array ``(capacity, frames + 1, nbytes) uint8``
    numbers : array ``(capacity, frames + 1, nbytes // 8) float64``
        The same memory, as numbers.
    """

    def __init__(self, capacity: int, frames: int, state_nbytes: int, nbytes: int) -> None:
        self.bytes = np.zeros((capacity, frames + 1, nbytes), np.uint8)
        self.numbers = self.bytes.view(np.float64)
        self._size = state_nbytes // 8
        self._views: list[Views] = []

    def views(self, count: int) -> list[Views]:
        """Return the views of at least `count` rows.

        Making a view takes about as long as using it, so views are kept for later calls.
        """
        while len(self._views) < count:
            row = len(self._views)
            states = self.numbers[row, :, : self._size]
            self._views.append(list(zip(states, self.bytes[row], strict=True)))
        return self._views


class Frames:
    """The simulation data of N rows before and after each of F frames.

    Parameters
    ----------
    before, after : callable
        ``before(name)`` returns the array `name` before each frame, ``(N, F, *shape)``, and
        ``after(name)`` that after each frame.
    actions : array ``(N, F, nu)``
        The actions, in the dtype in which they were given.
    """

    def __init__(self, before: Look, after: Look, actions: Array) -> None:
        self.before, self.after = before, after
        # The order in which NumPy adds up numbers depends on their layout in memory.
        self.actions = np.ascontiguousarray(actions)


def simulate(
    robot: Robot,
    simulations: Iterable[Simulation],
    views: Sequence[Views],
    actions: Array,
    frames: NDArray[np.int64],
    cursor: NDArray[np.int64],
) -> None:
    """Simulate N rows one after the other, and record their data after each frame.

    Parameters
    ----------
    robot : Robot
    simulations : iterable of Simulation
        The simulation to use for each row.
    views : sequence of Views
        The records of the rows. Each begins with the state to restore, which holds the controls of
        the first frame.
    actions : array ``(N, F, nu)``
        The controls of each frame.
    frames : array ``(N,)``
        The number of frames to simulate. If a row's episode ends earlier, its number is reduced to
        the frames simulated.
    cursor : array ``(1,)``
        Holds the index of the first row; updated to that of the row that is simulated.
    """
    advance, refresh = robot.advance, robot.refresh
    derive = mujoco.mj_rnePostConstraint if robot.contact_forces else None
    write, read = mujoco.mj_setState, mujoco.mj_getState
    first = int(cursor[0])
    rows = zip(frames.tolist(), simulations, views, strict=False)
    for row, (wanted, simulation, record) in enumerate(rows):
        model, data, substeps, parts = simulation
        cursor[0] = first + row
        write(model, data, record[0][0], INTEGRATION)
        if refresh is not None:
            refresh(model, data)
        if wanted > 1:
            ctrl, controls = data.ctrl, actions[row]
        for frame in range(wanted):
            if frame:
                if robot.over():
                    frames[row] = frame
                    break
                ctrl[:] = controls[frame]
            advance(model, data, substeps)
            if derive is not None:
                derive(model, data)
            state, everything = record[frame + 1]
            read(model, data, state, INTEGRATION)
            for view, place in parts:
                everything[place] = view


class Engine:
    """Simulates blocks of rows as `simulate` does, with ``mujoco.batch``.

    Its loop over the rows is in C++, which saves a tenth of the time of a small robot, and can run
    on several threads.

    Parameters
    ----------
    recording : Recording
        With the robot of `recording`, `suits` is true of it.
    threads : int
        The number of threads, with that of the caller.
    capacity : int
        The most rows of one block.

    Attributes
    ----------
    states : array ``(capacity, S) float64``
        The integration state of each row.
    """

    def __init__(self, recording: Recording, threads: int, capacity: int) -> None:
        robot, self._recording = recording.robot, recording
        self._stage, self._substeps = robot.stage, 1
        self._batch = mujoco_batch.Batch(robot.simulation()[0], capacity, threads)
        if threads > 1:
            fork_safety.close_in_copies(self)
        self.states: NDArray[np.float64] = self._batch.state
        self._controls = self._batch.bind("ctrl")
        self._fields = {name: self._batch.bind(name) for name in robot.recorded()}

    def close(self) -> None:
        """Never free the memory: in a forked copy of the process, this would wait for threads."""
        pythonapi.Py_IncRef(py_object(self._batch))

    @staticmethod
    def suits(robot: Robot, physics: PhysicsCodec) -> bool:
        """Return whether an engine records all that `robot` needs.

        This is the integration state and whole arrays that each step computes. Contact forces are
        not among them.
        """
        if mujoco_batch is None or robot.stage is None or robot.contact_forces:
            return False
        if not {"model"}.issuperset(physics.carried):
            return False
        data, recorded = robot.simulation()[1], robot.recorded()
        return all(
            array.dtype == np.float64 and array.shape == np.shape(getattr(data, name, 0.0))
            for name, array in recorded.items()
        )

    def restore(self, numbers: NDArray[np.float64], count: int) -> None:
        """Restore the states of `count` rows; `numbers` ``(count or 1, W)`` begin with them."""
        simulation = self._recording.simulation()
        models, self._substeps = simulation.model, simulation.substeps
        if self._recording.robot.versions:
            models = [one.model for one in self._recording.simulations(numbers)]
            models = models * (count // len(models)) + models[:1] * (len(self.states) - count)
        self._batch.set_models(models)  # they may have been changed since the last call
        self.states[:count] = numbers[:, : self.states.shape[1]]

    def advance(self, controls: Array, going: NDArray[np.bool_] | bool = True) -> None:
        """Simulate one frame of the first N rows, or those of them for which `going` is true.

        `controls` is ``(N, nu)``.

        Raises
        ------
        NotVectorisableError
            MuJoCo reports an error, or a callback of MuJoCo is a Python function.
        """
        count = len(controls)
        self._controls[:count] = controls
        rows = np.zeros(len(self.states), bool)
        rows[:count] = going
        try:
            self._batch.step(rows, self._substeps, self._stage)
        except (ValueError, mujoco_batch.SimulationError) as error:
            raise NotVectorisableError from error

    def look(self, count: int) -> Look:
        """Return a function that returns an array ``(count, 1, *shape)`` of the first rows."""
        states, fields, places = self.states[:count, None], self._fields, self._recording.places

        def look(name: str) -> Array:
            field = fields.get(name)
            return _look_in(states, places, name) if field is None else field[:count, None]

        return look

    def simulate(
        self, numbers: NDArray[np.float64], actions: Array, frames: NDArray[np.int64]
    ) -> None:
        """Simulate N rows; `numbers` is their record, and the rest is as in `simulate`."""
        count, size, places = len(numbers), self.states.shape[1], self._recording.places
        self.restore(numbers[:, 0], count)
        least = int(np.min(frames))
        for frame in range(int(np.max(frames))):
            self.advance(actions[:, frame], frame < least or frames > frame)
            numbers[:, frame + 1, :size] = self.states[:count]
            for name, field in self._fields.items():
                numbers[:, frame + 1, places[name][0]] = field[:count].reshape(count, -1)


class RobotKernel(Kernel):
    """Steps blocks of rows of one robot.

    Parameters
    ----------
    robot : Robot
    physics : PhysicsCodec
        The layout of the simulation's state in a row.
    frameskip : int
        The number of frames per action.
    reseed : callable
        ``reseed(payload, seed)`` writes a random generator made from `seed` into a payload.
    elapsed_at : int, optional
        The offset of the time limit's step count in a payload.
    limit : callable
        Returns the number of steps of the time limit, if there is one.
    """

    rolls_out_one = True

    def __init__(
        self,
        robot: Robot,
        physics: PhysicsCodec,
        frameskip: int,
        reseed: Callable[[Row, int], None],
        *,
        elapsed_at: int | None = None,
        limit: Callable[[], int] = lambda: 0,
    ) -> None:
        self._recording = Recording(robot, physics)
        self._has_engine = Engine.suits(robot, physics)
        # Whether it also simulates several frames of a row. Not if episodes may end before the last
        # one, because all rows would go on to the end.
        self._holds_frames = self._has_engine and type(robot).over is Robot.over
        self._engines: dict[int, Engine] = {}  # by the number of threads
        self._nbytes = physics.nbytes
        self._frameskip = frameskip
        self._reseed = reseed
        self._counter = None if elapsed_at is None else (HEADER_NBYTES + elapsed_at) // 8
        self._limit = limit
        # By the number of frames.
        self._records: dict[int, Record] = {}

    def use_for_frames(self) -> bool:
        self._frameskip = 1
        return True

    def takes(self, rows: Rows) -> bool:
        return self._most_frames(rows.inputs) <= _MOST_FRAMES and super().takes(rows)

    def takes_threads(self, inputs: Inputs) -> bool:
        frames = self._most_frames(inputs)
        if frames == 1 or not self._holds_frames:
            return frames == 1 and self._has_engine
        if 2 * single_steps(inputs) * self._frameskip < inputs.count * frames:
            return False  # most rows have few frames, and results are computed for all frames
        fits = self._rows_at_once(frames, 2) >= 4 * _FEWEST_THREAD_ROWS
        return fits and inputs.count >= _FEWEST_THREAD_ROWS

    def _most_frames(self, inputs: Inputs) -> float:
        """Return the number of frames of the longest row; infinity for plans with several `dt`."""
        if inputs.horizon and not isinstance(inputs.dt, int):
            return math.inf
        return self._held_frames(inputs, slice(None))[1] * max(1, inputs.horizon)

    def _rows_at_once(self, frames: float, threads: int) -> int:
        """Return how many rows of `frames` frames are stepped together."""
        if threads > 1:
            most = _THREAD_NBYTES / ((frames + 1) * self._recording.nbytes)
            return threads * max(1, min(_THREAD_ROWS, int(most)))
        most = max(1, int(_FRAMES_AT_ONCE / frames))
        return min(_ENGINE_ROWS, most) if self._has_engine else most

    def _engine(self, threads: int) -> Engine:
        engine = self._engines.get(threads)
        if engine is None:
            capacity = self._rows_at_once(1, threads)
            engine = self._engines[threads] = Engine(self._recording, threads, capacity)
        return engine

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state."""
        self._step(rows, first, last, rows.inputs.actions[:, None], 1)

    def rollout(self, rows: Rows, first: int, last: int) -> None:
        """Step each of the rows ``first:last`` through its T actions, or until its episode ends.

        ``dt`` must be the same for all rows.
        """
        self._step(rows, first, last, rows.inputs.actions, rows.inputs.horizon)

    def _step(self, rows: Rows, first: int, last: int, plans: NDArray[Any], horizon: int) -> None:
        """Step each of the rows ``first:last`` through its `horizon` actions in `plans`."""
        try:
            self._step_blocks(rows, first, last, plans, horizon)
        except Exception as error:
            # Which row raises is shown by the environment's own steps.
            raise NotVectorisableError from error

    def _step_blocks(
        self, rows: Rows, first: int, last: int, plans: NDArray[Any], horizon: int
    ) -> None:
        """Do what `_step` does, block by block; any error may be raised."""
        most = self._held_frames(rows.inputs, slice(first, last))[1]
        threads = rows.inputs.threads
        size = self._rows_at_once(most * horizon, threads)
        engine = self._engine(threads) if self._has_engine else None
        for start in range(first, last, size):
            block = slice(start, min(start + size, last))
            held, most = self._held_frames(rows.inputs, block)
            actions = plans[block] if most == 1 else plans[block].repeat(most, axis=1)
            if engine is not None and actions.shape[1] == 1:
                self._run_frame(engine, rows, block, actions)
            else:
                self._run(engine, rows, block, actions, held * horizon, most)

    def _held_frames(self, inputs: Inputs, block: slice) -> tuple[int | NDArray[np.int64], int]:
        """Return how many frames each row of `block` holds an action, and the maximum of these."""
        held = held_frames(inputs, block, self._frameskip)
        return held, held if isinstance(held, int) else int(np.max(held, initial=1))

    def _run(
        self,
        engine: Engine | None,
        rows: Rows,
        block: slice,
        actions: NDArray[Any],
        wanted: int | NDArray[np.int64],
        held: int,
    ) -> None:
        """Step the rows of `block` for up to `wanted` frames each.

        `actions` has one action for each frame; an action is repeated for up to `held` frames.
        """
        source = given_states(rows.inputs, block)
        elapsed = self._elapsed(source)
        rows.cursor[0] = block.start
        count = len(actions)
        ran = np.empty(count, np.int64)
        ran[:] = wanted
        if self._counter is not None:
            np.minimum(ran, np.maximum(self._limit() - elapsed, 1), out=ran)
        record = self._record(count, actions.shape[1])
        numbers = record.numbers[:count]
        recording, end = self._recording, HEADER_NBYTES + self._nbytes
        record.bytes[:count, 0, : self._nbytes] = source[:, HEADER_NBYTES:end]
        numbers[:, 0, recording.places["ctrl"][0]] = actions[:, 0]
        if engine is not None and self._holds_frames:
            engine.simulate(numbers, actions, ran)
        else:
            simulations, views = recording.simulations(numbers[:, 0]), record.views(count)
            simulate(recording.robot, simulations, views, actions, ran, rows.cursor)
        if recording.robot.versions:
            place = recording.places["model"][0]
            numbers[:, 1:, place] = numbers[:, :1, place]
        before, after = recording.look(numbers[:, :-1]), recording.look(numbers[:, 1:])
        frames = Frames(before, after, actions)
        if actions.shape[1] == 1:
            self._write_frame(rows, block, frames, elapsed)
            last = record.bytes[:count, 1]
        else:
            self._write_results(rows, block, numbers, frames, elapsed, ran, held)
            last = record.bytes[np.arange(count), ran]
        self._store(rows, block, source, last[:, : self._nbytes], ran, elapsed)

    def _run_frame(self, engine: Engine, rows: Rows, block: slice, actions: NDArray[Any]) -> None:
        """Do what `_run` does for one frame, without a record."""
        source = given_states(rows.inputs, block)
        count, elapsed = len(actions), self._elapsed(source)
        rows.cursor[0], end = block.start, HEADER_NBYTES + self._nbytes
        numbers = source[:, HEADER_NBYTES:end].view(np.float64)
        engine.restore(numbers, count)
        engine.advance(actions[:, 0])
        if len(numbers) != count:
            numbers = np.broadcast_to(numbers, (count, numbers.shape[1]))
        before, after = self._recording.look(numbers[:, None]), engine.look(count)
        self._write_frame(rows, block, Frames(before, after, actions), elapsed)
        self._store(rows, block, source, engine.states[:count].view(np.uint8), 1, elapsed)

    def _record(self, count: int, frames: int) -> Record:
        """Return memory for at least `count` rows of `frames` frames each."""
        record = self._records.get(frames)
        if record is None or len(record.bytes) < count:
            while len(self._records) >= _KEPT_RECORDS:
                del self._records[next(iter(self._records))]
            record = self._recording.memory(max(count, _FRAMES_AT_ONCE // frames), frames)
            self._records[frames] = record
        return record

    # Results

    def _write_frame(
        self, rows: Rows, block: slice, frames: Frames, elapsed: NDArray[np.int64]
    ) -> None:
        """Write the results of one frame per row, like `_write_results` in a fourth of the time."""
        lead = (block, 0) if rows.inputs.horizon else (block,)
        rewards, ended, infos = self._recording.compute_rewards(frames)
        rows.n_step[block] = 1
        # Adding 0 turns -0.0 into 0.0, as sums that begin at 0 do.
        np.add(rewards[:, 0], 0.0, out=rows.rewards[lead])
        rows.terminateds[lead] = ended if isinstance(ended, bool) else ended[:, 0]
        rows.truncateds[lead] = self._late(elapsed + 1)
        if rows.observations is not None:
            self._recording.robot.observe(frames.after, rows.observations[lead][:, None])
        for name, column in rows.columns.items():
            column[block] = infos[name][:, 0]

    def _write_results(
        self,
        rows: Rows,
        block: slice,
        numbers: NDArray[np.float64],
        frames: Frames,
        elapsed: NDArray[np.int64],
        ran: NDArray[np.int64],
        held: int,
    ) -> None:
        """Write the results of each row's 1 or T actions, each held for up to `held` frames.

        `numbers` is the record of `frames`, of which each row has simulated `ran`. If an episode
        ended before, its number is reduced.
        """
        rewards, ended, infos = self._recording.compute_rewards(frames)
        ended = np.broadcast_to(ended, rewards.shape)
        over = np.where(ended.any(axis=1), ended.argmax(axis=1), len(ended[0]))
        np.minimum(ran, over + 1, out=ran)
        flags = over < ran, self._late(elapsed + ran)
        count, horizon = len(ran), max(1, rows.inputs.horizon)
        out = rows.rewards[block]
        rows.n_step[block] = ran
        going = np.arange(rewards.shape[1]) < ran[:, None]
        shape = (count * horizon, held)
        out[...] = _summed(rewards.reshape(shape), going.reshape(shape)).reshape(out.shape)
        reached = np.arange(horizon) >= ((ran - 1) // held)[:, None]
        for column, flag in zip((rows.terminateds, rows.truncateds), flags, strict=True):
            shown = reached & np.broadcast_to(flag, count)[:, None]
            column[block] = shown.reshape(out.shape)
        if rows.observations is not None:
            ends = np.minimum(held * np.arange(1, horizon + 1), ran[:, None])
            observations = rows.observations[block].reshape(count, horizon, -1)
            seen = numbers[np.arange(count)[:, None], ends]
            self._recording.robot.observe(self._recording.look(seen), observations)
        for name, column in rows.columns.items():
            column[block] = infos[name][np.arange(count), ran - 1]

    def _late(self, elapsed: NDArray[np.int64]) -> Any:
        """Return which rows have reached the time limit."""
        return False if self._counter is None else elapsed >= self._limit()

    # Rows before and after the simulation

    def _elapsed(self, source: Row) -> NDArray[np.int64]:
        if self._counter is None:
            return np.zeros(1, np.int64)
        return source.view(np.int64)[:, self._counter].copy()

    def _store(
        self,
        rows: Rows,
        block: slice,
        source: Row,
        physics: Row,
        ran: int | NDArray[np.int64],
        elapsed: NDArray[np.int64],
    ) -> None:
        """Write the next states.

        `physics`, the step counts and, if there are seeds, the random generators are new. The rest
        of each row is copied from `source`.
        """
        if rows.next_states is None:
            return
        fresh, end = rows.next_states[block], HEADER_NBYTES + physics.shape[1]
        fresh[:, HEADER_NBYTES:end] = physics
        fresh[:, :HEADER_NBYTES] = source[:, :HEADER_NBYTES]
        fresh[:, end:] = source[:, end:]
        if rows.inputs.seeds is not None:
            for row, seed in zip(fresh, rows.inputs.seeds[block].tolist(), strict=True):
                self._reseed(row[HEADER_NBYTES:], seed)
        if self._counter is not None:
            fresh.view(np.int64)[:, self._counter] = elapsed + ran


def _look_in(record: NDArray[np.float64], places: Places, name: str) -> Array:
    """Return the array `name` ``(..., *shape)`` in `record` ``(..., W)``."""
    place, shape = places[name]
    part = record[..., place]
    return part if len(shape) == 1 else part.reshape(*record.shape[:-1], *shape)


def _summed(rewards: NDArray[Any], going: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the sum of each row of `rewards` where `going` is true, added up in frame order."""
    total = np.zeros(len(rewards))
    for frame in range(rewards.shape[1]):
        total += np.where(going[:, frame], rewards[:, frame], 0.0)
    return total

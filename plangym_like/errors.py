"""All exceptions of plangym_like.

::

    PlangymError
    +-- InputError (ValueError)            an argument that cannot be used
    |   +-- ActionError                    an action outside the action space, or NaN
    +-- StateError (ValueError)            a state row or state file that cannot be used
    |   +-- StateFormatError               malformed: wrong size, damaged, truncated
    |   +-- StateMismatchError             well formed, but of another environment or version
    |   +-- StateCapacityError             a payload that is larger than the row
    |   +-- UntrustedStateError            a pickled row of another session
    |   +-- StateLostError                 the current state was lost in a call that failed
    +-- ObservationError (ValueError)      an observation that does not fit its space
    +-- RewardError (ValueError)           a reward that is not one number
    +-- EnvApiError (TypeError)            an environment that does not follow Gymnasium's API
    +-- SnapshotError (TypeError)          an environment that cannot be saved exactly
    +-- ImpureEnvironmentError (RuntimeError)  a repeated row gave another result
    +-- MissingExtraError (ImportError)    an optional dependency is not installed
    +-- ClosedError (RuntimeError)         use after close
    +-- RowExitError (RuntimeError)        a row raised SystemExit or the like in a worker
    +-- WorkerError (RuntimeError)         a failure of a child process
    |   +-- WorkerDiedError                a child process has ended
    |   +-- WorkerStartError               workers cannot be started, or a cluster cannot be joined
    |   +-- PoisonInputError               one row kills every worker that steps it
    |   +-- StepTimeoutError (TimeoutError)  rows that exceeded ``step_timeout``
    |   +-- WorkerTimeoutError (TimeoutError)  a busy child process makes no progress
    |   +-- RemoteError                    a remote exception whose own type cannot be sent
    +-- RemoteTraceback                    a child's traceback, the ``__cause__`` of its exception
"""

from __future__ import annotations

from collections.abc import Sequence


class PlangymError(Exception):
    """The base of all errors in this package.

    The first argument is the message. Any further arguments are the attributes of the class.

    Examples
    --------
    >>> import plangym_like
    >>> try:
    ...     plangym_like.make("CartPole-v1", frameskip=0)
    ... except PlangymError as error:
    ...     print(type(error).__name__, isinstance(error, ValueError))
    InputError True
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InputError(PlangymError, ValueError):
    """An argument cannot be used; nothing was sent or changed.

    Examples
    --------
    >>> import plangym_like
    >>> plangym_like.make("CartPole-v1", worker=2)
    Traceback (most recent call last):
        ...
    plangym_like.errors.InputError: ... an option 'worker'; did you mean 'n_workers'?
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([0, 1, 1], [state, state])
    Traceback (most recent call last):
        ...
    plangym_like.errors.InputError: ... got 3 actions, 2 states
    >>> env.step_batch([0, 1, 1], state).rewards  # one state for all rows
    array([1., 1., 1.])
    """


class ActionError(InputError):
    """An action does not belong to the action space, or holds a NaN.

    Examples
    --------
    >>> import plangym_like
    >>> strict = plangym_like.make("Pendulum-v1", out_of_bounds="raise")
    >>> state, obs, info = strict.reset(seed=0)
    >>> strict.step([3.0])
    Traceback (most recent call last):
        ...
    plangym_like.errors.ActionError: action [3.0] is not in the action space ...
    >>> clipping = plangym_like.make("Pendulum-v1", out_of_bounds="clip")
    >>> clipping.step([3.0], state).reward == clipping.step([2.0], state).reward
    True
    """


class StateError(PlangymError, ValueError):
    """A state row, or a file of state rows, cannot be used."""


class StateFormatError(StateError):
    """A state row is malformed: its size, type, header or checksum is wrong.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step(0, state[:-1])
    Traceback (most recent call last):
        ...
    plangym_like.errors.StateFormatError: a state row of this environment has 112 bytes, ...
    """


class StateMismatchError(StateError):
    """A well-formed state row belongs to another environment, version or configuration.

    Attributes
    ----------
    expected, got : str
        Descriptions of the environment's own rows and of the given row.

    Examples
    --------
    >>> import plangym_like
    >>> pole, lake = plangym_like.make("CartPole-v1"), plangym_like.make("FrozenLake-v1")
    >>> try:
    ...     pole.set_state(lake.reset(seed=0).state)
    ... except StateMismatchError as error:
    ...     print("CartPole-v1" in error.expected, "FrozenLake-v1" in error.got)
    True True
    """

    def __init__(self, message: str, expected: str = "", got: str = "") -> None:
        super().__init__(message, expected, got)
        self.expected = expected
        self.got = got


class StateCapacityError(StateError):
    """A snapshot is larger than the fixed width of the environment's state rows.

    Examples
    --------
    >>> import plangym_like
    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> plangym_like.make(PendulumEnv, snapshot="pickle", state_capacity=64)
    Traceback (most recent call last):
        ...
    plangym_like.errors.StateCapacityError: ... make the environment with state_capacity=...
    """


class UntrustedStateError(StateError):
    """A pickled row was not made in this session, and ``allow_pickle`` is not set.

    A session is a process together with its workers and Ray actors.
    """


class ObservationError(PlangymError, ValueError):
    """An environment returned an observation whose keys, shape or dtype do not fit its space.

    Attributes
    ----------
    path : tuple
        The keys and indices that lead to the part that does not fit; empty if it is the whole
        observation.
    """

    def __init__(self, message: str, path: tuple[object, ...] = ()) -> None:
        super().__init__(message, path)
        self.path = path

    def __str__(self) -> str:
        place = "".join(f"[{key!r}]" for key in self.path)
        return f"obs{place}: {self.args[0]}" if place else super().__str__()


class RewardError(PlangymError, ValueError):
    """An environment returned a reward that is not one number or, in a search, is not finite."""


class EnvApiError(PlangymError, TypeError):
    """An environment's ``reset`` or ``step`` returned something that violates Gymnasium's API.

    Examples
    --------
    >>> import plangym_like
    >>> from gymnasium.envs.classic_control import CartPoleEnv
    >>> class OldCartPole(CartPoleEnv):
    ...     def step(self, action):
    ...         obs, reward, terminated, truncated, info = super().step(action)
    ...         return obs, reward, terminated or truncated, info
    >>> plangym_like.make(OldCartPole)
    Traceback (most recent call last):
        ...
    plangym_like.errors.EnvApiError: step returned a tuple of 4 parts, ... as in Gym before 0.26
    """


class StateLostError(StateError):
    """The current state is lost, because a call that should have replaced it raised an error."""


class SnapshotError(PlangymError, TypeError):
    """An environment or wrapper cannot be saved and restored exactly.

    Examples
    --------
    >>> import numpy as np, plangym_like
    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> class Wind(PendulumEnv):
    ...     def step(self, action):
    ...         self.state = self.state + np.random.normal(size=2)  # self.np_random could be saved
    ...         return super().step(action)
    >>> plangym_like.make(Wind)
    Traceback (most recent call last):
        ...
    plangym_like.errors.SnapshotError: Wind cannot be saved exactly, ...
    """


class ImpureEnvironmentError(PlangymError, RuntimeError):
    """A row was stepped a second time by the audit, and the results differ.

    Attributes
    ----------
    index : int
        The index of the row in its batch; 0 for a single step.
    field : str
        The part that differs, such as ``"rewards"`` or ``"info['lives']"``.
    values : str
        The two values of that part.
    """

    def __init__(self, message: str, index: int = -1, field: str = "", values: str = "") -> None:
        super().__init__(message, index, field, values)
        self.index = index
        self.field = field
        self.values = values


class MissingExtraError(PlangymError, ImportError):
    """An optional dependency is missing; the message gives the install command, if there is one."""


class ClosedError(PlangymError, RuntimeError):
    """The environment or process was used after it had been closed.

    Examples
    --------
    >>> import plangym_like
    >>> with plangym_like.make("CartPole-v1") as env:
    ...     state, obs, info = env.reset(seed=0)
    >>> env.step(0)
    Traceback (most recent call last):
        ...
    plangym_like.errors.ClosedError: the environment CartPole-v1 has been closed: ...
    """


class RowExitError(PlangymError, RuntimeError):
    """A row raised ``SystemExit``, ``KeyboardInterrupt`` or a similar exception in a worker.

    If such an exception were raised here unchanged, it would end the program. A row that is stepped
    in this process raises it unchanged, as everywhere in Python.
    """


class WorkerError(PlangymError, RuntimeError):
    """A child process itself failed, rather than the code that it ran."""


class WorkerDiedError(WorkerError):
    """A child process has ended.

    Attributes
    ----------
    pid, exitcode : int or None
        The process id, and the exit status (negative: the signal that ended it; ``None``: unknown).

    Examples
    --------
    >>> import os
    >>> from plangym_like import ExternalProcess
    >>> with ExternalProcess(lambda: os) as worker:
    ...     try:
    ...         worker.call("_exit", 3).result()
    ...     except WorkerDiedError as error:
    ...         error.exitcode
    3
    """

    def __init__(self, message: str, pid: int | None = None, exitcode: int | None = None) -> None:
        super().__init__(message, pid, exitcode)
        self.pid = pid
        self.exitcode = exitcode


class WorkerStartError(WorkerError):
    """Workers cannot be started, or a cluster cannot be joined.

    The platform is not Linux, a worker imports a module that starts workers, or child processes
    repeatedly died or hung before they were ready.
    """


class PoisonInputError(WorkerError):
    """One row of a batch repeatedly killed workers, even new ones that stepped no other row.

    Attributes
    ----------
    index : int
        The index of the row.
    exitcode : int or None
        The exit status of the last worker (negative: the signal that ended it).
    """

    def __init__(self, message: str, index: int = -1, exitcode: int | None = None) -> None:
        super().__init__(message, index, exitcode)
        self.index = index
        self.exitcode = exitcode


class StepTimeoutError(WorkerError, TimeoutError):
    """Rows exceeded ``step_timeout``, and were too slow again when they were retried.

    Attributes
    ----------
    indices : tuple of int
        The indices of the rows.
    """

    def __init__(self, message: str, indices: Sequence[int] = ()) -> None:
        super().__init__(message, tuple(indices))
        self.indices = tuple(indices)


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A busy child process has made no progress for too long."""


class RemoteError(WorkerError):
    """Replaces an exception of a child process if the type of that exception cannot be sent."""


class RemoteTraceback(PlangymError):
    """The text of a child process's traceback; the ``__cause__`` of the child's exception.

    Examples
    --------
    >>> from plangym_like import ExternalProcess
    >>> with ExternalProcess(lambda: [3, 1, 2]) as numbers:
    ...     try:
    ...         numbers.index(5)
    ...     except ValueError as error:
    ...         type(error.__cause__).__name__
    'RemoteTraceback'
    """

    def __str__(self) -> str:
        return "\n" + "".join(str(argument) for argument in self.args)

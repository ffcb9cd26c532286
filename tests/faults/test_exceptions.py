"""What is raised in a worker is raised here, as what it is, wherever it was raised."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hosted import Stubborn, TwoArguments, run_script
from playground import CounterEnv, sending
from usual import first_of

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import RemoteTraceback, RowExitError
from plangym_like.processes.external_process import ExternalProcess


class WithLock(Exception):
    """An exception that does not pickle, because of what it was given."""

    def __init__(self) -> None:
        super().__init__("locked", threading.Lock())


class KeywordOnly(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__("keyword only")
        self.code = code


class Unloadable(Exception):
    """An exception that pickles and raises when it is loaded, wherever that is."""

    def __reduce__(self) -> Any:
        return _raise_when_loaded, ()


def _raise_when_loaded() -> None:
    raise RuntimeError("not to be loaded")


def group() -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", [KeyError("inner"), ValueError("other")])


MAKERS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ArithmeticError("plain", 7),
    "two arguments": lambda: TwoArguments(3, "text"),
    "keyword only": lambda: KeywordOnly(code=5),
    "unpicklable": WithLock,
    "unpicklable attributes": lambda: Stubborn("stubborn"),
    "unloadable": Unloadable,
    "group": group,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "of the system": lambda: FileNotFoundError(2, "no such file", "/nowhere"),
    "a local class": lambda: type("Local", (Exception,), {})("made on the spot"),
}
TYPES = {what: type(make()) for what, make in MAKERS.items()}


class Thrower:
    """Raises what it is told, in its constructor or in a method."""

    def __init__(self, what: str = "") -> None:
        self.what = what
        if what:
            self.throw(what)

    def throw(self, what: str) -> None:
        raise MAKERS[what]()


@pytest.fixture(scope="module")
def process() -> Iterator[ExternalProcess]:
    with ExternalProcess(Thrower) as process:
        yield process


def check(error: BaseException, what: str) -> None:
    """Fail unless `error` is what was raised in the worker, with the traceback from there."""
    if what == "a local class":
        assert isinstance(error, Exception)
    else:
        assert type(error) is TYPES[what]
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "test_exceptions.py" in str(error.__cause__)
    assert "worker.py" not in str(error.__cause__) or what == "group"
    if what == "plain":
        assert error.args == ("plain", 7)
    elif what == "two arguments":
        assert isinstance(error, TwoArguments) and (error.code, str(error)) == (3, "3: text")
    elif what == "keyword only":
        assert isinstance(error, KeywordOnly) and error.code == 5
    elif what == "unpicklable attributes":
        assert isinstance(error, Stubborn) and error.number == 7
    elif what == "group":
        assert isinstance(error, ExceptionGroup) and len(error.exceptions) == 2
        assert isinstance(error.exceptions[0], KeyError)
    elif what == "SystemExit":
        assert isinstance(error, SystemExit) and error.code == 3
    elif what == "of the system":
        assert isinstance(error, OSError) and error.filename == "/nowhere"


@pytest.mark.parametrize("what", MAKERS)
def test_through_a_process(process: ExternalProcess, what: str) -> None:
    pid = process.pid
    with pytest.raises(BaseException) as caught:
        process.throw(what)
    check(caught.value, what)
    assert process.what == "" and process.pid == pid  # the worker lives on


@pytest.mark.parametrize("what", first_of(MAKERS, 3))
def test_in_a_constructor(what: str) -> None:
    with ExternalProcess(lambda: Thrower(what)) as process:
        for use in (process.wait_ready, lambda: process.what):
            with pytest.raises(BaseException) as caught:
                use()
            check(caught.value, what)


class Trap:
    """Raises at some actions, in other processes than the one in which it was made."""

    def __init__(self) -> None:
        self.names, self._owner = list(MAKERS), os.getpid()

    def __call__(self, action: int) -> None:
        if 100 <= action < 100 + len(self.names) and os.getpid() != self._owner:
            raise MAKERS[self.names[action - 100]]()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[ParallelEnv, list[str]]]:
    trap = Trap()
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True, trap=trap) as env:
        sending(env)
        yield env, trap.names


@pytest.mark.parametrize("what", MAKERS)
def test_in_a_row(pair: tuple[ParallelEnv, list[str]], what: str) -> None:
    env, names = pair
    state = env.reset(seed=0).state
    pids = [process.pid for process in env.batch_env]
    actions = np.arange(60)
    actions[41] = 100 + names.index(what)
    with pytest.raises(Exception) as caught:
        env.step_batch(actions, state)
    masked = env.step_batch(actions, state, on_error="mask")
    assert list(masked.infos.errors) == [41]
    for error in (caught.value, masked.infos.errors[41]):
        if issubclass(TYPES[what], Exception):
            check(error, what)
        else:  # as what it is, it would end this program
            assert type(error) is RowExitError and what in str(error)
        assert "(in row 41 of a batch of 60)" in error.__notes__
    # The same workers go on.
    assert env.step_batch(np.arange(60), state).obs.shape == (60, 4, 2)
    assert [process.pid for process in env.batch_env] == pids
    assert env.stats.deaths == 0


OF_THE_SCRIPT = """
import gymnasium, plangym_like

class Broken(Exception):
    def __init__(self, code, *, why):
        super().__init__(code)
        self.why = why

class Env(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(4)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return 0, {}
    def step(self, action):
        if action == 3:
            raise Broken(3, why="three")
        self.at = int(action)
        return self.at, 1.0, False, False, {}

with plangym_like.make(Env, n_workers=2, isolate=True) as env:
    state, _, _ = env.reset(seed=0)
    try:
        env.step_batch([0, 1, 3], state)
    except Broken as error:
        print("caught", error.code if hasattr(error, "code") else error.args, error.why)
"""


def test_an_exception_of_the_users_script_is_caught_by_its_own_class() -> None:
    result = run_script(OF_THE_SCRIPT)
    assert (result.stdout, result.returncode) == ("caught (3,) three\n", 0), result.stderr

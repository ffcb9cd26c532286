"""What is raised in a worker is raised here, as what it is, wherever it was raised."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hosted import Stubborn, TwoArguments, run_script
from playground import CounterEnv, sending
from usual import first_of

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import RemoteError, RemoteTraceback, RowExitError
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


class MuteError(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class ExitingError(Exception):
    """An exception that ends the program that shows it."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


def group() -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", [KeyError("inner"), ValueError("other")])


MAKERS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ArithmeticError("plain", 7),
    "two arguments": lambda: TwoArguments(3, "text"),
    "keyword only": lambda: KeywordOnly(code=5),
    "unpicklable": WithLock,
    "unpicklable attributes": lambda: Stubborn("stubborn"),
    "unloadable": Unloadable,
    "mute": MuteError,
    "exiting": ExitingError,
    "group": group,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "of the system": lambda: FileNotFoundError(2, "no such file", "/nowhere"),
    "a local class": lambda: type("Local", (Exception,), {})("made on the spot"),
}
TYPES: dict[str, type[BaseException]] = {
    "plain": ArithmeticError,
    "two arguments": TwoArguments,
    "keyword only": KeywordOnly,
    "unpicklable": WithLock,
    "unpicklable attributes": Stubborn,
    "unloadable": Unloadable,
    "mute": MuteError,
    "exiting": ExitingError,
    "group": ExceptionGroup,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "of the system": FileNotFoundError,
    "a local class": Exception,
}


class Awkward:
    """Raises when it is taken apart for sending."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __reduce__(self) -> Any:
        raise MAKERS[self.what]()


class Trojan:
    """Raises when it is put together in a worker."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __reduce__(self) -> Any:
        return _unpack_trojan, (self.what,)


def _unpack_trojan(what: str) -> None:
    raise MAKERS[what]()


class Thrower(gymnasium.Env[Any, Any]):
    """Raises what it is told where it is told."""

    observation_space = spaces.Discrete(10)
    action_space = spaces.Discrete(10)

    def __init__(self, what: str = "", where: str = "") -> None:
        self.what, self.where = what, where
        self._pass_by("constructor")

    def _pass_by(self, place: str) -> None:
        if self.where == place:
            raise MAKERS[self.what]()

    def reset(self, **kwargs: Any) -> Any:
        self._pass_by("reset")
        return 0, {}

    def step(self, action: Any) -> Any:
        self._pass_by("step")
        info = {"gift": Awkward(self.what)} if self.where == "pickling of the result" else {}
        return 0, 0.0, False, False, info

    def render(self) -> Any:
        self._pass_by("render")

    def set_up(self, what: str, where: str) -> int:
        self.what, self.where = what, where
        return os.getpid()

    def take(self, gift: Any) -> None:
        pass


PLACES: dict[str, Callable[[ExternalProcess, str], Any]] = {
    "step": lambda process, what: process.call("step", 1)(30),
    "reset": lambda process, what: process.call("reset")(30),
    "render": lambda process, what: process.call("render")(30),
    "pickling of the result": lambda process, what: process.call("step", 1)(30),
    "unpickling of the argument": lambda process, what: process.call("take", Trojan(what))(30),
}


@pytest.fixture(scope="module")
def process() -> Iterator[ExternalProcess]:
    with ExternalProcess(Thrower) as process:
        yield process


def check(error: BaseException, what: str) -> None:
    """Fail unless `error` is what was raised in the worker, with the traceback from there."""
    assert isinstance(error, TYPES[what])
    if what != "a local class":
        assert type(error) is TYPES[what]
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "test_exceptions.py" in str(error.__cause__)
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


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("what", MAKERS)
def test_through_a_process(process: ExternalProcess, what: str, where: str) -> None:
    pid = process.call("set_up", what, where)(30)
    with pytest.raises(BaseException) as caught:
        PLACES[where](process, what)
    check(caught.value, what)
    assert process.call("set_up", "", "")(30) == pid  # the worker lives on
    assert process.call("step", 1)(30)[1] == 0.0


@pytest.mark.parametrize("what", first_of(MAKERS, 3))
def test_in_a_constructor(what: str) -> None:
    with ExternalProcess(lambda: Thrower(what, "constructor")) as process:
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
    assert (result.stdout, result.stderr) == ("caught (3,) three\n", "")


def test_a_type_that_exists_only_in_the_worker_is_told_in_words() -> None:
    with ExternalProcess(lambda: _ForeignType()) as process:
        with pytest.raises(RemoteError, match="StrangeError") as caught:
            process.call("go")(30)
        assert process.call("stay")(30) == "here"
        assert "an odd thing" in str(caught.value) + str(caught.value.__cause__)


class _ForeignType:
    def go(self) -> None:
        import sys
        import types

        module = types.ModuleType("nowhere_else")
        sys.modules["nowhere_else"] = module
        kind = type("StrangeError", (Exception,), {"__module__": "nowhere_else"})
        module.StrangeError = kind  # type: ignore[attr-defined]
        raise kind("an odd thing")

    def stay(self) -> str:
        return "here"

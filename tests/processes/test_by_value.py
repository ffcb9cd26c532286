"""Classes that a worker cannot import are sent by value; what cannot be sent is named."""

from __future__ import annotations

import argparse
import gc
import pickle
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hosted import run_script, script_environ
from usual import first_of

import plangym_like
from plangym_like.processes import by_value
from plangym_like.processes import wire as messages
from plangym_like.processes.external_process import ExternalProcess

WALK = """
import enum
import functools
import gymnasium

STRIDE = 3

class Way(enum.Enum):
    LEFT, RIGHT = -1, 1

@functools.lru_cache
def length(way):
    return STRIDE * way.value

class Base(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.way, self.place = Way.RIGHT, 0
        return [self.place], {}

class Walk(Base):
    def step(self, action):
        self.way = Way.RIGHT if action else Way.LEFT
        self.place += length(self.way)
        return [self.place], float(self.way is Way.RIGHT), False, False, {}

    def itself(self):
        return self
"""

# Each imports `Walk` from walks.py in a way that a worker cannot repeat.
IMPORTS = {
    "spec": """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("walks_by_path", "FOLDER/hidden/walks.py")
walks = sys.modules["walks_by_path"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(walks)
""",
    "directory": """
import os, sys
sys.path.insert(0, "")
os.chdir("FOLDER/hidden")
import walks
os.chdir("FOLDER")
""",
    "another of the name": """
import sys
sys.path.insert(0, "FOLDER/hidden")
import walks
sys.path[0] = "FOLDER/other"
""",
    "path removed": """
import sys
sys.path.insert(0, "FOLDER/hidden")
import walks
del sys.path[0]
""",
}
USE = """
import numpy as np
import plangym_like

found = []
for options in ({}, {"n_workers": 2, "isolate": True}):
    with plangym_like.make(walks.Walk, **options) as env:
        state, obs, info = env.reset(seed=0)
        states = state
        for _ in range(3):
            batch = env.step_batch([1, 0, 1, 1], states)
            states = batch.states
        found.append((batch.obs.tolist(), batch.rewards.tolist()))
assert found[0] == found[1], found
with plangym_like.ExternalProcess(walks.Walk) as process:
    process.reset()
    process.step(1)
    assert process.place == 3
    assert process.way is walks.Way.RIGHT
    copy = process.itself()
    assert type(copy) is walks.Walk and copy.place == 3
    process.set_wrapper_attr("way", walks.Way.LEFT)
    assert process.way is walks.Way.LEFT
print("done")
"""


@pytest.mark.parametrize("how", first_of(IMPORTS, 2))
def test_a_class_of_a_module_that_workers_cannot_import(how: str, tmp_path: Path) -> None:
    for folder, content in (("hidden", WALK), ("other", "class Walk: pass")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "walks.py").write_text(content)
    script = IMPORTS[how].replace("FOLDER", str(tmp_path)) + USE
    done = run_script(script, path=tmp_path / "script.py")
    assert done.stdout == "done\n", done.stderr


def test_a_class_in_a_test_file_that_pytest_imports_by_its_path(tmp_path: Path) -> None:
    test = "import sys\nwalks = sys.modules[__name__]\n" + WALK + "\ndef test_it():\n"
    test += "".join(f"    {line}\n" for line in USE.splitlines())
    folder = tmp_path / "tests" / "walks"
    folder.mkdir(parents=True)
    (folder / "test_walks.py").write_text(test)
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-c", "import pytest, sys; sys.exit(pytest.main())", *options],
        cwd=tmp_path,
        env=script_environ(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


GRID = """
import gymnasium

class Tile:
    def __init__(self, colour):
        self.colour = colour

WALL, FLOOR = Tile("grey"), object()

class Base(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tiles = [(FLOOR, WALL)[kind] for kind in self.np_random.integers(0, 2, 8)]
        self.tiles[7] = Tile("grey")
        self.place = 0
        return [self.place], {}

    def step(self, action):
        self.place = (self.place + action) % 8
        tile = self.tiles[self.place]
        reward = 2.0 * (tile is WALL) + (tile is FLOOR)
        return [self.place], reward, False, False, {}
"""
USE_GRID = """
import plangym_like

class Mine(Base):
    pass

mine = Mine()
mine.reset(seed=1)
actions = [1, 2, 0, 1, 1, 2, 1, 1, 2, 1, 2, 2] * 5
expected = [mine.step(action)[1] for action in actions]
assert set(expected) == {0.0, 1.0, 2.0}
for options in ({}, {"n_workers": 2}, {"n_workers": 2, "isolate": True}):
    with plangym_like.make(Mine, **options) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact"), env.snapshot_note
        states = env.reset(seed=1).state
        found = []
        for action in actions:
            batch = env.step_batch([action] * 6, states)
            assert len(set(batch.rewards)) == 1
            found.append(batch.rewards[0])
            states = batch.states
        assert found == expected, options
print("done")
"""


@pytest.mark.parametrize("module", first_of(["__main__", "grid"]))
def test_a_global_that_only_a_base_class_compares_is_the_same_object(
    module: str, tmp_path: Path
) -> None:
    (tmp_path / "grid.py").write_text(GRID)
    script = (GRID if module == "__main__" else "from grid import Base\n") + USE_GRID
    done = run_script(script, path=tmp_path / "script.py")
    assert done.stdout == "done\n", done.stderr


GLOBALS = {
    "lock": ("threading.Lock()", "_thread.lock"),
    "connection": ('sqlite3.connect(":memory:")', "sqlite3.Connection"),
    "generator": ("(number for number in range(3))", "builtins.generator"),
}
SCRIPT = """
import sqlite3, sys, threading
import gymnasium
import plangym_like

THING = MAKE

class Base(gymnasium.Env):
    action_space = observation_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def touch(self):
        return [THING for _ in range(1)]

class Mine(Base):
    def step(self, action):
        self.touch()
        return 0, 0.0, False, False, {}

for start in (
    lambda: plangym_like.make(Mine, n_workers=2),
    lambda: plangym_like.make(lambda: Mine(), isolate=True),
    lambda: plangym_like.ExternalProcess(Mine),
):
    try:
        start()
    except TypeError as error:
        message = str(error)
        print(message)
        assert "the global 'THING' that Base.touch uses" in message, message
        assert "KIND" in message and "a module of its own" in message, message
    else:
        raise AssertionError("no error")
"""


@pytest.mark.parametrize("what", first_of(GLOBALS))
def test_a_global_of_the_script_that_cannot_be_sent_is_named(what: str, tmp_path: Path) -> None:
    make, kind = GLOBALS[what]
    script = SCRIPT.replace("MAKE", make).replace("KIND", kind)
    done = run_script(script, path=tmp_path / "script.py")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


class Compiled:
    """Cannot be pickled, as what compilers put into their classes."""

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("cannot pickle compiled code")


def test_a_class_that_cannot_be_sent_is_named() -> None:
    class Body:
        code = Compiled()

    def make() -> Any:
        return Body()

    with pytest.raises(TypeError, match="compiled code") as caught:
        ExternalProcess(make)
    message = str(caught.value)
    assert f"an object of class {__name__}.Compiled" in message
    assert f"the attribute 'code' of {Body.__qualname__}" in message
    assert "to a module of its own" in message
    assert type(caught.value.__cause__) is pickle.PicklingError


def test_what_uses_an_argument_is_named() -> None:
    lock = threading.Lock()
    with ExternalProcess(dict) as process:
        with pytest.raises(TypeError, match="object of class _thread.lock cannot be sent"):
            process.update({"a": 1, "b": lock})
        held = types.SimpleNamespace(guard=lock)
        message = "_thread.lock .the attribute 'guard' of SimpleNamespace. cannot be sent"
        with pytest.raises(TypeError, match=message):
            process.update({"a": held})
    with pytest.raises(TypeError, match="the variable 'lock' that .*lambda.* uses"):
        ExternalProcess(lambda: lock)


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    given = ["program", "--level", "3"]
    monkeypatch.setattr(sys, "argv", given)
    yield given


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_have_the_arguments_of_the_program(method: str, arguments: list[str]) -> None:
    with ExternalProcess(lambda: sys, start_method=method) as process:
        assert process.argv == arguments


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of a module that other processes cannot import."""
    module: Any = types.ModuleType("at")
    exec("class Thing: pass", vars(module))
    monkeypatch.setitem(sys.modules, "at", module)
    yield module.Thing
    if "at" in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(module)


def test_a_module_that_workers_cannot_import_is_sent_from_then_on(
    nowhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [messages.dumps_by_value(nowhere), messages.dumps([nowhere()])]
    monkeypatch.delitem(sys.modules, "at")
    assert pickle.loads(data[0]).__name__ == "Thing"
    assert type(pickle.loads(data[1])[0]).__name__ == "Thing"


def test_files_of_modules_are_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    find = by_value._find_spec

    def noted(name: str, path: Any) -> Any:
        asked.append(name)
        return find(name, path)

    monkeypatch.setattr(by_value, "_find_spec", noted)
    monkeypatch.syspath_prepend(str(tmp_path))  # so that nothing is known
    for _ in range(3):
        by_value.pickle_by_value(argparse.Namespace)
    assert asked.count("argparse") == 1
    monkeypatch.chdir(tmp_path)
    by_value.pickle_by_value(argparse.Namespace)
    assert asked.count("argparse") == 2
    # Another module of the same name.
    monkeypatch.setitem(sys.modules, "argparse", types.ModuleType("argparse"))
    by_value.pickle_by_value(argparse.Namespace)
    assert asked.count("argparse") == 3


def test_modules_that_workers_import_are_not_sent() -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    data = by_value.pickle_by_value(
        [plangym_like.make, ExternalProcess, lambda: 3, Path, threading]
    )
    assert len(data) < 3000
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_any_object_may_stand_for_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(types.ModuleType):
        __hash__ = None  # type: ignore[assignment]

    for stand_in in (types.SimpleNamespace(), Odd("stand_in")):
        monkeypatch.setitem(sys.modules, "stand_in", stand_in)  # type: ignore[arg-type]

        def work() -> int:
            return 1

        work.__module__ = "stand_in"
        assert messages.loads(messages.dumps_by_value(work))() == 1
        if isinstance(stand_in, Odd):
            cloudpickle.unregister_pickle_by_value(stand_in)


def test_no_module_is_kept_alive() -> None:
    def work() -> int:
        return 1

    work.__module__ = "short_lived"
    sys.modules["short_lived"] = module = types.ModuleType("short_lived")
    messages.dumps_by_value(work)
    del sys.modules["short_lived"]
    cloudpickle.unregister_pickle_by_value(module)
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None

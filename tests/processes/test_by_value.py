"""Classes of a script are sent by value; what cannot be sent is named."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hosted import run_script

from plangym_like.processes.external_process import ExternalProcess

WALK = """
import dataclasses
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

    @functools.cached_property
    def size(self):
        return 3

    def itself(self):
        return self

    def slotted(self):
        return Slotted(self.size)

@dataclasses.dataclass(slots=True)
class Slotted:
    number: int
"""

USE = """
import numpy as np
import plangym_like

found = []
for options in ({}, {"n_workers": 2, "isolate": True}):
    with plangym_like.make(Walk, **options) as env:
        state, obs, info = env.reset(seed=0)
        states = state
        for _ in range(3):
            batch = env.step_batch([1, 0, 1, 1], states)
            states = batch.states
        found.append((batch.obs.tolist(), batch.rewards.tolist()))
assert found[0] == found[1], found
with plangym_like.ExternalProcess(Walk) as process:
    process.reset()
    process.step(1)
    assert process.place == 3
    assert process.way is Way.RIGHT
    copy = process.itself()
    assert type(copy) is Walk and copy.place == 3
    process.set_wrapper_attr("way", Way.LEFT)
    assert process.way is Way.LEFT
    assert process.slotted() == Slotted(3)
print("done")
"""


def test_classes_of_a_script(tmp_path: Path) -> None:
    done = run_script(WALK + USE, path=tmp_path / "script.py")
    assert done.stdout == "done\n", done.stderr


def test_a_module_that_workers_cannot_import_is_sent_once_it_is_registered() -> None:
    module: Any = types.ModuleType("walks")
    sys.modules["walks"] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        exec(WALK, vars(module))
        with ExternalProcess(module.Walk) as process:
            process.reset()
            process.step(1)
            assert process.place == 3
            assert type(process.itself()) is module.Walk
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules["walks"]


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
    assert "to a module of its own" in message
    assert type(caught.value.__cause__) is pickle.PicklingError

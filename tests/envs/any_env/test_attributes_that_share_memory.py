"""Objects that share memory with an array: a pickle would separate them."""

import array
import collections
import ctypes
import re
import weakref
from typing import Any

import numpy as np
import pytest
from hostile_envs import LATE, Walk

import plangym_like
from plangym_like.envs.pickled import PickledSimulator
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.configuration import is_handle


class Late(Walk):
    """Adds what `kept` says to the reward, but only after any trial."""

    begins = LATE
    kept: Any
    seen: Any

    def extra(self, action: int) -> float:
        self.kept[1] += action
        return float(self.seen[1])


class Bytes(Late):
    def begin(self) -> None:
        self.seen = bytearray(16)
        self.kept = np.frombuffer(self.seen, np.uint8)


class Array(Late):
    def begin(self) -> None:
        self.seen = array.array("d", [0, 0])
        self.kept = np.frombuffer(self.seen)


class TwoViews(Late):
    def begin(self) -> None:
        memory = bytearray(16)
        self.seen, self.kept = np.frombuffer(memory), np.frombuffer(memory)


class CArray(Late):
    def begin(self) -> None:
        self.seen = (ctypes.c_double * 2)()
        self.kept = np.ctypeslib.as_array(self.seen)


class LibraryData:
    """Data of a library: arrays show parts of its memory through capsules (MuJoCo's ``MjData``)."""

    def __init__(self, content: tuple[float, ...] = (0.0, 0.0)) -> None:
        self.memory = np.array(content)

    def __reduce__(self) -> Any:
        return LibraryData, (tuple(self.memory.tolist()),)

    def __getitem__(self, at: int) -> Any:
        return self.memory[at]

    def __setitem__(self, at: int, value: float) -> None:
        self.memory[at] = value


class Capsule(Late):
    def begin(self) -> None:
        self.kept = LibraryData()
        self.seen = np.from_dlpack(self.kept.memory)[:]


class CapsuleAsRecords(Late):
    def begin(self) -> None:
        self.kept = LibraryData()
        self.seen = np.from_dlpack(self.kept.memory).view(np.recarray)


class Named(np.ndarray):
    total = 0


class Attributes(Late):
    def begin(self) -> None:
        self.kept = np.zeros(2).view(Named)
        self.kept.total = 0

    def extra(self, action: int) -> float:
        self.kept.total += action
        return float(self.kept.total)


class WeakProxy(Late):
    def begin(self) -> None:
        self.seen = collections.UserList([0, 0])
        self.kept = weakref.proxy(self.seen)


class DictIterator(Late):
    def begin(self) -> None:
        self.table = dict.fromkeys(range(100), 0)
        self.items = iter(self.table.values())

    def extra(self, action: int) -> float:
        for key in self.table:
            self.table[key] += action
        return float(next(self.items))


REFUSED = {
    Bytes: "the memory of the array belongs to a bytearray",
    Array: "the memory of the array belongs to a array",
    TwoViews: "the memory of the array belongs to a bytearray",
    CArray: "the memory of the array belongs to a .*",
    Capsule: "the memory of the array belongs to a library",
    CapsuleAsRecords: "the memory of the array belongs to a library",
    Attributes: "the attributes of an object of class .*Named would be lost",
    WeakProxy: "a weak proxy would come back as a copy",
    DictIterator: "an iterator over a dict would no longer belong",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_a_pickle_would_separate_is_replayed(kind: type[Late]) -> None:
    with pytest.raises(SnapshotError, match=REFUSED[kind]):
        PickledSimulator(kind)
    with plangym_like.make(kind) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact")
        assert re.search(REFUSED[kind], env.snapshot_note)
        raw = kind()
        raw.reset(seed=0)
        state = env.reset(seed=0).state
        for step in range(LATE + 5):
            state, _, reward, *_ = env.step(step % 3, state)
            assert reward == raw.step(step % 3)[1]


class Apart(Walk):
    """Nothing in it shares memory with anything that is not a plain array."""

    def begin(self) -> None:
        self.plain = np.zeros(4)
        self.views = [self.plain[1:], self.plain[::2], self.plain.reshape(2, 2).T]
        self.fixed = [np.frombuffer(b"12345678", np.uint8), np.frombuffer(b"12345678", np.uint8)]
        self.own = [np.zeros(8), np.ma.masked_array([1, 2], [0, 1])]
        self.bytes = bytearray(8)
        self.windows = np.lib.stride_tricks.sliding_window_view(np.zeros(4), 2)
        self.memory = array.array("d", [0, 0])

    def extra(self, action: int) -> float:
        self.views[0][action] += 1
        return float(self.views[1].sum() + self.own[1].sum())


def test_memory_of_its_own_is_pickled() -> None:
    with plangym_like.make(Apart) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")


def test_an_array_of_ctypes_is_no_window() -> None:
    """The class of an array belongs to the module that needed it first, here to OpenGL."""
    names = {"__name__": "OpenGL.arrays", "ctypes": ctypes}
    exec("kind = ctypes.c_double * 123", names)
    kind = ctypes.c_double * 123
    assert kind is names["kind"] and kind.__module__ == "OpenGL.arrays"
    assert not is_handle(kind())


class Net(Walk):
    """Has a network of torch, whose weights change."""

    def begin(self) -> None:
        torch = pytest.importorskip("torch")
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
        for parameter in self.net.parameters():
            torch.nn.init.constant_(parameter, 0.5)

    def extra(self, action: int) -> float:
        self.net[0].weight.data += 0.25 * action
        return float(self.net[0].weight)


def test_a_module_of_torch_is_pickled() -> None:
    with plangym_like.make(Net, audit_every=1) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        plain = Net()
        plain.reset(seed=0)
        state = env.reset(seed=0).state
        for action in (1, 0, 1, 1):
            wanted = plain.step(action)[1]
            batch = env.step_batch([action, 1 - action], state)
            state = batch.states[0]
            assert batch.rewards[0] == wanted

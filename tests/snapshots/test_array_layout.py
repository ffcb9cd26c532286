"""Arrays in a pickle go on sharing memory, and their axes lie in it as they did."""

from __future__ import annotations

import io
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

import plangym_like
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.array_layout import (
    ArrayLayout,
    OverlapError,
    refuse_hidden_memory,
    root_of,
)
from plangym_like.snapshots.chains import reachable


class Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, whole: set[int]) -> None:
        super().__init__(stream, protocol=5)
        self.arrays = ArrayLayout(whole)

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is np.ndarray:
            return self.arrays.reduce(thing) or NotImplemented
        return NotImplemented


def dumped(value: Any) -> bytes:
    whole: set[int] = set()
    while True:
        stream = io.BytesIO()
        try:
            Pickler(stream, whole).dump(value)
        except OverlapError as overlap:
            assert overlap.args[0] not in whole
            whole.add(overlap.args[0])
        else:
            return stream.getvalue()


def again(value: Any, times: int = 3) -> Any:
    for _ in range(times):
        value = pickle.loads(dumped(value))
    return value


def test_a_row_of_a_large_batch_is_pickled_without_the_batch() -> None:
    batch = np.arange(100_000.0).reshape(1000, 100)
    for view in (batch[7], batch[7, ::2], batch[7:9, ::-3], [batch[7], batch[9], batch[7, 3:5]]):
        assert len(dumped(view)) < 4000
        # The gaps hold nothing of others'.
        data = dumped(view)
        batch[10:] += 1
        assert dumped(again(view)) == dumped(again(view, 4)) and data == dumped(view)


def test_the_order_of_the_axes_is_kept() -> None:
    cube = np.random.default_rng(0).normal(size=(4, 5, 6))
    arrays = [cube.transpose(axes) for axes in [(0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)]]
    # An array that shares no memory, with axes neither in C nor in Fortran order.
    arrays += [
        cube.transpose(1, 0, 2) + 1,
        cube[::2, 1:, ::-1],
        np.broadcast_to(cube[0], (3, 5, 6)),
    ]
    arrays += [cube.T.copy(), np.array(3.0), np.zeros((0, 3)), cube[:0], cube[1, 2, 3:4]]
    for array in arrays:
        other = again(array)
        assert other.strides == array.strides or not array.size
        assert other.tobytes() == array.tobytes()
        assert other.dtype == array.dtype and other.shape == array.shape


def test_memory_that_was_shared_is_shared() -> None:
    board = np.arange(24).reshape(4, 6)
    fortran = np.asfortranarray(board + 100)
    values = [board, board[2], board.reshape(-1), board[::-1, ::2], board.T, board.view(np.uint8)]
    values += [fortran[1], fortran, fortran[:, 3], fortran.T]
    for order in (values, values[::-1], values[3:] + values[:3]):
        other = again(order)
        for one in range(len(order)):
            for two in range(len(order)):
                shared = np.shares_memory(order[one], order[two])
                assert np.shares_memory(other[one], other[two]) == shared
        for arrays in (order, other):
            arrays[0].flat[0] = 77
            arrays[-1].flat[-1] = 78
        for array, restored in zip(order, other, strict=True):
            assert array.tobytes() == restored.tobytes()


def test_arrays_of_objects_and_of_other_classes_are_left_to_numpy() -> None:
    objects = np.array([None, "a", (1, 2)], object)
    record = np.zeros(3, [("a", "i4"), ("b", "f8")]).view(np.recarray)
    masked = np.ma.masked_array([1, 2], [True, False])
    assert again(objects[1:]).tolist() == ["a", (1, 2)]
    assert type(again(record)) is np.recarray and again(masked).mask.tolist() == [True, False]


class Board(gymnasium.Env):
    """Reads late, and through a view, what was written into a board."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.board = np.zeros((4, 4))
        self.corner = self.board[1:3, 1:3]

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.board[:] = 0, 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.board[1, 1] += action
        seen = float(self.corner.sum()) if self.steps > 30 else 0.0
        return np.array([seen]), seen, False, False, {}


def test_an_environment_that_looks_at_its_board_through_a_view_goes_on() -> None:
    plain = Board()
    plain.reset(seed=0)
    truth = [plain.step(step % 3)[1] for step in range(60)]
    with plangym_like.make(Board) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        state, *_ = env.reset(seed=0)
        for step, reward in enumerate(truth):
            state, _, found, *_ = env.step_batch([step % 3], state)
            assert found.tolist() == [reward]


def test_a_class_that_belongs_to_no_module_is_looked_at() -> None:
    # Those of Box2D, made by SWIG.
    pytest.importorskip("Box2D", reason="Box2D is not installed")
    env = gymnasium.make("LunarLander-v3").unwrapped
    env.reset(seed=0)
    assert any(type(thing).__name__ == "b2World" for _, thing in reachable(env, "env"))


def test_only_arrays_whose_memory_is_shared_are_refused() -> None:
    unpickled = pickle.loads(pickle.dumps(np.arange(6.0).reshape(2, 3), 5))
    for array in (unpickled, unpickled[1:], unpickled.T):
        refuse_hidden_memory(array)
    memory = bytearray(48)
    shared = np.frombuffer(memory)
    for array in (shared, shared[1:]):
        with pytest.raises(SnapshotError, match="belongs to a bytearray"):
            refuse_hidden_memory(array)
    held = root_of(unpickled).base.obj
    with pytest.raises(SnapshotError, match="belongs to a bytearray"):
        refuse_hidden_memory(unpickled)
    del held
    refuse_hidden_memory(unpickled)

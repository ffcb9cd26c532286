"""Published weights: seen by copies, loaded only when they changed, never half written."""

import multiprocessing
import os
import signal
import threading
from typing import Any

import pytest
import torch

from plangym_like.batchers.trees import layout_of_tensors, tensor_over
from plangym_like.batchers.weights import ActorWeights, VersionedTree, load_weights
from plangym_like.errors import WorkerTimeoutError
from plangym_like.vector.memory import SharedArrays, attach_arrays
from plangym_like.vector.tree import Leaf


def _net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 2)
    )


def _shared(tree: Any) -> tuple[VersionedTree, SharedArrays]:
    layout = {"version": Leaf((1,), torch.int64), "tree": layout_of_tensors(tree)}
    shared = SharedArrays(layout, tensor_over)
    return VersionedTree(shared.arrays, shared.fd), shared


def _attached(shared: SharedArrays) -> VersionedTree:
    memory = attach_arrays(os.dup(shared.fd), shared.layout, tensor_over)
    return VersionedTree(memory, os.dup(shared.fd))


def test_only_changes_count_however_they_are_made() -> None:
    net = _net()
    weights = ActorWeights(net)
    assert not weights.update() and weights.version == 0
    net[0].weight.data[0, 0] += 1  # type: ignore[index, operator]
    assert weights.update() and weights.version == 1
    net[0].bias.data.fill_(float("nan"))  # type: ignore[union-attr, operator]
    assert weights.update()
    assert not weights.update()
    net[2].eval()
    assert weights.update() and weights.version == 3


def _write_often(owned: VersionedTree, stop: Any) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        owned.write([torch.full((90_000,), float(number))], number, 60.0)


def test_weights_are_never_half_written() -> None:
    owned, shared = _shared([torch.zeros(90_000)])
    reader = _attached(shared)
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    writer = context.Process(target=_write_often, args=(owned, stop))
    writer.start()
    try:
        seen = -1
        for _ in range(20):
            while (found := reader.read(seen)) is None:
                pass
            seen, (values,) = found
            assert (values == seen).all()
    finally:
        stop.set()
        writer.join()


class _Interrupting(torch.Tensor):
    """Gets a Ctrl-C while it is copied."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.copy_:
            signal.raise_signal(signal.SIGINT)
        return result


def test_a_ctrl_c_comes_after_a_write() -> None:
    owned, shared = _shared([torch.zeros(2), torch.zeros(2)])
    tree = [torch.ones(2).as_subclass(_Interrupting), torch.ones(2)]
    with pytest.raises(KeyboardInterrupt):
        owned.write(tree, 1, 60.0)
    version, (first, second) = _attached(shared).read(0)  # type: ignore[misc]
    assert version == 1 and first.tolist() == second.tolist() == [1.0, 1.0]


def _hold(owned: VersionedTree, ready: Any, seconds: float) -> None:
    with owned._locked(is_writer=False):
        ready.set()
        threading.Event().wait(seconds)


@pytest.mark.parametrize("dies", [True, False])
def test_a_reader_that_dies_or_hangs_does_not_hold_up_the_owner(dies: bool) -> None:
    owned, _ = _shared([torch.zeros(1)])
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    reader = context.Process(target=_hold, args=(owned, ready, 600.0))
    reader.start()
    ready.wait()
    try:
        if dies:
            os.kill(reader.pid or 0, signal.SIGKILL)
            owned.write([torch.ones(1)], 1, 600.0)
        else:
            with pytest.raises(WorkerTimeoutError, match="held the lock of the weights"):
                owned.write([torch.ones(1)], 1, 0.05)
    finally:
        reader.kill()
        reader.join()


def test_a_net_of_another_shape_is_refused() -> None:
    net = _net()
    weights = ActorWeights(net)
    net[0] = torch.nn.Linear(4, 8)  # type: ignore[operator]
    assert weights.update()
    with pytest.raises(RuntimeError, match="changed their shapes"):
        load_weights(_net(), weights.tree)

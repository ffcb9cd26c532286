"""Published weights: seen by copies, reloaded only when they changed, never half written."""

import copy
import os
import threading

import pytest
import torch

from plangym_like.batchers.trees import tensor_over
from plangym_like.batchers.weights import ActorCopy, SharedActor
from plangym_like.vector.memory import attach_arrays


def _net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 2)
    )


def _pair() -> tuple[torch.nn.Module, SharedActor, ActorCopy]:
    net = _net()
    shared = SharedActor(net)
    memory = attach_arrays(os.dup(shared.fd), shared.layout, tensor_over)
    return net, shared, ActorCopy(_net(), memory)


def _same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_copy_follows() -> None:
    net, shared, mirror = _pair()
    assert not _same(net, mirror.actor)
    assert mirror.refresh() == 0
    assert _same(net, mirror.actor)
    with torch.no_grad():
        net[0].weight.add_(1)  # type: ignore[operator, union-attr]
    net[1].running_mean.fill_(3)  # type: ignore[union-attr, operator]
    assert mirror.refresh() == 0
    assert shared.publish() == 1
    assert mirror.refresh() == 1
    assert _same(net, mirror.actor)


def test_only_changes_count_however_they_are_made() -> None:
    net, shared, mirror = _pair()
    mirror.refresh()
    assert shared.publish() == 0
    kept = mirror.actor[0].weight.clone()  # type: ignore[index]
    mirror.actor[0].weight.data.fill_(9)  # type: ignore[index]
    mirror.refresh()
    assert (mirror.actor[0].weight == 9).all()  # type: ignore[index]
    net[0].weight.data[0, 0] += 1  # type: ignore[index, operator]
    assert shared.publish() == 1
    mirror.refresh()
    assert (mirror.actor[0].weight != kept).sum() == 1  # type: ignore[index]
    net[0].bias.data.fill_(float("nan"))  # type: ignore[union-attr, operator]
    assert (shared.publish(), shared.publish()) == (2, 2)


def test_the_training_flags_of_every_part_travel() -> None:
    net, shared, mirror = _pair()
    net.eval()
    net[2].train()
    shared.publish()
    mirror.refresh()
    assert [m.training for m in mirror.actor.modules()] == [m.training for m in net.modules()]


def test_weights_are_never_half_written() -> None:
    net = torch.nn.Linear(300, 300)
    torch.nn.init.zeros_(net.weight), torch.nn.init.zeros_(net.bias)
    shared = SharedActor(net)
    mirror = ActorCopy(copy.deepcopy(net), shared.arrays)
    stop = threading.Event()

    def publish() -> None:
        number = 0.0
        while not stop.is_set():
            number += 1
            with torch.no_grad():
                net.weight.fill_(number), net.bias.fill_(number)
            shared.publish()

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        seen = set()
        while len(seen) < 20:
            seen.add(mirror.refresh())
            values = mirror.actor.weight  # type: ignore[union-attr]
            assert values.min() == values.max()  # type: ignore[operator]
    finally:
        stop.set()
        writer.join()


def test_a_publication_that_was_interrupted_is_made_good() -> None:
    net, shared, mirror = _pair()
    shared.arrays["header"][0] += 1
    shared.arrays["weights"][0].fill_(5)
    shared.publish()
    mirror.refresh()
    assert _same(net, mirror.actor)


def test_a_net_of_another_shape_is_refused() -> None:
    net, shared, _ = _pair()
    net[0] = torch.nn.Linear(4, 8)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="changed their shapes"):
        shared.publish()

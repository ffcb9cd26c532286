"""Weights: every change counts, and only nets of one form load each other's."""

import pytest
import torch

from plangym_like.batchers.weights import ActorWeights, load_weights


def _net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 2)
    )


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


def test_a_net_of_another_shape_is_refused() -> None:
    net = _net()
    weights = ActorWeights(net)
    net[0] = torch.nn.Linear(4, 8)  # type: ignore[operator]
    assert weights.update()
    with pytest.raises(RuntimeError, match="size of tensor"):
        load_weights(_net(), weights.tree)

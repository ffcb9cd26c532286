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


@pytest.mark.parametrize(
    ("own", "published"),
    [
        (torch.nn.Linear(3, 8), torch.nn.Linear(4, 8)),
        (torch.nn.Linear(4, 3), torch.nn.Linear(4, 1)),  # the smaller could be broadcast
        (torch.nn.Linear(4, 3), torch.nn.Linear(4, 3).double()),
        (torch.nn.Linear(4, 3), torch.nn.Linear(4, 3, bias=False)),
    ],
)
def test_a_net_of_another_form_is_refused(own: torch.nn.Module, published: torch.nn.Module) -> None:
    with pytest.raises(RuntimeError, match="changed their shapes or dtypes"):
        load_weights(own, ActorWeights(published).tree)

"""`ActorWeights`: notices when an actor's weights change; `load_weights` loads them elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from plangym_like.batchers.trees import clone_tree
from plangym_like.vector.tree import tree_leaves


class ActorWeights:
    """The weights of a module, and how often they have changed since this object was made.

    The weights are all parameters and buffers, on any device, and the ``training`` flag of each
    submodule. To publish other attributes, such as an exploration rate, register them as buffers.

    Attributes
    ----------
    version : int
        The number of changes, as found by `update`.
    tree : tree of Tensor
        A copy of the weights, as `update` found them, on the same devices.
    """

    def __init__(self, actor: torch.nn.Module) -> None:
        self._actor = actor
        self.tree = clone_tree(_tree_of(actor))
        self.version = 0

    @torch.no_grad()
    def update(self) -> bool:
        """Compare the weights with the copy, and replace it if they differ; return whether they do.

        A parameter or buffer that was added or removed, or that has another shape or dtype, is a
        change, too.
        """
        tree = _tree_of(self._actor)
        new, old = tree_leaves(tree), tree_leaves(self.tree)
        if len(new) == len(old) and all(map(_equal, new, old)):
            return False
        self.tree = clone_tree(tree)
        self.version += 1
        return True


@torch.inference_mode()  # allows writing to buffers that were assigned in inference mode
def load_weights(actor: torch.nn.Module, tree: Any) -> None:
    """Overwrite the weights of `actor` with those of an actor of the same class.

    Raises
    ------
    RuntimeError, ValueError
        The weights differ in number, shape or dtype, or the submodules differ in number.
    """
    own = _weights(actor)
    form = [(weight.shape, weight.dtype) for weight in own]
    if form != [(weight.shape, weight.dtype) for weight in tree["weights"]]:
        raise RuntimeError(
            "the actor's parameters and buffers have changed their shapes or dtypes since "
            "collecting began, so workers cannot copy them: make a new collector"
        )
    for weight, new in zip(own, tree["weights"], strict=True):
        weight.copy_(new)
    for module, training in zip(actor.modules(), tree["training"].tolist(), strict=True):
        module.training = bool(training)


def _tree_of(actor: torch.nn.Module) -> dict[str, Any]:
    flags = torch.tensor([module.training for module in actor.modules()])
    return {"training": flags, "weights": [weight.detach() for weight in _weights(actor)]}


def _weights(actor: torch.nn.Module) -> list[torch.Tensor]:
    return [*actor.parameters(), *actor.buffers()]


def _equal(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    if new.dtype != old.dtype or new.shape != old.shape:
        return False
    return torch.equal(new, old) or torch.allclose(new, old, rtol=0, atol=0, equal_nan=True)

"""The weights of an actor, in memory that all workers read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from plangym_like.batchers.trees import tensor_over
from plangym_like.vector.memory import SharedArrays
from plangym_like.vector.tree import Leaf

# Indices in the header: a counter that is odd while weights are being written, and the version.
_TICKET, _VERSION = 0, 1


class SharedActor(SharedArrays):
    """Publishes the weights of a module to workers while this process trains the module.

    The weights are all parameters and buffers, on any device, and the ``training`` flag of each
    submodule. To publish other attributes, such as an exploration rate, register them as buffers.

    Parameters
    ----------
    actor : torch.nn.Module
        The module, which is never changed.

    Attributes
    ----------
    version : int
        The number of times that the published weights have changed; 0 at first.
    """

    def __init__(self, actor: torch.nn.Module) -> None:
        self._actor = actor
        super().__init__(_layout(actor), tensor_over)
        self.version = -1
        self.publish()

    @torch.no_grad()
    def publish(self) -> int:
        """Publish the actor's current weights, and return their version.

        Raises
        ------
        RuntimeError
            A parameter or buffer was added or removed, or has another shape or dtype.
        """
        header, shared = self.arrays["header"], self.arrays["weights"]
        weights = list(_weights(self._actor))
        form = [(weight.shape, weight.dtype) for weight in weights]
        if form != [(weight.shape, weight.dtype) for weight in shared]:
            raise RuntimeError(
                "the actor's parameters and buffers have changed their shapes or dtypes since "
                "collecting began, so workers cannot copy them: make a new collector"
            )
        training = self.arrays["training"]
        flags = [module.training for module in self._actor.modules()]
        fresh = [weight.detach().to("cpu") for weight in weights]
        same = flags == training.tolist() and all(
            _equal(new, old) for new, old in zip(fresh, shared, strict=True)
        )
        ticket = int(header[_TICKET])
        if not same or self.version < 0 or ticket % 2:
            # The ticket is odd already if the last call was interrupted.
            header[_TICKET] = ticket | 1
            for new, old in zip(fresh, shared, strict=True):
                old.copy_(new)
            training.copy_(torch.tensor(flags))
            self.version += 1
            header[_VERSION] = self.version
            header[_TICKET] = (ticket | 1) + 1
        return self.version


class ActorCopy:
    """A worker's copy of an actor; `refresh` reloads the published weights if they have changed.

    Parameters
    ----------
    actor : torch.nn.Module
        A copy of the actor on the CPU; `refresh` overwrites its weights.
    memory : tree of torch.Tensor
        The memory of the `SharedActor`.

    Attributes
    ----------
    actor : torch.nn.Module
    version : int
        The version of the loaded weights; -1 before the first `refresh`.
    """

    def __init__(self, actor: torch.nn.Module, memory: Any) -> None:
        self.actor = actor
        self.version = -1
        self._memory = memory
        self._header = memory["header"].numpy()

    @torch.inference_mode()  # allows writing to buffers that were assigned in inference mode
    def refresh(self) -> int:
        """Reload the published weights if they have changed; return their version."""
        header = self._header
        while True:
            ticket = int(header[_TICKET])
            if ticket % 2 == 0:
                version = int(header[_VERSION])
                if version == self.version:
                    return version
                for own, shared in zip(_weights(self.actor), self._memory["weights"], strict=True):
                    own.copy_(shared)
                flags = self._memory["training"].tolist()
                if int(header[_TICKET]) == ticket:
                    for module, training in zip(self.actor.modules(), flags, strict=True):
                        module.training = bool(training)
                    self.version = version
                    return version
            # The owner is writing the weights, or wrote them while this copy read them.
            time.sleep(0.0005)


def _layout(actor: torch.nn.Module) -> Any:
    return {
        "header": Leaf((2,), torch.int64),
        "training": Leaf((sum(1 for _ in actor.modules()),), torch.bool),
        "weights": [Leaf(tuple(weight.shape), weight.dtype) for weight in _weights(actor)],
    }


def _weights(actor: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield every parameter and buffer once, in the order of the modules."""
    seen: set[int] = set()
    for module in actor.modules():
        for held in (module._parameters, module._buffers):
            for weight in held.values():
                if weight is not None and id(weight) not in seen:
                    seen.add(id(weight))
                    yield weight


def _equal(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Return whether two tensors are equal; if they hold NaN, whether their bytes are equal."""
    if new.dtype != old.dtype:
        return False
    return torch.equal(new, old) or torch.equal(
        new.contiguous().view(-1).view(torch.uint8), old.view(-1).view(torch.uint8)
    )

"""Weights that one process changes and others load, always whole, each with a version number."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from plangym_like.batchers.trees import clone_tree
from plangym_like.errors import WorkerTimeoutError
from plangym_like.processes.child import interrupts_deferred
from plangym_like.vector.tree import tree_leaves, tree_map

_POLL_SECONDS = 0.0005


class VersionedTree:
    """A tree of tensors and its version number, which are read and written together.

    In shared memory, a lock on the memory's file excludes readers while the owner writes. The
    kernel releases the lock of a process that dies.

    Parameters
    ----------
    memory : dict
        ``"version"``, a Tensor int64 ``(1,)``, and ``"tree"``, a tree of CPU Tensor.
    fd : int
        The descriptor of the shared memory; -1 if no other process uses the tree.
    """

    def __init__(self, memory: Any, fd: int = -1) -> None:
        self.tree = memory["tree"]
        self._version = memory["version"]
        self._fd = fd

    @classmethod
    def of(cls, tree: Any, version: int) -> VersionedTree:
        """Return a copy of `tree` in ordinary memory."""
        return cls({"tree": clone_tree(tree), "version": torch.tensor([version])})

    @torch.no_grad()
    def write(self, tree: Any, version: int, timeout: float) -> None:
        """Replace the content; `tree` has the same layout, on any device.

        Raises
        ------
        WorkerTimeoutError
            A reader has held the lock for `timeout` seconds.
        """
        # A Ctrl-C must not leave a mixture of two versions.
        with interrupts_deferred(), self._locked(is_writer=True, timeout=timeout):
            tree_map(lambda own, new: own.copy_(new), self.tree, tree)
            self._version.fill_(version)

    def read(self, known: int) -> tuple[int, Any] | None:
        """Return the version and a copy of the tree; ``None`` if the version is `known`."""
        with self._locked(is_writer=False):
            version = int(self._version)
            return None if version == known else (version, clone_tree(self.tree))

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    @contextmanager
    def _locked(self, *, is_writer: bool, timeout: float | None = None) -> Iterator[None]:
        if self._fd < 0:
            yield
            return
        import fcntl  # Windows does not have it, nor workers

        kind = fcntl.LOCK_EX if is_writer else fcntl.LOCK_SH
        if timeout is None:
            fcntl.lockf(self._fd, kind)
        else:
            deadline = time.monotonic() + timeout
            while True:
                try:
                    fcntl.lockf(self._fd, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise WorkerTimeoutError(
                            f"a worker has held the lock of the weights for {timeout:g} s: it "
                            "hangs or was stopped. Close this object and make another one, or "
                            "increase the timeout of its Workers"
                        ) from None
                    time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)


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
    RuntimeError
        The numbers, shapes or dtypes of the weights differ.
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

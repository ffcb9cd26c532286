"""Drawing actions from probabilities."""

from __future__ import annotations

import torch


def multinomial(
    probs: torch.Tensor,
    num_samples: int = 1,
    replacement: bool = False,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw from the categories along the last dimension, for every place in the others.

    Parameters
    ----------
    probs : Tensor ``(..., K)``
        Weights of at least 0 that need not sum to 1.
    num_samples, replacement, generator
        See `torch.multinomial`.

    Returns
    -------
    Tensor int64
        ``(...)``, or ``(..., num_samples)`` where more than one is asked for.

    >>> multinomial(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    tensor([[1, 0]])
    """
    lead = probs.shape[:-1]
    drawn = torch.multinomial(
        probs.reshape(-1, probs.shape[-1]), num_samples, replacement, generator=generator
    )
    return drawn.reshape(lead if num_samples == 1 else (*lead, num_samples))

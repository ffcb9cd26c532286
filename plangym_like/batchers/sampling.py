"""`multinomial`: draw actions from probabilities."""

from __future__ import annotations

import torch

from plangym_like.errors import InputError


def multinomial(
    probs: torch.Tensor,
    num_samples: int = 1,
    replacement: bool = False,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw from the K categories of the last dimension, for every index of the other dimensions.

    A single draw uses the exponential-race method and skips the checks of `torch.multinomial`,
    which take longer than the draw.

    Parameters
    ----------
    probs : Tensor ``(..., K)``
        Weights, at least 0; they need not sum to 1.
    num_samples, replacement, generator
        See `torch.multinomial`.

    Returns
    -------
    Tensor int64
        ``(...)``, or ``(..., num_samples)`` for more than one sample.

    Raises
    ------
    InputError
        For a single draw on the CPU: a weight is NaN or less than 0, or all K weights of one draw
        are 0.

    Examples
    --------
    >>> multinomial(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    tensor([[1, 0]])
    """
    if num_samples == 1:
        return _draw_one(probs.detach(), generator)
    lead = probs.shape[:-1]
    drawn = torch.multinomial(
        probs.reshape(-1, probs.shape[-1]), num_samples, replacement, generator=generator
    )
    return drawn.reshape(*lead, num_samples)


def _draw_one(probs: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    # race / probs are exponential variables with the rates `probs`. The probability that variable k
    # is the smallest of them is proportional to probs[k].
    race = torch.empty_like(probs).exponential_(generator=generator)
    values, places = torch.div(probs, race, out=race).max(-1)
    if probs.device.type == "cpu":
        # Both comparisons are False for NaN. `values` has the largest quotient of each row.
        if not (_smallest(probs) >= 0 and _smallest(values) > 0):
            raise InputError(f"probs hold NaN, a negative weight, or no positive weight: {probs}")
    return places


def _smallest(numbers: torch.Tensor) -> float:
    """Return the minimum of 1 and all `numbers`; NaN if any of them is NaN."""
    # NumPy takes less time than torch, but has no bfloat16.
    array = (numbers.float() if numbers.dtype is torch.bfloat16 else numbers).numpy()
    return float(array.min(initial=1.0))

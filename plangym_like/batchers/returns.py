"""Returns, advantages and their estimates, over fragments; in torch and in NumPy.

All take time first: ``rew[t]`` and ``fin[t]`` are what the action of step t earned and whether it
ended the episode, ``val[t]`` is the estimate before it, and `bootstrap` the estimate after the
last step: a number, or of the shape of one step. `gamma` discounts. Trailing axes beyond those of
`fin` are broadcast. ``omega[t]`` is the log of the importance weight of the action, target over
behaviour; weights are clipped at `r_bar` and `c_bar`. Nothing is changed in place, and no gradients
flow.

``pyt_`` takes tensors, ``npy_`` arrays; the numbers are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from plangym_like.batchers.sampling import multinomial

Array = NDArray[Any]

__all__ = [
    "multinomial",
    "npy_deltas",
    "npy_gae",
    "npy_multistep",
    "npy_returns",
    "npy_vtrace",
    "pyt_deltas",
    "pyt_gae",
    "pyt_multistep",
    "pyt_returns",
    "pyt_vtrace",
]


@torch.no_grad()
def pyt_returns(
    rew: torch.Tensor,
    fin: torch.Tensor,
    *,
    gamma: float,
    bootstrap: torch.Tensor | float = 0.0,
    omega: torch.Tensor | None = None,
    r_bar: float | None = None,
) -> torch.Tensor:
    """Return what was earned from each step on, discounted.

    ``G[t] = rew[t] + gamma * rho[t] * G[t + 1]``, the second term 0 where ``fin[t]``; ``rho`` is
    ``min(exp(omega), r_bar)``, or 1 without `omega`; ``G[T]`` is `bootstrap`.

    >>> rew, fin = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([False, True, False])
    >>> pyt_returns(rew, fin, gamma=0.5, bootstrap=10.0)
    tensor([1.5000, 1.0000, 6.0000])
    """
    carry = _carry(rew, fin, gamma, _clipped(omega, r_bar))
    return _accumulate(rew, carry, _after(rew, bootstrap))


@torch.no_grad()
def pyt_deltas(
    rew: torch.Tensor,
    fin: torch.Tensor,
    val: torch.Tensor,
    *,
    gamma: float,
    bootstrap: torch.Tensor | float = 0.0,
    omega: torch.Tensor | None = None,
    r_bar: float | None = None,
) -> torch.Tensor:
    """Return the errors of the estimates after one step.

    ``rho[t] * (rew[t] + gamma * val[t + 1] - val[t])``, without ``val[t + 1]`` where ``fin[t]``.
    """
    carry = _carry(rew, fin, gamma, None)
    after = torch.cat((val[1:], _after(val, bootstrap)[None]))
    deltas = rew + carry * after - val
    rho = _clipped(omega, r_bar)
    return deltas if rho is None else deltas * _like(rho, rew)


@torch.no_grad()
def pyt_gae(
    rew: torch.Tensor,
    fin: torch.Tensor,
    val: torch.Tensor,
    *,
    gamma: float,
    C: float,
    bootstrap: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Return generalised advantage estimates (Schulman et al. 2016, `C` is their lambda).

    ``A[t] = delta[t] + gamma * C * A[t + 1]``, the second term 0 where ``fin[t]``. With ``C=1`` it
    is the return minus `val`, with ``C=0`` it is `pyt_deltas`.
    """
    deltas = pyt_deltas(rew, fin, val, gamma=gamma, bootstrap=bootstrap)
    return _accumulate(deltas, _carry(rew, fin, gamma * C, None), torch.zeros_like(deltas[-1]))


@torch.no_grad()
def pyt_vtrace(
    rew: torch.Tensor,
    fin: torch.Tensor,
    val: torch.Tensor,
    omega: torch.Tensor,
    *,
    gamma: float,
    bootstrap: torch.Tensor | float = 0.0,
    r_bar: float | None = 1.0,
    c_bar: float | None = 1.0,
) -> torch.Tensor:
    """Return V-trace targets of the estimates (Espeholt et al. 2018, section 4.1).

    ``v[t] = val[t] + delta[t] + gamma * c[t] * (v[t + 1] - val[t + 1])``, the last term 0 where
    ``fin[t]``; ``delta`` as in `pyt_deltas` with `r_bar`, and ``c`` is ``min(exp(omega), c_bar)``.
    With ``omega=0`` it is the return.
    """
    deltas = pyt_deltas(rew, fin, val, gamma=gamma, bootstrap=bootstrap, omega=omega, r_bar=r_bar)
    carry = _carry(rew, fin, gamma, _clipped(omega, c_bar))
    return val + _accumulate(deltas, carry, torch.zeros_like(deltas[-1]))


@torch.no_grad()
def pyt_multistep(
    rew: torch.Tensor,
    fin: torch.Tensor,
    val: torch.Tensor,
    *,
    gamma: float,
    n_lookahead: int | None = None,
    bootstrap: torch.Tensor | float = 0.0,
    omega: torch.Tensor | None = None,
    r_bar: float | None = None,
) -> torch.Tensor:
    """Return what `n_lookahead` steps earned and the estimate after them.

    ``None`` looks ahead to the end of the fragment, which gives `pyt_returns`.
    """
    carry = _carry(rew, fin, gamma, _clipped(omega, r_bar))
    after = _after(val, bootstrap)[None]
    targets = val
    for _ in range(min(n_lookahead or len(rew), len(rew))):
        targets = rew + carry * torch.cat((targets[1:], after))
    return targets


def npy_returns(
    rew: Array,
    fin: Array,
    *,
    gamma: float,
    bootstrap: Array | float = 0.0,
    omega: Array | None = None,
    r_bar: float | None = None,
) -> Array:
    """Return what `pyt_returns` does, for arrays."""
    weights = None if omega is None else torch.as_tensor(omega)
    return pyt_returns(
        *_tensors(rew, fin), gamma=gamma, bootstrap=_number(bootstrap), omega=weights, r_bar=r_bar
    ).numpy()


def npy_deltas(
    rew: Array,
    fin: Array,
    val: Array,
    *,
    gamma: float,
    bootstrap: Array | float = 0.0,
    omega: Array | None = None,
    r_bar: float | None = None,
) -> Array:
    """Return what `pyt_deltas` does, for arrays."""
    weights = None if omega is None else torch.as_tensor(omega)
    return pyt_deltas(
        *_tensors(rew, fin, val),
        gamma=gamma,
        bootstrap=_number(bootstrap),
        omega=weights,
        r_bar=r_bar,
    ).numpy()


def npy_gae(
    rew: Array,
    fin: Array,
    val: Array,
    *,
    gamma: float,
    C: float,
    bootstrap: Array | float = 0.0,
) -> Array:
    """Return what `pyt_gae` does, for arrays."""
    tensors = _tensors(rew, fin, val)
    return pyt_gae(*tensors, gamma=gamma, C=C, bootstrap=_number(bootstrap)).numpy()


def npy_vtrace(
    rew: Array,
    fin: Array,
    val: Array,
    omega: Array,
    *,
    gamma: float,
    bootstrap: Array | float = 0.0,
    r_bar: float | None = 1.0,
    c_bar: float | None = 1.0,
) -> Array:
    """Return what `pyt_vtrace` does, for arrays."""
    return pyt_vtrace(
        *_tensors(rew, fin, val, omega),
        gamma=gamma,
        bootstrap=_number(bootstrap),
        r_bar=r_bar,
        c_bar=c_bar,
    ).numpy()


def npy_multistep(
    rew: Array,
    fin: Array,
    val: Array,
    *,
    gamma: float,
    n_lookahead: int | None = None,
    bootstrap: Array | float = 0.0,
    omega: Array | None = None,
    r_bar: float | None = None,
) -> Array:
    """Return what `pyt_multistep` does, for arrays."""
    weights = None if omega is None else torch.as_tensor(omega)
    return pyt_multistep(
        *_tensors(rew, fin, val),
        gamma=gamma,
        n_lookahead=n_lookahead,
        bootstrap=_number(bootstrap),
        omega=weights,
        r_bar=r_bar,
    ).numpy()


def _accumulate(each: torch.Tensor, carry: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return ``x[t] = each[t] + carry[t] * x[t + 1]``, where ``x[T]`` is `last`."""
    sums = torch.empty_like(each)
    for t in range(len(each) - 1, -1, -1):
        last = torch.addcmul(each[t], carry[t], last, out=sums[t])
    return sums


def _carry(
    rew: torch.Tensor, fin: torch.Tensor, discount: float, weights: torch.Tensor | None
) -> torch.Tensor:
    """Return how much of what comes after each step counts at it: nothing, where it ended."""
    goes_on = _like(~fin, rew).to(rew.dtype) * discount
    return goes_on if weights is None else goes_on * _like(weights, rew)


def _like(steps: torch.Tensor, rew: torch.Tensor) -> torch.Tensor:
    """Return `steps` with the axes that `rew` has beyond its own."""
    return steps.reshape(*steps.shape, *(1,) * (rew.ndim - steps.ndim))


def _clipped(omega: torch.Tensor | None, limit: float | None) -> torch.Tensor | None:
    if omega is None:
        return None
    return omega.exp() if limit is None else omega.exp().clamp(max=limit)


def _after(steps: torch.Tensor, bootstrap: torch.Tensor | float) -> torch.Tensor:
    """Return `bootstrap` in the shape of one of `steps`."""
    value = torch.as_tensor(bootstrap, dtype=steps.dtype, device=steps.device)
    if value.ndim == steps.ndim and len(value) == 1:
        value = value[0]
    return value.expand(steps.shape[1:])


def _tensors(*arrays: Array) -> list[Any]:
    return [torch.as_tensor(array) for array in arrays]


def _number(bootstrap: Array | float) -> Any:
    return torch.as_tensor(bootstrap)

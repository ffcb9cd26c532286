"""Compute returns, advantages and value targets for fragments, in torch or in NumPy.

The functions take these arguments; t is the time, which is the first axis:

- ``rew[t]``: the reward of step t
- ``fin[t]``: whether step t ended the episode; of any dtype, true if not 0
- ``val[t]``: the estimated value before step t
- `bootstrap`: the estimated value after the last step; a number, or shaped like one step
- `gamma`: the discount
- ``omega[t]``: the log of the action's importance weight (target over behaviour policy); weights
  are clipped at `r_bar` and `c_bar`

Arguments that lack trailing axes are broadcast over them. Results have the widest floating dtype of
`rew`, `val`, `bootstrap` and `omega`. Arguments are not changed, and no gradients flow.

A truncated episode is treated as ended. `plangym_like.batchers.rollout.Fragment.rewards` returns
rewards that include the estimated value after the truncation.

Functions named ``pyt_...`` take tensors, and functions named ``npy_...`` take arrays. Both give the
same results, and raise `InputError` for shapes that do not fit together.

Examples
--------
>>> import numpy as np
>>> npy_returns(np.ones(3), np.array([False, True, False]), gamma=0.5, bootstrap=10.0)
array([1.5, 1. , 6. ])
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import as_tensor

from plangym_like.batchers.randomness import multinomial
from plangym_like.errors import InputError

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
    """Compute the discounted return from each step onward.

    The return is ``G[t] = rho[t] * (rew[t] + gamma * G[t + 1])``, without ``G[t + 1]`` where
    ``fin[t]`` is true. ``G[T]`` is `bootstrap`, and ``rho`` is ``min(exp(omega), r_bar)``, or 1
    without `omega`. With `omega`, this is per-decision importance sampling (Precup, Sutton and
    Singh 2000; Sutton and Barto 2018, section 7.4): each reward is multiplied by the weights of all
    actions from step t to the one that earned the reward.

    >>> rew, fin = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([False, True, False])
    >>> pyt_returns(rew, fin, gamma=0.5, bootstrap=10.0)
    tensor([1.5000, 1.0000, 6.0000])
    """
    rew, _, after, rho = _operands(rew, None, bootstrap, omega, r_bar)
    return _accumulate(rho * rew, _carry(rho * gamma, fin), after)


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
    """Return the one-step temporal difference errors.

    They are ``rho[t] * (rew[t] + gamma * val[t + 1] - val[t])``, without ``val[t + 1]`` where
    ``fin[t]`` is true. ``rho`` is as in `pyt_returns` (Espeholt et al. 2018, below equation 1).

    Examples
    --------
    >>> rew, fin = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([False, True, False])
    >>> val = torch.tensor([0.5, 0.5, 0.5])
    >>> pyt_deltas(rew, fin, val, gamma=0.5, bootstrap=10.0)
    tensor([0.7500, 0.5000, 5.5000])
    """
    rew, val, after, rho = _operands(rew, val, bootstrap, omega, r_bar)
    following = torch.cat((val[1:], after[None]))
    carry = _carry(torch.full_like(rew, gamma), fin)
    return rho * (rew + _carried(carry, following) - val)


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
    """Return generalised advantage estimates (Schulman et al. 2016, eq. 16; `C` is their lambda).

    ``A[t] = delta[t] + gamma * C * A[t + 1]``; the second term is 0 where ``fin[t]`` is true.
    ``delta`` is the result of `pyt_deltas`. ``C=1`` gives the return minus `val`, and ``C=0`` gives
    ``delta``.

    Examples
    --------
    >>> rew, fin = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([False, True, False])
    >>> val = torch.tensor([0.5, 0.5, 0.5])
    >>> pyt_gae(rew, fin, val, gamma=0.5, C=0.8, bootstrap=10.0)
    tensor([0.9500, 0.5000, 5.5000])
    >>> pyt_gae(rew, fin, val, gamma=0.5, C=1.0, bootstrap=10.0) + val  # the returns
    tensor([1.5000, 1.0000, 6.0000])
    """
    deltas = pyt_deltas(rew, fin, val, gamma=gamma, bootstrap=bootstrap)
    return _accumulate(deltas, _carry(torch.full_like(deltas, gamma * C), fin), _zero_step(deltas))


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
    """Return V-trace value targets (Espeholt et al. 2018, remark 1 in section 4.1).

    ``v[t] = val[t] + delta[t] + gamma * c[t] * (v[t + 1] - val[t + 1])``; the last term is 0 where
    ``fin[t]`` is true. ``delta`` is the result of `pyt_deltas` with `r_bar`; ``c`` is
    ``min(exp(omega), c_bar)``. With ``omega=0``, the targets are the returns.

    Examples
    --------
    >>> rew, fin = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([False, True, False])
    >>> val, omega = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.0, -1000.0, 0.0])
    >>> pyt_vtrace(rew, fin, val, omega, gamma=0.5, bootstrap=10.0)  # val[1] has no correction
    tensor([1.2500, 0.5000, 6.0000])
    """
    deltas = pyt_deltas(rew, fin, val, gamma=gamma, bootstrap=bootstrap, omega=omega, r_bar=r_bar)
    rew, val, _, see = _operands(rew, val, bootstrap, omega, c_bar)
    return val + _accumulate(deltas, _carry(see * gamma, fin), _zero_step(deltas))


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
    """Return the discounted sum of `n_lookahead` rewards and the estimated value after them.

    ``G[t, n] = rho[t] * (rew[t] + gamma * G[t + 1, n - 1])``, ``G[t, 0] = val[t]``, and ``G[T, n]``
    is `bootstrap`. Where ``fin[t]`` is true, the term with ``G[t + 1, n - 1]`` is 0 (Sutton and
    Barto 2018, 7.1 and 7.4). ``n_lookahead=None`` looks ahead to the end of the fragment, which
    gives the results of `pyt_returns`.

    Examples
    --------
    >>> rew, fin = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([False, True, False])
    >>> val = torch.tensor([0.5, 0.5, 0.5])
    >>> pyt_multistep(rew, fin, val, gamma=0.5, n_lookahead=1, bootstrap=10.0)
    tensor([1.2500, 1.0000, 6.0000])
    """
    if n_lookahead is not None and n_lookahead < 1:
        raise InputError(f"n_lookahead must be None or at least 1, got {n_lookahead}")
    rew, targets, after, rho = _operands(rew, val, bootstrap, omega, r_bar)
    earned, carry = rho * rew, _carry(rho * gamma, fin)
    for _ in range(len(rew) if n_lookahead is None else min(n_lookahead, len(rew))):
        targets = earned + _carried(carry, torch.cat((targets[1:], after[None])))
    return targets


def _for_arrays(function: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    """Return a version of `function` that takes and returns arrays instead of tensors."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Array:
        tensors = {
            name: value if value is None or isinstance(value, int | float) else as_tensor(value)
            for name, value in options.items()
        }
        result: Array = function(*map(as_tensor, args), **tensors).numpy()
        return result

    call.__name__ = function.__name__.replace("pyt_", "npy_")
    call.__doc__ = f"`{function.__name__}` for NumPy arrays."
    return call


def _accumulate(each: torch.Tensor, carry: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return x, where ``x[t]`` is ``each[t] + carry[t] * x[t + 1]`` and ``x[T]`` is `last`.

    Where ``carry[t]`` is 0, ``x[t + 1]`` has no effect, even if it is not finite.
    """
    sums, stops = torch.empty_like(each), carry == 0
    for t in range(len(each) - 1, -1, -1):
        last = torch.addcmul(each[t], carry[t], last.masked_fill(stops[t], 0.0), out=sums[t])
    return sums


def _operands(
    rew: torch.Tensor,
    val: torch.Tensor | None,
    bootstrap: torch.Tensor | float,
    omega: torch.Tensor | None,
    limit: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rewards, estimates, bootstrap and weights in one floating-point dtype.

    All are broadcast to the shape of the steps, ``(T, B, ...)``, except the bootstrap, which is
    broadcast to the shape of one step.

    If `val` is ``None``, the rewards are returned in place of the estimates. The weights are
    ``exp(omega)``, clipped at `limit`; if `omega` is ``None``, they are 1.
    """
    given = [rew, rew if val is None else val]
    after = bootstrap
    if not isinstance(after, torch.Tensor):
        after = torch.as_tensor(bootstrap, dtype=torch.float64)
    # A single number does not affect the dtype.
    dtypes = [steps.dtype for steps in (*given, after, omega) if steps is not None and steps.ndim]
    dtype = functools.reduce(torch.promote_types, dtypes)
    if not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    widest = max(given, key=lambda steps: steps.ndim)
    first, second = (
        _aligned(steps, widest, name).to(dtype).expand(widest.shape)
        for steps, name in zip(given, ("rew", "val"), strict=True)
    )
    weights = torch.ones_like(first)
    if omega is not None:
        ratio = omega.to(dtype).exp()
        weights = _aligned(ratio if limit is None else ratio.clamp(max=limit), first, "omega")
        weights = weights.expand(first.shape)
    step = first.shape[1:]
    after = after.to(first.device, dtype)
    if after.ndim and after.shape != step[: after.ndim] and len(after) == 1:
        after = after[0]
    return first, second, _aligned(after, first.new_empty(step), "bootstrap").expand(step), weights


def _carry(weights: torch.Tensor, fin: torch.Tensor) -> torch.Tensor:
    """Return `weights`, with 0 at the steps that ended an episode."""
    ended = torch.as_tensor(fin, device=weights.device).bool()
    return weights.masked_fill(_aligned(ended, weights, "fin"), 0.0)


def _carried(carry: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Return ``carry * following``; 0 where `carry` is 0, even if `following` is not finite."""
    return carry * following.masked_fill(carry == 0, 0.0)


def _zero_step(steps: torch.Tensor) -> torch.Tensor:
    return steps.new_zeros(steps.shape[1:])


def _aligned(steps: torch.Tensor, other: torch.Tensor, name: str) -> torch.Tensor:
    """Return `steps` with axes of length 1 appended, so that it broadcasts with `other`.

    Raises
    ------
    InputError
        The axes of `steps` are not the first axes of `other`.
    """
    if steps.shape != other.shape[: steps.ndim]:
        raise InputError(
            f"{name} of shape {tuple(steps.shape)} does not fit steps of shape "
            f"{tuple(other.shape)}: axes must be (T, B, ...), or (B, ...) for a bootstrap"
        )
    return steps.reshape((*steps.shape, *(1,) * (other.ndim - steps.ndim)))


npy_returns = _for_arrays(pyt_returns)
npy_deltas = _for_arrays(pyt_deltas)
npy_gae = _for_arrays(pyt_gae)
npy_vtrace = _for_arrays(pyt_vtrace)
npy_multistep = _for_arrays(pyt_multistep)

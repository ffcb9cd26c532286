"""Returns and advantages against their definitions, in torch and in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch

from plangym_like.batchers import returns
from plangym_like.batchers.returns import (
    multinomial,
    pyt_deltas,
    pyt_gae,
    pyt_multistep,
    pyt_returns,
    pyt_vtrace,
)
from plangym_like.errors import InputError

GAMMAS = pytest.mark.parametrize("gamma", [0.0, 0.5, 0.999, 1.0])
TRAILING = pytest.mark.parametrize("trailing", [(), (3,)])


def _data(trailing: tuple[int, ...], T: int = 30, B: int = 4) -> Any:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    fin = torch.rand(T, B, generator=generator) < 0.2
    return (
        normal(T, B, *trailing),
        fin,
        normal(T, B, *trailing),
        normal(B, *trailing),
        normal(T, B),
    )


@GAMMAS
@TRAILING
def test_what_is_the_same_by_definition(gamma: float, trailing: tuple[int, ...]) -> None:
    rew, fin, val, bootstrap, _ = _data(trailing)
    options: dict[str, Any] = {"gamma": gamma, "bootstrap": bootstrap}
    earned = pyt_returns(rew, fin, **options)
    deltas = pyt_deltas(rew, fin, val, **options)
    none = torch.zeros_like(fin, dtype=torch.float64)
    assert torch.allclose(pyt_gae(rew, fin, val, C=1.0, **options), earned - val)
    assert torch.allclose(pyt_gae(rew, fin, val, C=0.0, **options), deltas)
    assert torch.allclose(pyt_vtrace(rew, fin, val, none, **options), earned)
    assert torch.allclose(pyt_multistep(rew, fin, val, **options), earned)
    assert torch.allclose(pyt_multistep(rew, fin, val, n_lookahead=1, **options), deltas + val)
    assert torch.allclose(pyt_deltas(rew, fin, val, omega=none, **options), deltas)


@TRAILING
def test_vtrace_by_its_sum(trailing: tuple[int, ...]) -> None:
    rew, fin, val, bootstrap, omega = _data(trailing, T=8)
    found = pyt_vtrace(rew, fin, val, omega, gamma=0.9, bootstrap=bootstrap, r_bar=1.2, c_bar=0.8)
    rho, see = omega.exp().clamp(max=1.2), omega.exp().clamp(max=0.8)
    after = torch.cat((val[1:], bootstrap[None]))
    for lane in range(rew.shape[1]):
        for start in range(len(rew)):
            expected, weight = val[start, lane].clone(), 1.0
            for t in range(start, len(rew)):
                delta = rew[t, lane] + 0.9 * after[t, lane] * ~fin[t, lane] - val[t, lane]
                expected += weight * rho[t, lane] * delta
                weight *= 0.9 * float(see[t, lane])
                if fin[t, lane]:
                    break
            assert torch.allclose(found[start, lane], expected)


@TRAILING
@pytest.mark.parametrize("limit", [None, 1.0, 1.2])
def test_weighted_returns_by_their_sum(limit: float | None, trailing: tuple[int, ...]) -> None:
    """Per-decision importance sampling (Precup, Sutton and Singh 2000, section 3).

    Each reward is discounted by how far it is away, and weighted by all actions up to its own; the
    bootstrap is weighted by all actions.
    """
    rew, fin, val, bootstrap, omega = _data(trailing, T=9)
    omega = torch.zeros_like(omega) if limit == 1.0 else omega
    options: dict[str, Any] = {"gamma": 0.9, "omega": omega, "r_bar": limit}
    whole = pyt_returns(rew, fin, bootstrap=bootstrap, **options)
    few = pyt_multistep(rew, fin, val, n_lookahead=3, bootstrap=bootstrap, **options)
    rho = omega.exp() if limit is None else omega.exp().clamp(max=limit)
    after = torch.cat((val, bootstrap[None]))
    for found, most in ((whole, 9), (few, 3)):
        for lane in range(rew.shape[1]):
            for start in range(9):
                stop = min(start + most, 9)
                expected, weight = torch.zeros(trailing, dtype=torch.float64), 1.0
                for t in range(start, stop):
                    weight *= float(rho[t, lane])
                    expected = expected + 0.9 ** (t - start) * weight * rew[t, lane]
                    if fin[t, lane]:
                        break
                else:
                    expected = expected + 0.9 ** (stop - start) * weight * after[stop, lane]
                assert torch.allclose(found[start, lane], expected)


NAMES = pytest.mark.parametrize("name", ["returns", "deltas", "gae", "vtrace", "multistep"])


def test_estimates_with_an_axis_more_and_shapes_that_do_not_fit() -> None:
    rew, fin, val, bootstrap, omega = _data(())
    options: dict[str, Any] = {"gamma": 0.9, "bootstrap": bootstrap}
    expected = pyt_vtrace(rew, fin, val, omega, **options)
    found = pyt_vtrace(rew, fin, val[..., None].expand(30, 4, 3), omega, **options)
    assert found.shape == (30, 4, 3)
    assert torch.equal(found[..., 2], expected)
    # One environment: broadcasting would make 30 lanes of it.
    one = pyt_gae(rew[:, :1], fin[:, :1], val[:, :1, None], C=0.9, gamma=0.9)
    assert torch.equal(one[..., 0], pyt_gae(rew[:, :1], fin[:, :1], val[:, :1], C=0.9, gamma=0.9))
    for wrong in (
        lambda: pyt_returns(rew, fin.T, gamma=0.9),
        lambda: pyt_deltas(rew, fin, val[:, :1], gamma=0.9),
        lambda: pyt_returns(rew, fin, gamma=0.9, bootstrap=torch.zeros(3)),
        lambda: pyt_vtrace(rew, fin, val, omega[:5], gamma=0.9),
        lambda: pyt_multistep(rew, fin, val, gamma=0.9, n_lookahead=0),
    ):
        with pytest.raises(InputError):
            wrong()


@NAMES
@TRAILING
def test_the_twins_agree(name: str, trailing: tuple[int, ...]) -> None:
    rew, fin, val, bootstrap, omega = _data(trailing)
    options: dict[str, Any] = {"gamma": 0.9, "bootstrap": bootstrap}
    arguments = [rew, fin] if name == "returns" else [rew, fin, val]
    if name == "gae":
        options |= {"C": 0.7}
    else:
        options |= {"omega": omega, "r_bar": 1.1}
    kept = [argument.clone() for argument in arguments]
    ours = getattr(returns, f"pyt_{name}")(*arguments, **options)
    assert all(map(torch.equal, arguments, kept))
    arrays = {
        key: value.numpy() if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }
    theirs = getattr(returns, f"npy_{name}")(*(x.numpy() for x in arguments), **arrays)
    assert isinstance(theirs, np.ndarray)
    assert theirs.tobytes() == ours.numpy().tobytes()
    assert ours.shape == rew.shape


def test_draws_over_the_last_dimension_of_any_shape() -> None:
    probs = torch.zeros(2, 3, 4, 5)
    wanted = torch.randint(5, (2, 3, 4))
    probs.scatter_(-1, wanted[..., None], 1.0)
    assert torch.equal(multinomial(probs), wanted)
    assert torch.equal(multinomial(probs[0, 0, 0]), wanted[0, 0, 0])
    assert multinomial(torch.ones(2, 3, 5), 4).shape == (2, 3, 4)
    with pytest.raises(InputError, match="NaN"):
        multinomial(torch.tensor([[0.5, 0.5], [float("nan"), 1.0]]))
    with pytest.raises(InputError, match="no positive weight"):
        multinomial(torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    with pytest.raises(InputError, match="negative weight"):
        multinomial(torch.tensor([[0.5, 0.5], [-1.0, 2.0]]))  # logits, for example
    assert multinomial(torch.tensor([0.0, 1.0], dtype=torch.bfloat16)) == 1
    assert multinomial(torch.ones(0, 3)).shape == (0,)
    generator = torch.Generator().manual_seed(1)
    one = multinomial(torch.ones(50, 7), generator=generator)
    assert torch.equal(one, multinomial(torch.ones(50, 7), generator=generator.manual_seed(1)))
    counts = multinomial(torch.tensor([1.0, 3.0]).expand(4000, 2)).float().mean()
    assert 0.7 < counts < 0.8


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_values_that_are_not_finite_do_not_pass_the_end_of_an_episode(wrong: float) -> None:
    rew, fin = torch.tensor([1.0, 1.0, wrong]), torch.tensor([False, True, False])
    val = torch.tensor([0.0, 0.0, wrong])
    omega = torch.tensor([0.0, 200.0, 200.0])  # the weight of the last two is not finite
    earned, before = [1.5, 1.0], slice(0, 2)
    assert pyt_returns(rew, fin, gamma=0.5)[before].tolist() == earned
    assert pyt_deltas(rew, fin, val, gamma=0.5)[before].tolist() == [1.0, 1.0]
    assert pyt_gae(rew, fin, val, gamma=0.5, C=1.0)[before].tolist() == earned
    assert pyt_multistep(rew, fin, val, gamma=0.5, n_lookahead=2)[before].tolist() == earned
    limited = pyt_vtrace(rew, fin, val, omega, gamma=0.5)
    assert limited[before].tolist() == earned
    unlimited = pyt_vtrace(rew, fin, val, omega, gamma=0.5, r_bar=1.0, c_bar=None)
    assert unlimited[before].tolist() == earned
    ended = torch.tensor([False, True])
    assert pyt_returns(rew[:2], ended, gamma=0.5, bootstrap=wrong).tolist() == earned

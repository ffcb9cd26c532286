"""Without a library, the error says how to install it."""

import sys

import pytest

from plangym_like import make_vec
from plangym_like.errors import ClosedError, MissingExtraError

LIBRARIES = {"as_sb3": ("stable_baselines3", "sb3"), "as_torchrl": ("torchrl", "torchrl")}


@pytest.mark.parametrize("method", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = LIBRARIES[method]
    monkeypatch.setitem(sys.modules, package, None)
    envs = make_vec("CartPole-v1", 2)
    with pytest.raises(MissingExtraError, match=rf"pip install 'plangym_like\[{extra}\]'"):
        getattr(envs, method)()
    envs.close()


@pytest.mark.parametrize("method", LIBRARIES)
def test_closed_environments_have_no_views(method: str) -> None:
    envs = make_vec("CartPole-v1", 2)
    envs.close()
    with pytest.raises(ClosedError):
        getattr(envs, method)()

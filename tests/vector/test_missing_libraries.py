"""Without a library, the error says how to install it."""

import sys

import pytest

from plangym_like import make_vec
from plangym_like.errors import ClosedError, MissingExtraError

# Of each method: the extra, our module, and what that imports first.
LIBRARIES = {
    "as_sb3": ("sb3", "sb3_vec_env", "stable_baselines3.common.vec_env"),
    "as_torchrl": ("torchrl", "torchrl_env", "torch"),
}


@pytest.mark.parametrize("method", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra, module, imported = LIBRARIES[method]
    # Another test may have imported both.
    for name in (module, "torchrl_specs"):
        monkeypatch.delitem(sys.modules, f"plangym_like.vector.{name}", raising=False)
    for name in (imported, imported.split(".")[0]):
        monkeypatch.setitem(sys.modules, name, None)
    envs = make_vec("CartPole-v1", 2)
    with pytest.raises(MissingExtraError, match=rf"pip install 'plangym_like\[{extra}\]'"):
        getattr(envs, method)()
    envs.close()


@pytest.mark.parametrize("method", LIBRARIES)
def test_closed_environments_are_not_given_away(method: str) -> None:
    pytest.importorskip({"as_sb3": "stable_baselines3", "as_torchrl": "torchrl"}[method])
    envs = make_vec("CartPole-v1", 2)
    envs.close()
    with pytest.raises(ClosedError):
        getattr(envs, method)()

"""Files of archives: their header, and files that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_state_archive import grow, same

import plangym_like
from plangym_like import StateArchive
from plangym_like.errors import StateFormatError, StateMismatchError


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        yield env


def test_files_that_are_refused(env: Any, tmp_path: Path) -> None:
    archive = StateArchive(env)
    grow(archive, 500)
    path = tmp_path / "archive"
    archive.save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, 9, *rng.integers(0, len(content), 10).tolist(), len(content) - 1]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        with pytest.raises(StateFormatError, match=r"not an archive|is damaged"):
            StateArchive.load(path, env)
    for length in (0, 8, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(StateFormatError, match=r"not an archive|is damaged"):
            StateArchive.load(path, env)
    env.save_states(path, archive.get([0]))
    with pytest.raises(StateFormatError, match="not an archive"):
        StateArchive.load(path, env)
    path.write_bytes(content)
    with plangym_like.make("Acrobot-v1") as other, pytest.raises(StateMismatchError):
        StateArchive.load(path, other)
    assert same(StateArchive.load(path, env), archive)
    with pytest.raises(FileNotFoundError):
        StateArchive.load(tmp_path / "none", env)

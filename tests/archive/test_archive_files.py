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
from plangym_like.archive import archive_file
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


def _rewrite(path: Path, arrays: dict[str, Any], env: Any, count: int) -> None:
    archive_file.save(
        path, env.layout.format, count, {name: [values] for name, values in arrays.items()}
    )


def test_files_whose_parts_disagree_are_refused(env: Any, tmp_path: Path) -> None:
    archive = StateArchive(env, {"visits": int})
    grow(archive, 200)
    path = tmp_path / "archive"
    archive.save(path)
    count, arrays = archive_file.load(path, env.layout.format)
    changes: dict[str, Any] = {
        "parents": np.full(count, count),
        "ends": arrays["ends"][:-1],
        "frames": arrays["frames"][:-1],
        "dt": arrays["dt"].astype(np.int32),
        "rewards": arrays["rewards"][1:],
        "reference": arrays["reference"][:-1],
        "actions": arrays["actions"][:, None],
        "visits": np.zeros(count, "V8"),
        "ends ": arrays["ends"].astype(np.int32),
        "frames ": arrays["frames"].astype(np.int64),
    }
    for name, values in changes.items():
        _rewrite(path, {**arrays, name.strip(): values}, env, count)
        with pytest.raises(StateFormatError, match="is damaged"):
            StateArchive.load(path, env)
        _rewrite(path, {key: arrays[key] for key in arrays if key != name}, env, count)
        if name not in ("visits", "ends ", "frames "):
            with pytest.raises(StateFormatError, match="is damaged"):
                StateArchive.load(path, env)
    frames = arrays["frames"].copy()
    frames[arrays["ends"][0] // 2] ^= 255
    _rewrite(path, {**arrays, "frames": frames}, env, count)
    damaged = StateArchive.load(path, env)
    with pytest.raises(StateFormatError, match="rows 0 to 63 of the archive are damaged"):
        damaged.get(5)
    assert np.array_equal(damaged.get(70), archive.get(70))

"""A library that is installed, but cannot be imported, says so itself: installing it is no help."""

import subprocess
import sys
from pathlib import Path

import pytest
from hosted import script_environ
from usual import first_of

# What fails, by the library that is broken.
USES = {
    "Box2D": "pl.make('LunarLander-v3')",
    "ale_py": "pl.make('ALE/Pong-v5')",
    "dm_control": "pl.make('dm_control/walker-walk-v0')",
    "jax": "pl.make('pgx/connect_four')",
    "matplotlib": "from plangym_like.cli.images import require_images; require_images()",
    "minigrid": "pl.make('MiniGrid-Empty-5x5-v0')",
    "mujoco": "pl.make('Hopper-v5')",
    "pettingzoo": "pl.make('pettingzoo/go_v5')",
    "pyspiel": "pl.make('openspiel/hex')",
    "ray": "pl.make('CartPole-v1', ray=True)",
    "stable_baselines3": "pl.make_vec('CartPole-v1', 2).as_sb3()",
    "stable_retro": "pl.make('Airstriker-Genesis-v0')",
    "torch": "import plangym_like.batchers",
    "zstandard": "pl.StateArchive(pl.make('CartPole-v1'))",
}
BROKEN = 'raise ImportError("it was built for another library")'
SCRIPT = """
import plangym_like as pl
try:
    {use}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("library", first_of(USES, 2))
def test_a_broken_library_is_not_called_missing(library: str, tmp_path: Path) -> None:
    if library == "zstandard" and sys.version_info >= (3, 14):
        pytest.skip("the standard library has it")
    (tmp_path / f"{library}.py").write_text(BROKEN)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}){SCRIPT.format(use=USES[library])}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=script_environ()
    )
    assert done.stdout == "ImportError it was built for another library\n", done.stderr

"""Libraries that are missing are named with their extra, and those that are broken are not."""

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
    "ray": "pl.RayEnv; pl.make('CartPole-v1', ray=True)",
    "stable_baselines3": "pl.make_vec('CartPole-v1', 2).as_sb3()",
    "stable_retro": "pl.make('Airstriker-Genesis-v0')",
    "torch": "import plangym_like.batchers",
    "zstandard": "pl.StateArchive(pl.make('CartPole-v1'))",
}
# Other ways to need a library, or a library that says itself what is broken.
OTHERS = [
    ("jax", "pl.make('phys2d/CartPole-v1')"),
    ("ray", "from plangym_like.batchers import Workers; Workers(ray=True)"),
    ("torchrl", "pl.make_vec('CartPole-v1', 2).as_torchrl()"),
]
# Extras that are not called as the library.
EXTRAS = {"Box2D": "box2d", "ale_py": "atari", "dm_control": "dm-control", "matplotlib": "viz"}
EXTRAS |= {"pyspiel": "openspiel", "stable_baselines3": "sb3", "stable_retro": "retro"}
EXTRAS |= {"zstandard": "archive"}
if sys.version_info >= (3, 14):
    del USES["zstandard"]  # the standard library has it
MISSING = """
import sys
import plangym_like as pl
for library, use in {uses}:
    sys.modules[library] = None
    try:
        exec(use)
    except ImportError as error:
        print(type(error).__name__, error)
    del sys.modules[library]
"""


def run(code: str) -> str:
    """Return what a script prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=script_environ()
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_a_missing_library_is_named_with_its_extra() -> None:
    # Before others import torch, which cannot be imported twice.
    uses = sorted([*USES.items(), *OTHERS], key=lambda use: use[0] != "torch")
    told = run(MISSING.format(uses=uses)).splitlines()
    for (library, _), line in zip(uses, told, strict=True):
        assert line.startswith("MissingExtraError")
        assert f"pip install 'plangym_like[{EXTRAS.get(library, library)}]'" in line


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
    (tmp_path / f"{library}.py").write_text(BROKEN)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}){SCRIPT.format(use=USES[library])}"
    assert run(code) == "ImportError it was built for another library\n"

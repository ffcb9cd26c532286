"""Build wheel and sdist, and try the wheel with each extra alone in a new virtual environment.

    python benchmarks/release_check.py
    python benchmarks/release_check.py --extras atari mujoco

For each extra: install ``plangym_like[extra]`` from the wheel, run its code in `CODE`, and run all
Python blocks of the pages in `PAGES` that need this extra. The exit status is 1 if anything fails.
The script needs the packages ``build`` and ``twine``.
"""

from __future__ import annotations

import argparse
import configparser
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The platforms of the wheel: the package needs Linux, although it has no compiled part.
PLATFORMS = "manylinux_2_17_x86_64.manylinux_2_17_aarch64"
STEP = """
import plangym_like
for name in {names}:
    with plangym_like.make(name) as env:
        state, obs, info = env.reset(seed=0)
        print(name, env.step_batch([env.sample_action()] * 4, state).rewards)
"""
# What each extra is for; the others are only imported.
CODE = {
    "": STEP.format(names=["CartPole-v1", "FrozenLake-v1"]),
    "atari": STEP.format(names=["ALE/MsPacman-v5"]),
    "classic-control": """
import plangym_like
with plangym_like.make("CartPole-v1", render_mode="rgb_array") as env:
    env.reset(seed=0)
    print(env.get_image().shape)
""",
    "mujoco": STEP.format(names=["HalfCheetah-v5", "Humanoid-v5"]),
    "box2d": STEP.format(names=["LunarLander-v3"]),
    "dm-control": STEP.format(names=["walker-walk"]),
    "minigrid": STEP.format(names=["MiniGrid-DoorKey-5x5-v0"]),
    "openspiel": STEP.format(names=["openspiel/connect_four"]),
    "pettingzoo": STEP.format(names=["pettingzoo/connect_four_v3", "pettingzoo/chess_v6"]),
    "retro": STEP.format(names=["Airstriker-Genesis-v0"]),
    "jax": STEP.format(names=["pgx/2048"]) + "import mctx",
    "ray": """
import plangym_like
with plangym_like.make("CartPole-v1", ray=True, n_workers=2) as env:
    print(env.step_batch([0, 1], env.reset(seed=0).state).rewards)
""",
    "torch": """
import plangym_like
from plangym_like.batchers.tensor_batcher import TensorBatcher
with plangym_like.make("CartPole-v1") as env:
    env.reset(seed=0)
    print(TensorBatcher(env).step_batch([0, 1]))
""",
    "sb3": """
import plangym_like
print(plangym_like.make_vec("CartPole-v1", 2).as_sb3().reset())
""",
    "torchrl": """
import plangym_like
print(plangym_like.make_vec("CartPole-v1", 2).as_torchrl().rollout(3)["next", "reward"])
""",
    "archive": """
import plangym_like
with plangym_like.make("CartPole-v1") as env:
    state = env.reset(seed=0).state
    archive = plangym_like.StateArchive(env)
    print((archive.get(archive.add(state[None])) == state).all())
""",
    "viz": "import matplotlib, PIL, tqdm",
    "all": STEP.format(names=["CartPole-v1", "ALE/MsPacman-v5"]) + "import mctx, ray, torchrl",
}
# These are for work on the package itself, or cannot share an environment with others.
NOT_TRIED = {"dev", "test", "docs", "bench"}
# The pages whose Python blocks run with an extra alone, and with two together.
PAGES = {
    "": [
        "docs/quickstart.md",
        "docs/states_in_depth.md",
        "docs/own_planner.md",
        "docs/own_simulator.md",
    ],
    "atari": ["README.md", "docs/first_search.md"],
    "torch": ["docs/learning.md"],
    "ray,torch": ["docs/ray.md"],
}


def run(*command: str | Path, cwd: Path | None = None, quiet: bool = True) -> None:
    """Run a command; if it fails, raise an error with what it wrote."""
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    if not quiet:
        print(done.stdout.strip())


def build(folder: Path) -> Path:
    """Build both distributions into `folder`, check them, and return the wheel."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", PLATFORMS, wheel)
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir())
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    missing = [name for name in listed.splitlines() if name not in inside and name != ".gitignore"]
    if missing:
        raise RuntimeError(f"the sdist lacks {missing}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_extra(extra: str, wheel: Path, folder: Path) -> None:
    """Install the wheel with one extra in a new virtual environment, and use it."""
    target = folder / (extra or "none")
    run(sys.executable, "-m", "venv", target)
    requirement = f"{wheel}[{extra}]" if extra else str(wheel)
    run(target / "bin" / "pip", "install", "--quiet", requirement)
    scripts = {"used": CODE.get(extra, "")} | {page: code_of(page) for page in PAGES.get(extra, [])}
    for name, code in scripts.items():
        if name != "used":
            print(name, flush=True)
        script = target / f"{Path(name).stem}_blocks.py"
        script.write_text(code, encoding="utf-8")
        # -I: the checkout must not be found in the folder that this runs in.
        run(target / "bin" / "python", "-I", "-W", "ignore", script, cwd=target, quiet=False)
    shutil.rmtree(target)


def code_of(page: str) -> str:
    """Return the Python blocks of a page as one script."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def main() -> int:
    """Build and try; print a line for each extra, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extras", nargs="*", help="only these; '' is the package without extras")
    args = parser.parse_args()
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = ["", *(name for name in config["options.extras_require"] if name not in NOT_TRIED)]
    extras += [name for name in PAGES if name not in extras]
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "dist").mkdir()
        wheel = build(folder / "dist")
        print(f"built {', '.join(sorted(path.name for path in (folder / 'dist').iterdir()))}")
        for extra in extras if args.extras is None else args.extras:
            print(f"--- plangym_like[{extra}]", flush=True)
            try:
                try_extra(extra, wheel, folder)
            except Exception as error:
                print(f"FAILED: {error}")
                failed.append(extra)
    print(f"failed: {failed}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

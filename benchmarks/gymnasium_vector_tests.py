"""Run Gymnasium's own tests of vectorised environments on `plangym_like.make_vec`.

Run it from anywhere, with a checkout of Gymnasium's sources::

    python benchmarks/gymnasium_vector_tests.py /path/to/Gymnasium [-- options for pytest]

Its tests are copied to a temporary folder, where ``SyncVectorEnv`` is `make_vec`. The tests in
`EXPECTED` fail, for the reasons given there; the exit status is 0 if no other test fails. Tests of
``AsyncVectorEnv`` and tests that open a window are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = (
    "vector/test_sync_vector_env.py",
    "vector/test_vector_env.py",
    "vector/test_autoreset_mode.py",
    "vector/test_observation_mode.py",
    "vector/test_vector_env_info.py",
    "vector/test_vector_wrapper.py",
    "wrappers/vector",
)
# A part of the test's name, and why it fails.
EXPECTED = {
    "test_check_spaces_sync_vector_env": "matches the words of Gymnasium's error message",
    "test_invalid_observation_mode": "matches the words of Gymnasium's error message",
    "test_record_video": "needs moviepy, which is not installed",
    "test_obs_mode_same_different_spaces": "matches the words of Gymnasium's error message",
}
CONFTEST = """
import gymnasium
from plangym_like import make_vec


def ours(env_fns, copy=True, observation_mode="same", autoreset_mode="NextStep", **unused):
    return make_vec(
        list(env_fns),
        copy=copy,
        observation_mode=observation_mode,
        autoreset_mode=autoreset_mode,
        **{more},
    )


gymnasium.vector.SyncVectorEnv = ours
"""


def main() -> int:
    """Run the tests, print what fails, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gymnasium", type=Path, help="a checkout of Gymnasium's sources")
    parser.add_argument("--workers", type=int, help="processes that step the environments")
    parser.add_argument("pytest", nargs="*", help="options for pytest, after --")
    arguments = parser.parse_args()
    package = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(arguments.gymnasium / "tests", Path(folder, "tests"))
        more = {} if arguments.workers is None else {"n_workers": arguments.workers}
        conftest = CONFTEST.replace("{more}", repr(more))
        Path(folder, "conftest.py").write_text(conftest, encoding="utf-8")
        # Those of AsyncVectorEnv's own interface, its processes and its signals, are left out.
        chosen = "not Async and not async and not human"
        command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-c", "/dev/null", "--rootdir", folder, "-k", chosen]
        command += [*arguments.pytest, *(f"tests/{test}" for test in TESTS)]
        paths = {**os.environ, "PYTHONPATH": f"{package}:{folder}"}
        result = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
    unexpected = [name for name in failed if not any(part in name for part in EXPECTED)]
    lines = (result.stdout + result.stderr).splitlines()
    print("\n".join(lines[-40:] if unexpected or not lines else lines[-1:]))
    for name in failed:
        reason = next((why for part, why in EXPECTED.items() if part in name), "NOT EXPECTED")
        print(f"{name}: {reason}")
    return 1 if unexpected or not re.search(r"\d+ passed", result.stdout) else 0


if __name__ == "__main__":
    sys.exit(main())

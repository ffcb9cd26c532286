"""The command line: ``plangym-like COMMAND ...``, or ``python -m plangym_like COMMAND ...``.

The exit status is 0 if all went well, 1 if a check failed or the environment raised an error, 2 if
the arguments are wrong or an environment cannot be made, 130 after Ctrl-C, and 141 if the program
that read the output has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from plangym_like.cli import bench, check, info, list_envs, plan
from plangym_like.cli.arguments import (
    BROKEN_PIPE,
    FAILED,
    INTERRUPTED,
    USAGE,
    UsageError,
    described,
    warn,
)
from plangym_like.errors import InputError, MissingExtraError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (by default ``sys.argv``), and return its exit status."""
    called = Path(sys.argv[0]).name
    parser = argparse.ArgumentParser(
        prog="plangym-like" if called == "plangym-like" else "python -m plangym_like",
        description="Save, restore and step any Gymnasium environment from any state.",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show where in the code an error was raised"
    )
    version = sys.modules["plangym_like"].__version__
    parser.add_argument("--version", action="version", version=f"plangym-like {version}")
    commands = parser.add_subparsers(title="commands", required=True)
    for command in (plan, bench, info, list_envs, check):
        command.add_to(commands)
    chosen = parser.parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        warn("interrupted")
        return INTERRUPTED
    except Exception as error:
        if chosen.traceback:
            raise
        refused = isinstance(error, UsageError | InputError | MissingExtraError)
        warn(str(error) if refused else described(error))
        return USAGE if refused else FAILED
    return status


def _forget_output() -> None:
    """Discard any further output, because the program that read it has ended."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["main"]

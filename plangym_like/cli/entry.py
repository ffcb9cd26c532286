"""``python -m plangym_like COMMAND ...``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from plangym_like.cli import check


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (by default ``sys.argv``), and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m plangym_like",
        description="Save, restore and step any Gymnasium environment from any state.",
    )
    commands = parser.add_subparsers(title="commands", required=True)
    check.add_to(commands)
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status

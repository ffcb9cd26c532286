"""The entry point of ``python -m plangym_like``."""

from plangym_like.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())

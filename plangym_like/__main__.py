"""The entry point of ``python -m plangym_like``."""

from plangym_like.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

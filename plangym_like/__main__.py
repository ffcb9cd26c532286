"""``python -m plangym_like``: what can be done without writing a program."""

from plangym_like.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())

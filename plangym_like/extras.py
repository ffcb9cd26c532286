"""`needs_extra`: reports a missing optional dependency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from plangym_like.errors import MissingExtraError


@contextmanager
def needs_extra(what: str, extra: str, *modules: str) -> Iterator[None]:
    """If an import in the block fails, raise `MissingExtraError` with the install command.

    The message begins with `what`, and the command installs `extra`. If `modules` are given, only
    failed imports of these modules and their submodules count.

    >>> with needs_extra("images need nothing_like_this", "viz"):
    ...     import nothing_like_this
    Traceback (most recent call last):
        ...
    plangym_like.errors.MissingExtraError: images need nothing_like_this: pip install ...
    """
    try:
        yield
    except ImportError as error:
        if modules and (error.name or "").partition(".")[0] not in modules:
            raise
        raise MissingExtraError(f"{what}: pip install 'plangym_like[{extra}]'") from error

"""Modules that are imported when they are used: optional packages, and the names of a package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from plangym_like.errors import MissingExtraError


@contextmanager
def needs_extra(what: str, extra: str, *modules: str) -> Iterator[None]:
    """If a module that the block imports is missing, raise `MissingExtraError`.

    The message begins with `what`, and ends with the command that installs `extra`. If `modules`
    are given, only failed imports of these modules and their submodules count. The error of a
    module that is installed, but cannot be imported, is raised as it is.

    >>> with needs_extra("images need nothing_like_this", "viz"):
    ...     import nothing_like_this
    Traceback (most recent call last):
        ...
    plangym_like.errors.MissingExtraError: images need nothing_like_this: pip install ...
    """
    try:
        yield
    except Exception as error:
        from gymnasium.error import DependencyNotInstalled

        if not isinstance(error, (ImportError, DependencyNotInstalled)):
            raise
        name = getattr(error, "name", None) or ""
        if modules and name.partition(".")[0] not in modules:
            raise
        if broken := broken_import(error):
            raise broken from None
        raise MissingExtraError(f"{what}: pip install 'plangym_like[{extra}]'") from error


def broken_import(error: Exception) -> ImportError | None:
    """Return why an installed module cannot be imported, or None if a module is missing.

    Gymnasium replaces both errors by one that says that the module is not installed; the original
    error is its cause.
    """
    reason = error.__cause__ or error
    if isinstance(reason, ImportError) and not isinstance(reason, ModuleNotFoundError):
        return reason
    return None


def lazy_names(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for the package `package`.

    Parameters
    ----------
    package : str
        The full name of the package.
    places : mapping of str to str
        For each name, the module within the package that defines the name.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *places})

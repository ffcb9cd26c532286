"""`unknown_option`: makes the error for an option that does not exist, such as a misspelled one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from plangym_like.envs.auto_snapshot import WAYS
from plangym_like.errors import InputError

# Python's message about an argument that a function does not have.
_UNEXPECTED = re.compile(
    r"(\w+)(?:\.__init__)?\(\) (?:got an unexpected keyword argument '(\w+)'|takes no arguments)"
)
# The arguments that `make` passes to families; see its documentation of `env_kwargs`.
_FURTHER_OPTIONS = (
    "wrappers",
    "render_mode",
    "obs_type",
    "return_image",
    "remove_time_limit",
    "state_capacity",
    *(option for _, options in WAYS.values() for option in options),
    "max_episode_steps",
    "disable_env_checker",
)


def unknown_option(
    error: TypeError, options: Mapping[str, Any], parameters: Iterable[str]
) -> InputError | None:
    """Return the error for an unknown option, or ``None`` if `error` names none of `options`.

    Parameters
    ----------
    error : TypeError
        Raised by a call with `options`.
    options : mapping
    parameters : iterable of str
        The parameters of `plangym_like.make`.
    """
    known = {*parameters, *_FURTHER_OPTIONS} - {"name", "env_kwargs"}
    found = _UNEXPECTED.search(str(error))
    if found is None:
        return None
    # Python names the option unless the class has no constructor.
    option: str | None = found[2] or next((each for each in options if each not in known), None)
    if option is None or option not in options:
        return None
    near = difflib.get_close_matches(option, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if option in known:
        hint = "; other environments have it"
    return InputError(f"neither make nor {found[1]} has an option {option!r}{hint}")

"""Options with which actors are created: their resources and their runtime environment."""

from __future__ import annotations

from typing import Any

from plangym_like.errors import InputError

_NAMED_OPTIONS = ("num_cpus", "num_gpus", "memory")


def actor_options(
    cores: int, resources: dict[str, Any] | None, runtime_env: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the arguments of ``.options`` for an actor that claims `cores` cores and `resources`.

    ``resources["num_cpus"]`` replaces `cores`. Ray does not restart the actor or repeat a call,
    since the environment's state would be lost without an error.

    >>> actor_options(2, {"num_gpus": 1, "simulator": 1}, None)["resources"]
    {'simulator': 1}
    """
    custom = dict(resources or {})
    options: dict[str, Any] = {"num_cpus": cores, "max_restarts": 0, "max_task_retries": 0}
    options.update({key: custom.pop(key) for key in _NAMED_OPTIONS if key in custom})
    if custom:
        options["resources"] = custom
    if runtime_env is not None:
        options["runtime_env"] = runtime_env
    return options


def check_resources(resources: Any) -> None:
    """Raise `InputError` unless `resources` is a dict or ``None``."""
    if resources is not None and not isinstance(resources, dict):
        raise InputError(f"resources must be a dict such as {{'num_gpus': 1}}, got {resources!r}")

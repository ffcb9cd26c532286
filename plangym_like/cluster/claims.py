"""What an actor asks of the cluster."""

from __future__ import annotations

from typing import Any

from plangym_like.errors import InputError

_OWN_OPTIONS = ("num_cpus", "num_gpus", "memory")


def claims(
    cores: int, resources: dict[str, Any] | None, runtime_env: dict[str, Any] | None
) -> dict[str, Any]:
    """Return options of an actor that claims `resources`, and so many `cores` unless these say.

    Ray itself never starts it again or repeats a call: a fresh one would do so without our knowing.

    >>> claims(2, {"num_gpus": 1, "simulator": 1}, None)["resources"]
    {'simulator': 1}
    """
    named = dict(resources or {})
    options: dict[str, Any] = {"num_cpus": cores, "max_restarts": 0, "max_task_retries": 0}
    options.update({key: named.pop(key) for key in _OWN_OPTIONS if key in named})
    if named:
        options["resources"] = named
    if runtime_env is not None:
        options["runtime_env"] = runtime_env
    return options


def check_resources(resources: Any) -> None:
    """Raise `InputError` unless `resources` can be claimed."""
    if resources is not None and not isinstance(resources, dict):
        raise InputError(f"resources is a dict such as {{'num_gpus': 1}}, got {resources!r}")

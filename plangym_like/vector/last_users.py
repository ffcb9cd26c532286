"""Record which `Lanes` last started each environment of this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

# The last user of each environment, by ``id(env)``. A user keeps its environments alive, so no
# other object gets their ids.
_users: WeakValueDictionary[int, Any] = WeakValueDictionary()


def note_user(envs: Iterable[Any], user: Any) -> None:
    """Record that `user`, which holds `envs`, starts them."""
    for env in envs:
        _users[id(env.unwrapped)] = user


def last_user(env: Any) -> Any:
    """Return the object that last started `env`; ``None`` if no such object exists."""
    return _users.get(id(env.unwrapped))

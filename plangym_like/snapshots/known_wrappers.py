"""The wrappers around an environment, and the attributes that are the state of an object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.chains import CONSTANT, chain, reachable
from plangym_like.snapshots.configuration import (
    NO_HANDLES,
    describe,
    is_handle,
    kind_of,
    qualified_name,
)
from plangym_like.states.random_state import restart


class Forwarding(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The base class of wrappers of this package that forward calls to a copy of the chain."""


# Wrappers that only check how an environment is called.
_CHECKING = (OrderEnforcing, PassiveEnvChecker)
_OWN = "gymnasium.wrappers."
# The attributes of Gymnasium's wrappers (versions 1.1 to 1.4): those that `step` changes and reads
# later, and all others. A wrapper that has any more is of another version, and not known.
_KNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "atari_preprocessing.AtariPreprocessing": (
        ("lives", "game_over", "obs_buffer"),
        (
            "noop_max frame_skip screen_size terminal_on_life_loss scale_obs grayscale_obs "
            "grayscale_newaxis"
        ),
    ),
    "common.Autoreset": (("autoreset",), ""),
    "common.RecordEpisodeStatistics": (
        ("episode_count", "episode_returns", "episode_lengths", "return_queue", "length_queue"),
        "episode_start_time time_queue _stats_key",
    ),
    "common.TimeLimit": (("_elapsed_steps",), "_max_episode_steps"),
    "rendering.AddWhiteNoise": ((), "probability_of_noise_per_pixel is_noise_grayscale func"),
    "rendering.ObstructView": (
        (),
        "obstruction_centers_ratio obstruction_width is_noise_grayscale func",
    ),
    "stateful_action.RepeatAction": ((), "num_repeats"),
    "stateful_action.StickyAction": (
        ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
        "repeat_action_probability repeat_action_duration_range",
    ),
    "stateful_observation.DelayObservation": (("observation_queue",), "delay"),
    "stateful_observation.FrameStackObservation": (
        ("obs_queue",),
        "padding_type padding_value stack_size stacked_obs",
    ),
    "stateful_observation.MaxAndSkipObservation": (("_obs_buffer",), "_skip"),
    "stateful_observation.NormalizeObservation": (
        ("_update_running_mean", "obs_rms.mean", "obs_rms.var", "obs_rms.count"),
        "epsilon",
    ),
    "stateful_observation.TimeAwareObservation": (
        ("timesteps",),
        (
            "flatten normalize_time max_timesteps _time_preprocess_func _append_data_func "
            "_obs_postprocess_func"
        ),
    ),
    "stateful_reward.NormalizeReward": (
        (
            *("_update_running_mean", "discounted_reward"),
            *("return_rms.mean", "return_rms.var", "return_rms.count"),
        ),
        "gamma epsilon",
    ),
}
# When an episode began, in seconds of this process.
_CLOCK = "episode_start_time"
_UNCHANGING: tuple[str, ...] = ("transform_action.", "transform_observation.", "transform_reward.")
_UNCHANGING += ("jax_to_numpy.",)
_FOREIGN = (
    "it converts arrays to arrays of another library, but batches here are NumPy arrays; leave it "
    "out and convert whole batches, as plangym_like.batchers does"
)
_IMPOSSIBLE = {
    f"{_OWN}rendering.RecordVideo": "it writes files; make a video of get_image() instead",
    f"{_OWN}rendering.HumanRendering": "it owns a window; show get_image() instead",
    f"{_OWN}rendering.RenderCollection": "its list of images has no limit; use get_image() instead",
    f"{_OWN}array_conversion.ArrayConversion": _FOREIGN,
    f"{_OWN}jax_to_torch.JaxToTorch": _FOREIGN,
    f"{_OWN}numpy_to_torch.NumpyToTorch": _FOREIGN,
}


def visible(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the wrappers around `env`, outermost first; leave out those without any effect."""
    return [wrapper for wrapper in chain(env) if not is_transparent(wrapper)]


def is_transparent(link: Any) -> bool:
    """Return whether `link` is a wrapper that changes nothing."""
    return type(link) in _CHECKING or isinstance(link, Forwarding)


def describe_wrappers(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the classes and arguments of the `visible` wrappers, outermost first."""
    return [[qualified_name(type(wrapper)), _arguments(wrapper)] for wrapper in visible(env)]


def state_names(wrapper: Any, *, within_others: bool = False) -> tuple[str, ...] | None:
    """Return the names of the attributes that are the state of `wrapper`; ``None`` if unknown.

    The class of a wrapper or an environment may list them: ``state_attributes = ("name", ...)``. A
    wrapper from outside Gymnasium may change the settings of the wrappers inside it, such as the
    length of a time limit. With ``within_others=True``, all settings that are numbers are therefore
    state, too.
    """
    declared = getattr(type(wrapper), "state_attributes", None)
    if declared is not None:
        declared = (declared,) if isinstance(declared, str) else declared
        # The class of an environment may list tuples of a name, a dtype and a shape; its generator
        # is state anyway.
        listed = [item if isinstance(item, str) else item[0] for item in declared]
        is_listed = isinstance(wrapper, gymnasium.Wrapper) or "_np_random" in listed
        return (*listed,) if is_listed else (*listed, "_np_random")
    names = _known_names(wrapper)
    if names:
        try:
            attrgetter(*names)(wrapper)
        except AttributeError:
            # Another version of Gymnasium: every attribute may change.
            return None
    if names is not None and within_others:
        names += tuple(
            name
            for name, value in vars(wrapper).items()
            if type(value) in (bool, int, float) and name not in (*names, *CONSTANT, _CLOCK)
        )
    return names


def is_known(wrapper: Any) -> bool:
    """Return whether `wrapper` is one of Gymnasium's own wrappers whose state is known."""
    return is_transparent(wrapper) or _known_names(wrapper) is not None


def _known_names(wrapper: Any) -> tuple[str, ...] | None:
    """Return the attributes that a wrapper of Gymnasium changes; ``None`` for other wrappers."""
    name = qualified_name(type(wrapper))
    if not name.startswith(_OWN):
        return None
    name = name.removeprefix(_OWN)
    if name.startswith(_UNCHANGING):
        return ()
    names, others = _KNOWN.get(name, (None, ""))
    if names is None:
        return None
    known = {each.partition(".")[0] for each in names}.union(CONSTANT, ["step"], others.split())
    return names if vars(wrapper).keys() <= known else None


def is_foreign_env(base: gymnasium.Env[Any, Any]) -> bool:
    """Return whether `base`, without wrappers, is from outside Gymnasium and this package."""
    return _package_of(type(base)) not in ("gymnasium", _package_of(chain))


def foreign_wrappers(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Return the names of wrappers with code from outside Gymnasium and NumPy, outermost first."""
    return [type(wrapper).__name__ for wrapper in visible(env) if _is_foreign(wrapper)]


def _is_foreign(wrapper: Any) -> bool:
    functions = (value for name, value in vars(wrapper).items() if name not in CONSTANT)
    return not is_known(wrapper) or any(
        callable(value) and not _is_trusted(value) for value in functions
    )


def _is_trusted(value: Any) -> bool:
    return isinstance(value, type) or _package_of(value) in ("gymnasium", "numpy")


def _package_of(thing: Any) -> str:
    """Return the name of the package in which `thing`, or else its class, is defined."""
    return str(getattr(thing, "__module__", None) or type(thing).__module__).partition(".")[0]


def impossible(wrapper: Any) -> str | None:
    """Return why wrappers of the same class as `wrapper` cannot be saved; ``None`` if they can."""
    kinds = (qualified_name(kind) for kind in type(wrapper).__mro__)
    return next((_IMPOSSIBLE[kind] for kind in kinds if kind in _IMPOSSIBLE), None)


def _arguments(wrapper: Any) -> Any:
    """Return a wrapper's constructor arguments, from Gymnasium's record or from its attributes."""
    recorded = getattr(wrapper, "_saved_kwargs", None)
    if recorded is not None:
        return describe(recorded)
    attributes = vars(wrapper)
    found = {}
    for name in inspect.signature(type(wrapper).__init__).parameters:
        for key in (name, f"_{name}"):
            if key in attributes and key not in CONSTANT:
                found[name] = describe(attributes[key])
    return found


# Objects and their state


class StateOwner:
    """An object, and the names of the attributes that are its state.

    Parameters
    ----------
    place : str
        The name of the object in error messages.
    thing : object
        The object.
    names : tuple of str or None
        The attributes that are the object's state; a dotted name is an attribute of an attribute.
        ``None`` means all attributes except handles (see `is_handle`), those in `constant`, and
        those that are still what they were at first, as in `fixed`.
    fixed : dict, optional
        The values of attributes that are configuration. Such an attribute is state only if it is
        another object now.
    locate : callable, optional
        Returns the current object, if a wrapper may replace it in ``reset``.

    Attributes
    ----------
    kind : type
        The class of the object.
    constant : set of str
        Attributes that are never state of this object.
    """

    __slots__ = (
        *("_get", "_locate", "_places", "_thing"),
        *("constant", "fixed", "kind", "names", "place"),
    )

    def __init__(
        self,
        place: str,
        thing: Any,
        names: tuple[str, ...] | None,
        fixed: dict[str, Any] | None = None,
        locate: Callable[[], Any] | None = None,
    ) -> None:
        self.place, self.kind = place, type(thing)
        self._thing, self._locate = thing, locate
        self.constant = frozenset(["_cached_spec"])
        self.fixed: dict[str, Any] = {} if fixed is None else fixed
        self._set_names(names)

    def leave_out(self, name: str) -> None:
        """Leave the attribute `name` out of the state."""
        if self.names is None:
            self.constant |= {name}
        else:
            self._set_names(tuple(each for each in self.names if each != name))

    def _set_names(self, names: tuple[str, ...] | None) -> None:
        self.names = names
        parts = [name.rpartition(".") for name in names or ()]
        self._places = [(attrgetter(path) if path else None, name) for path, _, name in parts]
        one = attrgetter(*names) if names else lambda thing: ()
        self._get: Callable[[Any], Any] = (
            (lambda thing: (one(thing),)) if names and len(names) == 1 else one
        )

    def locate(self) -> Any:
        """Return the current object."""
        if self._locate is None:
            return self._thing
        try:
            thing = self._locate()
        except AttributeError as error:
            raise SnapshotError(f"{self.place} no longer exists: {error}") from error
        if type(thing) is not self.kind:
            raise SnapshotError(
                f"{self.place} was an object of class {qualified_name(self.kind)} when the "
                f"environment was made and is {kind_of(thing)} now; keep one object, or plain data"
            )
        return thing

    def read(self) -> Any:
        """Return the state: a tuple in the order of `names`, or a dict if `names` is ``None``.

        The keys of the dict are sorted.
        """
        thing = self._thing if self._locate is None else self.locate()
        if self.names is not None:
            try:
                return self._get(thing)
            except AttributeError as error:
                raise SnapshotError(f"{self.place} cannot be saved: {error}") from error
        attributes, fixed, constant = thing.__dict__, self.fixed, self.constant
        state = {}
        for name in sorted(attributes):
            value = attributes[name]
            if name in constant or (name in fixed and fixed[name] is value):
                continue
            if type(value) in NO_HANDLES or not is_handle(value):
                state[name] = value
        return state

    def write(self, state: Any) -> None:
        """Set the state of the object to `state`; ``fits(state)`` must be true."""
        thing = self._thing if self._locate is None else self.locate()
        if self.names is not None:
            for (owner, name), value in zip(self._places, state, strict=False):
                setattr(thing if owner is None else owner(thing), name, value)
            return
        attributes, handles = thing.__dict__, {}
        for name, value in attributes.items():
            if type(value) not in NO_HANDLES and is_handle(value):
                handles[name] = value
        attributes.update(self.fixed)
        attributes.update(state)
        if handles:
            attributes.update(handles)
        for name in attributes.keys() - state.keys():
            if not (name in self.fixed or name in handles or name in self.constant):
                del attributes[name]

    def fits(self, state: Any) -> bool:
        """Return whether `state` has the form of this object's state."""
        if self.names is not None:
            return type(state) is tuple and len(state) == len(self.names)
        return type(state) is dict and self.constant.isdisjoint(state)

    def items(self, state: Any) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each attribute in `state`."""
        yield from state.items() if self.names is None else zip(self.names, state, strict=True)

    def leave_out_missing(self) -> None:
        """Leave out the named attributes that the object does not have yet."""
        if self.names is not None:
            thing = self.locate()
            self._set_names(tuple(name for name in self.names if _has(thing, name)))


def _has(thing: Any, name: str) -> bool:
    try:
        attrgetter(name)(thing)
    except AttributeError:
        return False
    return True


def restart_generators(values: Iterable[Any], but: Iterable[Any], seed: int) -> None:
    """Restart the random generators in `values` from `seed`; leave out the objects in `but`."""
    seen, number = {id(thing) for thing in but}, 0
    for value in values:
        for _, thing in reachable(value, "", seen):
            if isinstance(thing, np.random.Generator):
                bits: Any = thing.bit_generator
                start = np.random.SeedSequence(int(seed), spawn_key=(number,))
                restart(bits, type(bits)(start))
                number += 1


def columns_of(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Stack the values of all `rows` by key.

    A key is left out unless its values are numbers or arrays, all with the same shape and dtype.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, value in rows[0].items() if rows else ():
        if isinstance(value, bool | int | float | np.generic | np.ndarray):
            parts = [np.asarray(row.get(name)) for row in rows]
            if len({(part.shape, part.dtype) for part in parts}) == 1 and parts[0].dtype != object:
                found[name] = np.stack(parts)
    return found

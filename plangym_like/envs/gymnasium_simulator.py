"""`GymnasiumSimulator`: a Gymnasium environment and its wrappers as a `Simulator`.

A family adds a `Codec` for the base of the wrapper chain, and a `Kernel` if it has one. A row
holds the state of the base, its random generator, and the wrappers' state, in this order. If the
environment or a wrapper has foreign code, a trial tests whether it repeats its results.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Outcome, Rows
from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import (
    Simulator,
    as_flag,
    as_reset,
    as_reward,
    as_step,
)
from plangym_like.envs.codec import Codec
from plangym_like.envs.kernel import Kernel, NotVectorisableError, has_replaced_methods
from plangym_like.envs.rendering import RenderingSimulator
from plangym_like.envs.transforms import checked_kernel
from plangym_like.envs.wrapping import (
    NothingSaved,
    WrapperLike,
    as_env,
    as_wrappers,
    call_source,
    check_is_new,
    check_reset,
    drop_generators,
    first_reset,
    spaces_of,
    takes,
    transforms_of,
    without_time_limit,
    wrap,
)
from plangym_like.errors import InputError, SnapshotError
from plangym_like.snapshots.chain_state import WrapperState, WrapperValues
from plangym_like.snapshots.chains import close_copy, innermost, libraries_left_open
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.known_wrappers import foreign_wrappers, is_foreign_env, visible
from plangym_like.snapshots.trial import Trial, TrialResult, known_trials
from plangym_like.states import random_state
from plangym_like.states.rows import Row, padded
from plangym_like.support.arguments import as_count, name_of


class GymnasiumSimulator(RenderingSimulator):
    """A simulator of a Gymnasium environment with the user's wrappers around it.

    The constructor makes everything, in this order. A family overrides the methods in which it
    differs; if it has options of its own, its constructor keeps them before it calls this one.

    1. `make_env` makes the environment, and `wrapped` puts the user's wrappers around it.
    2. `restorer` keeps the state of the new wrappers: the user's first episode begins with it.
    3. `make_codec` resets the environment, and returns what saves its base.
    4. `make_memory` returns what saves the wrappers; now the layout of rows is known.
    5. `make_kernel` is called later, before the first batch.

    If `always_tried` is true, or if the environment or a wrapper has code from outside Gymnasium
    and this package, a trial plays some steps with this environment and a second one (see `Trial`).
    Then both are closed, and the user's environment is made as above. If a second one cannot be
    made, the first one repeats its own episodes. It is then used further, because it may be the
    only one; so is one that renders, because it may have opened a window. Before the user's first
    episode, `renew` restores its wrappers as they were in step 2.

    Parameters
    ----------
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    frameskip : int, optional
        The number of ``env.step`` calls per action; 1 by default.
    render_mode : str, optional
        As in Gymnasium. Unless it is ``"rgb_array"``, a second environment renders images.
    obs_type : {"coords", "rgb", "grayscale"}, optional
        The kind of observation: ``"coords"`` (the default) is the environment's own, ``"rgb"`` is
        its image ``(H, W, 3)``, and ``"grayscale"`` is the image's luminance ``(H, W)`` according
        to ITU-R BT.601.
    wrappers : sequence
        Wrapper classes or ``(class, kwargs)`` pairs, applied in order.
    remove_time_limit : bool, optional
        Whether to remove every `TimeLimit` before applying `wrappers`. By default, the limit of a
        registered id is removed unless ``max_episode_steps`` is given; a callable's limit is kept.
    state_capacity : int, optional
        Bytes reserved in each row for the wrappers' state, if it has no fixed size.
    env_kwargs
        Passed to ``gymnasium.make``, or to the callable.
    """

    # The values of ``make(..., snapshot=)``, other than "native", for which the id makes the same
    # environment.
    other_ways: ClassVar[tuple[str, ...]] = ()
    # Whether every environment of the family is tried out, or only those with foreign code.
    always_tried: ClassVar[bool] = False
    # Whether the trial uses a second environment.
    makes_copies: ClassVar[bool] = True
    # Whether a reset without a seed draws one.
    seeds_only: bool = False
    codec: Codec
    # What saves the wrappers' state: a `WrapperState` or a `ChainPickle`.
    memory: Any
    _is_copy: bool = False
    # The result of the trial; ``None`` until it is known, or if there is none.
    _trial_result: TrialResult | None = None
    # Restores the wrappers as they were before the first reset.
    _restore_initial: Callable[[], None] | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments, so that the trial can make a second copy."""
        simulator = super().__new__(cls)
        simulator._arguments = args, kwargs
        return simulator

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        *,
        frameskip: int | tuple[int, int] | None = None,
        render_mode: str | None = None,
        obs_type: str | None = None,
        wrappers: Sequence[WrapperLike] | None = None,
        remove_time_limit: bool | None = None,
        state_capacity: int | None = None,
        **env_kwargs: Any,
    ) -> None:
        if obs_type is not None and obs_type not in self.obs_types:
            raise InputError(f"obs_type must be one of {self.obs_types}, got {obs_type!r}")
        limit = env_kwargs.get("max_episode_steps")
        if remove_time_limit and limit not in (None, -1):
            raise InputError(
                f"max_episode_steps={limit} and remove_time_limit=True contradict each other; "
                "leave one of them out"
            )
        if remove_time_limit is None:
            remove_time_limit = isinstance(name, str) and limit is None
        self.name = name
        self.obs_type = obs_type
        self._images = obs_type in self.rendered_obs_types
        self.render_mode = "rgb_array" if self._images and render_mode is None else render_mode
        self.env_kwargs = env_kwargs
        self.state_capacity = state_capacity and as_count("state_capacity", state_capacity)
        self._set_frameskip(frameskip)
        self._wrappers = as_wrappers(wrappers)
        self._remove_time_limit = remove_time_limit
        env = self.make_env()
        self.render_mode = self.render_mode or getattr(env, "render_mode", None)
        try:
            env = self.wrapped(env)
            self._foreign_wrappers = foreign_wrappers(env)
            self._has_foreign_code = bool(self._foreign_wrappers) or is_foreign_env(innermost(env))
            self._is_tried = self.always_tried or self._has_foreign_code
            if self._is_tried and not self._is_copy:
                self._set_up_tried(env)
            else:
                self._set_up(env)
            if not self._is_copy:
                self._note_inexactness()
        except BaseException:
            # Another method may be tried next, and some simulators allow only one instance.
            close_copy(getattr(self, "env", env))
            raise

    def wrapped(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Return `env`, which `make_env` returned, in the user's wrappers."""
        if self._remove_time_limit:
            env = without_time_limit(env)
        for item in self._wrappers:
            env = wrap(env, item)
        return env

    def _set_up(self, env: gymnasium.Env[Any, Any]) -> None:
        """Use the new chain `env`: keep its initial state, reset it, and lay out its states."""
        self.env: gymnasium.Env[Any, Any] = env
        self.base: Any = innermost(env)
        spaces = spaces_of(env)
        if self._has_foreign_code and self.snapshot != "replay":
            spaces = copy.deepcopy(spaces)  # users draw from these
        self.action_space, self.observation_space = spaces
        if self._is_tried:
            check_reset(env)
        if not self._is_copy:
            self._restore_initial = self.restorer()
        codec = self.codec = self.make_codec()
        self._generator = random_state.GeneratorMemory(self.base)
        self._generator_at = codec.nbytes
        assert self._generator_at % 8 == 0
        end = self._generator_at + random_state.GENERATOR_NBYTES * codec.saves_generator
        self.wrappers_at = padded(end)
        self.memory = self.make_memory()
        self.payload_nbytes = self.wrappers_at + padded(self.memory.nbytes)
        self.columns, self.plain_infos = {}, True
        self._transforms, self.time_limit = transforms_of(env)
        if codec.columns is not None and self._transforms is not None:
            self.columns, self.plain_infos = dict(codec.columns), False
        self.exactness, self.exactness_note = codec.exactness, codec.exactness_note
        if self._images:
            self.observation_space = self.image_space()
        self._kernels: dict[str, Kernel | None] = {}
        self._configured: tuple[Any, ...] = ()

    def _set_frameskip(self, frameskip: int | tuple[int, int] | None) -> None:
        if frameskip is not None:
            self.frameskip = as_count("frameskip", frameskip)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment without the user's wrappers."""
        # A mode of None is not passed on, because an environment may have another default.
        mode: dict[str, Any] = {} if self.render_mode is None else {"render_mode": self.render_mode}
        if callable(self.name):
            known = mode if takes(self.name, "render_mode") else {}
            return as_env(call_source(self.name, {**known, **self.env_kwargs}), self.name)
        options = {"disable_env_checker": True, **mode, **self.env_kwargs}
        env: gymnasium.Env[Any, Any] = gymnasium.make(self.name, **options)
        # `OrderEnforcing` takes time in each step, and a `PlanEnv` resets its environment anyway.
        # But wrappers may ask it whether the environment was reset.
        if self._wrappers:
            return env
        if type(env) is TimeLimit and type(env.env) is OrderEnforcing:
            env.env = env.env.env
        return env.env if type(env) is OrderEnforcing else env

    @abc.abstractmethod
    def make_codec(self) -> Codec:
        """Reset the environment (see `reset_once`), and return the codec for `base`."""

    def restorer(self) -> Callable[[], None] | None:
        """Return a function that restores the wrappers as they are now, before the first reset.

        Return ``None`` if they have no state.
        """
        values = WrapperValues(self.env) if visible(self.env) else None
        return values.restorer() if values is not None and values.owners else None

    def reset_once(self) -> None:
        """Reset the new chain (see `first_reset`), and remove its random generators."""
        first_reset(self.env)
        drop_generators(self.env)

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel for actions of dtype `kind`, a type character, if there is one.

        It is called when such actions first occur, unless a method of the environment is replaced
        or a wrapper takes part in steps. The kernel is used if it agrees with the environment (see
        `Kernel.disagreement`).
        """
        return None

    def configuration(self) -> tuple[Any, ...]:
        """Return what kernels read when they are made; if it changes, new ones are made."""
        return ()

    def make_memory(self) -> Any:
        """Return the object that saves the state of the wrappers around `base`."""
        if not visible(self.env):
            return NothingSaved([])
        return WrapperState(self.env, self.state_capacity)

    # The trial, and copies

    def _set_up_tried(self, env: gymnasium.Env[Any, Any]) -> None:
        """Set up the new chain `env`, after a trial with two others if that is possible."""
        known, kind = known_trials(), qualified_name(type(self))
        self._trial_result = known.find(kind, self._arguments)
        if self._trial_result is None:
            given, self.env_kwargs = self.env_kwargs, _copied(self.env_kwargs)
            tried = self._chain_to_try(env)
            try:
                self._set_up(tried)
                note = self._run_trial()
            except BaseException:
                if tried is not env:
                    close_copy(getattr(self, "env", tried))
                    self.env = env
                raise
            finally:
                self.env_kwargs = given
            result = TrialResult(kind, note, self.codec.nbytes, seeds_only=self.seeds_only)
            known.note(result, self._arguments)
            self._trial_result = result
            if tried is env:
                self.memory.scatters = self.codec.scatters = False
                return
            close_copy(self.env)
        self._set_up(env)

    def _chain_to_try(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Return a new chain; or `env`, if it may own a window or be the only one."""
        if not self.makes_copies or self.render_mode is not None:
            return env
        try:
            other = self.wrapped(self.make_env())
        except Exception:
            return env
        check_is_new(other, env, self.name)
        return other

    def _run_trial(self) -> str:
        """Run the trial, and return why states are only approximate, or an empty string."""
        # Steps that depend on the order of a set then give other results.
        self.memory.scatters = self.codec.scatters = True
        other = self.second_copy()
        try:
            return Trial(self, other).run()
        except SnapshotError as error:
            if self.exactness != "exact":
                return str(error)
            raise
        finally:
            if other is not None and self.render_mode is None:
                close_copy(other)

    def _note_inexactness(self) -> None:
        """Record why states are inexact, after the trial if there was one."""
        for note in (self._trial_result.note if self._trial_result else "", self.memory.unordered):
            if note:
                self.exactness = "approximate"
                self.exactness_note = "; ".join(filter(None, [self.exactness_note, note]))

    def draw_seeds(self) -> bool:
        """From now on, draw a seed for each reset without one; return whether that is new.

        The trial calls this if an episode without a seed did not repeat itself.
        """
        return False

    def second_copy(self) -> Self | None:
        """Return a simulator made with the same arguments, which has been reset already.

        Return ``None`` if this family makes no copies, or if there can be only one simulator. Raise
        `InputError` if the callable returns the same environment each time.
        """
        if not self.makes_copies:
            return None
        try:
            other = self.make_again(*self._arguments[0], **_copied(self.env_kwargs))
        except Exception:
            return None
        check_is_new(other.env, self.env, self.name)
        other.memory.scatters = other.codec.scatters = True
        return other

    def suspect_wrappers(self) -> Sequence[str]:
        """Return the names of the wrappers that run code from outside Gymnasium and this package.

        For all other wrappers, it is known which attributes are state.
        """
        return self._foreign_wrappers

    def copy_for_audits(self) -> Simulator | None:
        """Return a second copy if the environment or its wrappers may have state outside its rows.

        Return ``None`` for a replayed environment: each replay checks the results of its steps.
        """
        if self._is_copy or self.snapshot == "replay" or not self._has_foreign_code:
            return None
        copy = self.second_copy()
        if copy is not None and copy.payload_nbytes != self.payload_nbytes:
            with libraries_left_open():
                copy.close()
            return None
        return copy

    def make_again(self, *args: Any, **changed: Any) -> Self:
        """Make another simulator of this class, without a trial; see `RenderingSimulator`."""
        kwargs = {**self._arguments[1], **changed}
        other = type(self).__new__(type(self), *args, **kwargs)
        other._is_copy, other._trial_result = True, self._trial_result
        other.__init__(*args, **kwargs)  # type: ignore[misc]
        return other

    # Layout of the state

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the id, arguments, wrappers, library version, and the fields of the codec."""
        return {
            "id": name_of(self.name),
            "kwargs": {key: describe(value) for key, value in sorted(self.env_kwargs.items())},
            "wrappers": self.memory.fingerprint_fields(),
            "gymnasium": gymnasium.__version__,
            **self.codec.fingerprint_fields(),
        }

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the named fields of the codec and of the wrappers."""
        wrappers = self.memory.view(payloads[:, self.wrappers_at :]) if self.memory.nbytes else {}
        return {**self.codec.view(payloads), **wrappers}

    def build_state(self, payload: Row, **physics: Any) -> None:
        """Write the fields `physics` into `payload`, a copy of a state's payload.

        The codec defines the fields, except ``elapsed_steps``, the step count of a time limit.

        Raises
        ------
        InputError
            A name is unknown, or a value does not fit.
        """
        if self.memory.nbytes and self.memory.time_limit and "elapsed_steps" in physics:
            steps = as_count("elapsed_steps", physics.pop("elapsed_steps"), 0)
            if steps >= 2**63:
                raise InputError(f"elapsed_steps must be less than 2**63, got {steps}")
            payload[self.wrappers_at :][:8].view(np.int64)[0] = steps
            if not physics:
                return
        self.codec.build_state(payload[: self._generator_at], physics)

    # Reading

    def read(self, payload: Row) -> int | None:
        """Save the base environment, its random generator and the wrappers to `payload`."""
        codec = self.codec
        used = codec.read(payload[: self._generator_at])
        if codec.saves_generator:
            self._generator.save(payload, self._generator_at)
        if self.memory.nbytes:
            self.memory.read(payload[self.wrappers_at :])
        return used

    # Writing

    def write(self, payload: Row) -> None:
        """Restore the base environment, its random generator and the wrappers from `payload`."""
        codec = self.codec
        codec.write(payload[: self._generator_at])
        if codec.saves_generator:
            self._generator.load(payload, self._generator_at)
        if self.memory.nbytes:
            self.memory.write(payload[self.wrappers_at :])

    def reseed(self, seed: int) -> None:
        """Replace the random generators of the base, and of wrappers that have their own."""
        if self.codec.saves_generator:
            random_state.reseed(self.base, seed)
        self.codec.reseed(seed)
        self.memory.reseed(seed)

    def renew(self) -> None:
        """Remove all random generators, and restore the wrappers as they were at first."""
        self.codec.renew()
        drop_generators(self.env)
        if self._restore_initial is not None:
            self._restore_initial()

    # Stepping

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and its wrappers; without a seed, keep the random generator.

        If there is no generator yet, one is made now. Gymnasium would make it when it is first
        used, possibly in a step, and then each row would get a different generator.
        """
        if seed is None:
            random_state.make_generator(innermost(self.env))
        obs, info = as_reset(self.env.reset(seed=seed, options=options))
        return self.observe(obs), info

    def step(self, action: Any, dt: int) -> Outcome:
        """Call ``env.step`` until ``dt * frameskip`` frames have run or the episode has ended."""
        assert isinstance(self.frameskip, int)
        return self.hold(action, dt * self.frameskip)

    @property
    def steps_env_alone(self) -> bool:
        """Whether a step is one call of ``env.step``."""
        return self.frameskip == 1 and not self._images

    def hold(self, action: Any, count: int) -> Outcome:
        """Call ``env.step`` `count` times, or until the episode ends; sum the rewards.

        The last element of the result is the number of calls.
        """
        total = 0.0
        for left in range(count - 1, -1, -1):
            result: Any = self.env.step(owned(action) if left else action)
            if type(result) is not tuple or len(result) != 5:
                result = as_step(result)
            obs, reward, terminated, truncated, info = result
            total += float(reward) if isinstance(reward, float) else as_reward(reward)
            if type(terminated) is not bool or type(truncated) is not bool:
                terminated = as_flag("terminated", terminated)
                truncated = as_flag("truncated", truncated)
            if terminated or truncated:
                break
        if self._images:
            obs = self.observe(obs)
        return obs, total, terminated, truncated, info, count - left

    @property
    def steps_batches(self) -> bool:
        """Whether there is a kernel that steps many rows at once; it is tested when first read.

        The kernel is that for the usual dtype of actions.
        """
        kernel = self.kernel_for(np.zeros(0, self.action_space.dtype))
        return kernel is not None and kernel.is_vectorised

    def takes_threads(self, inputs: Inputs) -> bool:
        """Return whether the kernel can step `inputs` on several threads."""
        kernel = self.kernel_for(inputs.actions)
        return kernel is not None and kernel.takes_threads(inputs)

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step several rows with the kernel if there is one; otherwise, step them one by one."""
        horizon, is_single = rows.inputs.horizon, stop - start == 1
        if is_single and not horizon:  # `step` is faster, and audits compare it with the kernel
            super().step_rows(rows, start, stop)
            return
        kernel = self.kernel_for(rows.inputs.actions)
        if kernel is None or not kernel.takes(rows) or (is_single and not kernel.rolls_out_one):
            super().step_rows(rows, start, stop)
            return
        step = kernel.rollout if horizon else kernel.step
        for first in range(start, stop, kernel.most):
            last = min(first + kernel.most, stop)
            rows.cursor[0] = first
            try:
                step(rows, first, last)
            except NotVectorisableError:
                super().step_rows(rows, first, last)

    def kernel_for(self, actions: Any) -> Kernel | None:
        """Return the kernel for the dtype of `actions`, if any; make it when first needed.

        If the `configuration` has changed, or the number of the environment's attributes (a
        replaced method is one more), the kernels are made and tested again.
        """
        if self._images or not isinstance(actions, (np.ndarray, np.generic)):
            return None
        kernels, kind = self._kernels, actions.dtype.char
        then, now = self._configured, (len(vars(self.base)), *self.configuration())
        if len(now) != len(then) or not all(map(is_, now, then)):
            self._configured = now
            kernels.clear()
        if kind not in kernels:
            transforms = self._transforms  # ``None`` if another wrapper takes part in steps
            if transforms is None or has_replaced_methods(self.base):
                kernels[kind] = None
            else:
                kernels[kind] = checked_kernel(self, transforms, kind)
        return kernels[kind]

    def close(self) -> None:
        """Release the simulator's resources; safe to call more than once."""
        self._kernels.clear()  # they may have threads
        super().close()


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the arguments that can be copied: steps of a trial may change them."""
    copies = {}
    for name, value in arguments.items():
        try:
            copies[name] = copy.deepcopy(value)
        except Exception:
            copies[name] = value
    return copies

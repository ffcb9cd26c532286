"""`Collector`: steps lanes with an actor; `RolloutIterator`: yields the fragments."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.randomness import GroupSeed, RandomStreams, get_states, set_states
from plangym_like.batchers.rollout.actor import BaseActorModule
from plangym_like.batchers.rollout.fragment import (
    Final,
    Fragment,
    FragmentBuffer,
    FragmentOptions,
    InfoColumns,
    Inputs,
    State,
    StepViews,
    join_finals,
    join_infos,
)
from plangym_like.batchers.stepping import EpisodeLanes
from plangym_like.batchers.trees import (
    as_arrays,
    as_tensors,
    clone_tree,
    copy_fitting,
    empty,
    tensor_layout,
    to_device,
)
from plangym_like.batchers.weights import ActorWeights, load_weights
from plangym_like.batchers.workers.group import Closable
from plangym_like.batchers.workers.hosted import GroupContext
from plangym_like.errors import InputError
from plangym_like.vector.lanes import Lanes
from plangym_like.vector.make_lanes import EnvSource, lanes_from
from plangym_like.vector.start_states import StartStates
from plangym_like.vector.tree import Leaf, take, tree_leaves, tree_map

_NO_LANES: NDArray[np.intp] = np.empty(0, np.intp)


class Collector:
    """Steps one group of lanes with one actor, and collects fragment after fragment.

    Parameters
    ----------
    lanes : Lanes
    actor : BaseActorModule
    options : FragmentOptions
    seed : GroupSeed, optional
        ``seed.lanes`` holds one seed per environment, for its first reset. ``seed.words`` seed the
        random generators of given states.
    streams : RandomStreams
        The random generators of the actor and the environments.
    states : StartStates, optional
        The states in which the first episodes begin.
    device : torch.device, optional
        The device of the actor, if it is not the CPU.
    beat : callable
        Called at every step.
    """

    def __init__(
        self,
        lanes: Lanes,
        actor: BaseActorModule,
        options: FragmentOptions,
        *,
        seed: GroupSeed | None = None,
        streams: RandomStreams,
        states: StartStates | None = None,
        device: torch.device | None = None,
        beat: Callable[[], object] = bool,
    ) -> None:
        self.lanes = lanes
        self._episodes = EpisodeLanes(lanes, None if seed is None else seed.words)
        self._actor = actor
        self._options = options
        self._lane_seeds = None if seed is None else seed.lanes
        self._states = states
        self._streams = streams
        self._device = device
        self._beat = beat
        self._buffer: FragmentBuffer | None = None
        self._is_halfway = False

    def _prepare(self) -> FragmentBuffer:
        """Begin the first episodes, learn what the actor returns, and make the buffer."""
        with self._streams.in_place(), torch.no_grad():
            obs = self._episodes.begin(self._lane_seeds, states=self._states)
            self._place_at_beginnings(obs)
            actor = self._probe_actor((self._obs, self._act, self._rew, self._fin))
        return FragmentBuffer(
            self._options.n_steps,
            self.lanes.num_lanes,
            observation=tensor_layout(self.lanes.observation_layout),
            action=tensor_layout(self.lanes.action_layout),
            actor=actor,
        )

    def _place_at_beginnings(self, obs: Any) -> None:
        """Set the actor's inputs to `obs`, the first observations of new episodes in all lanes."""
        count = self.lanes.num_lanes
        self._obs = tree_map(lambda leaf: leaf[None], as_tensors(obs))
        self._act = empty(tensor_layout(self.lanes.action_layout), (1, count))
        self._rew = torch.zeros(1, count)
        self._fin = torch.ones(1, count, dtype=torch.bool)

    def _probe_actor(self, inputs: Any) -> Any:
        """Call the actor to get its first recurrent state; return the layout of one lane's info."""
        answer = self._ask(self._actor.step, inputs, None)
        if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], dict)):
            raise InputError(
                f"{type(self._actor).__name__} must return (actions, hx, info), the last a dict, "
                f"got {answer!r:.200}"
            )
        _, self._hx, info = answer
        count = self.lanes.num_lanes
        self._recurrent = bool(tree_leaves(self._hx))
        if self._recurrent:
            self._check_hx()
            self._hx = self._reset_hx(slice(None), self._hx)

        def row(value: torch.Tensor) -> Leaf:
            if tuple(value.shape[:2]) != (1, count):
                raise InputError(
                    f"an actor's infos must begin with the axes (T, B), here (1, {count}), got the "
                    f"shape {tuple(value.shape)}"
                )
            return Leaf(tuple(value.shape[2:]), value.dtype)

        layout: dict[str, Any] = tree_map(row, info)
        if "value" in layout and not isinstance(layout["value"], Leaf):
            raise InputError(f"the actor's value must be one tensor (T, B), got {layout['value']}")
        return layout

    def _check_hx(self) -> None:
        """Raise an error unless the second dimension of the state has the number of lanes."""
        count, states = self.lanes.num_lanes, tree_leaves(self._hx)
        wrong = [state.shape for state in states if state.ndim < 2 or state.shape[1] != count]
        if wrong:
            raise InputError(
                f"the recurrent state of {type(self._actor).__name__} must have the lanes along "
                f"the second dimension, here {count}, as in torch's recurrent layers without "
                f"batch_first; got the shape {tuple(wrong[0])}"
            )

    def _ask(self, method: Callable[..., Any], inputs: Any, hx: Any) -> Any:
        """Call a method of the actor; `inputs` are the fragment's own tensors.

        Raises
        ------
        InputError
            The actor has changed its inputs.
        """
        before = _versions(inputs)
        answer = method(*self._on_device(inputs), hx=hx)
        if _versions(inputs) != before:
            raise InputError(
                f"{type(self._actor).__name__} changed its inputs in place, and with them the "
                "fragment: use obs * 2, not obs.mul_(2), and layers without inplace=True"
            )
        return answer

    def _on_device(self, tree: Any) -> Any:
        return tree if self._device is None else to_device(tree, self._device)

    def collect(self, version: int) -> Fragment:
        """Collect the next steps of all lanes; `version` is the version of the actor's weights.

        Tensors may be overwritten by the next call. In ``env`` are the `InfoColumns.columns`.

        If the last call was interrupted (for example by Ctrl-C), the states of the lanes are
        unknown, so all lanes begin new episodes.

        Raises
        ------
        InputError
            The actor's output has the wrong structure or shape, or not the form of its first
            output; or the environments have been used elsewhere.
        """
        if self._buffer is None:
            self._buffer = self._prepare()
        if not self._is_halfway:
            self.lanes.check_not_used_elsewhere()
        with self._streams.in_place(), torch.no_grad():
            if self._is_halfway:
                self._place_at_beginnings(self._episodes.begin())
                if self._recurrent:
                    self._hx = self._reset_hx(slice(None), self._hx)
            self._is_halfway = True
            fragment = self._collect(self._buffer, version)
            self._is_halfway = False
        return fragment

    def _collect(self, buffer: FragmentBuffer, version: int) -> Fragment:
        actor, episodes, options = self._actor, self._episodes, self._options
        infos = InfoColumns()
        copy_fitting(buffer.rows[0].obs, self._obs, "observations", is_action=False)
        before = Inputs(None, self._act, self._rew, self._fin)
        _, act, rew, fin = before
        hx = self._hx
        # The first has no episodes, but the shapes and dtypes.
        finals = [self._final(buffer, 0, _NO_LANES, hx)] if options.keep_final else []
        episodes.running = previous = None
        for t, row in enumerate(buffer.rows):
            self._beat()
            answer, hx, info = self._ask(actor.step, (row.obs, act, rew, fin), hx)
            act, rew, fin = row.act, row.rew, row.fin
            copy_fitting(act, answer, "the actor's actions")
            if info.keys() != row.actor.keys():
                raise InputError(
                    f"the actor's info has the keys {list(info)} now, but had {list(row.actor)} in "
                    "its first output"
                )
            for key, rows in row.actor.items():
                copy_fitting(rows, info[key], f"the actor's {key!r}", is_action=False)
            row.stepno[...] = episodes.timestep
            ended = episodes.step(row.actions, row.outcome, previous)
            if options.infos:
                self._note_infos(infos, t)
            if len(ended) and options.keep_final:
                finals.append(self._final(buffer, t, ended, hx))
            if len(ended) or episodes.running is not None:
                hx = self._end_episodes(row, ended, hx)
            previous = row.outcome
        bootstrap = buffer.no_value[None].clone()
        if "value" in buffer.steps["actor"]:
            value = self._ask(actor.value, (buffer.last_obs, act, rew, fin), hx)
            copy_fitting(bootstrap, value, "the actor's 'value'", is_action=False)
        first_hx = self._hx
        # Copied, since the actor may have returned views of its inputs.
        self._hx = tree_map(torch.empty_like, first_hx)
        copy_fitting(self._hx, hx, "the actor's recurrent states", is_action=False)
        self._obs = clone_tree(buffer.last_obs)
        self._act, self._rew, self._fin = clone_tree(act), rew.clone(), fin.clone()
        count = self.lanes.num_lanes
        return Fragment(
            State(buffer.obs, *(buffer.steps[name] for name in State._fields[1:])),
            actor=buffer.steps["actor"],
            env=infos.columns(options.n_steps, count),
            bootstrap=bootstrap,
            hx=to_device(first_hx, "cpu"),
            version=torch.full((count,), version),
            before=before,
            final=join_finals(finals) if finals else None,
            sticky=options.sticky,
        )

    def _end_episodes(self, row: StepViews, ended: NDArray[np.intp], hx: Any) -> Any:
        """Begin episodes in the lanes `ended`; return the recurrent state for the next step."""
        if len(ended):
            self._episodes.restart(row.outcome.obs, ended)
        done = row.outcome.done
        if self._recurrent:
            hx = self._reset_hx(torch.from_numpy(done.nonzero()[0]), hx)
        if self._options.sticky:
            self._episodes.running = np.flatnonzero(~done)
        return hx

    def _final(self, buffer: FragmentBuffer, t: int, lanes: NDArray[np.intp], hx: Any) -> Final:
        """Return the last observations of `lanes`, whose episodes ended with step `t`.

        They are arrays, since NumPy takes less time than torch for arrays of a few rows.
        """
        arrays: dict[str, Any] = {
            "t": np.full(len(lanes), t),
            "lane": lanes,
            "obs": take(buffer.rows[t].outcome.obs, lanes),
        }
        value = self._final_value(buffer, t, lanes, hx)
        states = tree_map(lambda state: state.cpu()[:, lanes], hx)
        return Final(value=value, hx=states, **arrays)

    def _final_value(
        self, buffer: FragmentBuffer, t: int, ended: NDArray[np.intp], hx: Any
    ) -> torch.Tensor:
        """Return the critic's estimates for the lanes `ended`; 0 if step `t` did not truncate."""
        row = buffer.rows[t]
        cut = (row.outcome.truncated & ~row.outcome.terminated)[ended]
        if "value" not in row.actor or not np.count_nonzero(cut):
            return buffer.no_value[: len(ended)]
        obs = take(buffer.obs, slice(t + 1, t + 2))
        # `fin` is false: this observation is not the first of a new episode.
        inputs = obs, row.act, row.rew, torch.zeros_like(row.fin)
        before = get_states()
        found: torch.Tensor = self._ask(self._actor.value, inputs, hx)[0]
        set_states(before)  # the noise of later steps must not depend on keep_final
        value = found.cpu()[ended].to(buffer.no_value.dtype)
        value[~torch.from_numpy(cut)] = 0
        return value

    def _note_infos(self, columns: InfoColumns, t: int) -> None:
        infos, running = self.lanes.infos, self._episodes.running
        for lane in range(self.lanes.num_lanes) if running is None else running:
            if infos[lane]:
                columns.note(infos[lane], t, int(lane))

    def _reset_hx(self, lanes: Any, hx: Any) -> Any:
        fresh = self._actor.reset(lanes, hx)
        return hx if fresh is None else fresh


def _versions(tree: Any) -> list[int]:
    """Return each tensor's number of in-place changes.

    Inference tensors are left out, because they do not record this number.
    """
    return [leaf._version for leaf in tree_leaves(tree) if not leaf.is_inference()]


@dataclass
class RolloutStats:
    """Statistics of a rollout iterator so far.

    Attributes
    ----------
    batches : int
        Fragments that were yielded.
    steps : int
        Steps of all lanes in these fragments, including those of frozen lanes.
    version : int
        The number of times that the actor's weights have changed between two fragments.
    waited : float
        Seconds that the iterator spent waiting for fragments.
    """

    batches: int = 0
    steps: int = 0
    version: int = 0
    waited: float = 0.0


class RolloutIterator(Closable):
    """Yields fragments without end.

    An error closes the iterator. Later calls of ``next`` raise `ClosedError`; they never end the
    caller's loop silently.

    For a GPU, fragments are copied asynchronously from page-locked memory. Torch reuses that memory
    only when the copy is complete.

    Parameters
    ----------
    actor : BaseActorModule
    options : FragmentOptions
    device : torch.device or str, optional
    pinned : bool
        See `plangym_like.batchers.rollout.multi.rollout`.

    Attributes
    ----------
    stats : RolloutStats

    Raises
    ------
    InputError
        A GPU is needed, but torch finds none.
    """

    _called = "rollout"

    def __init__(
        self,
        actor: BaseActorModule,
        options: FragmentOptions,
        device: torch.device | str | None,
        *,
        pinned: bool = False,
    ) -> None:
        self.stats = RolloutStats()
        self._weights = ActorWeights(actor)
        self._options = options
        self._device = torch.device("cpu" if device is None else device)
        self._pinned = pinned or self._device.type == "cuda"
        if self._pinned and not torch.cuda.is_available():
            raise InputError(
                f"pinned={pinned} and device={device!r} need a GPU, but torch finds none"
            )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Fragment:
        self._check_open()
        try:
            fragment = self._next()
        except Exception as error:
            self._end = f"failed with {type(error).__name__}: {error}"
            self.close()
            if isinstance(error, StopIteration):
                # A StopIteration would end the caller's loop without an error.
                raise RuntimeError("the actor or an environment raised StopIteration") from error
            raise
        self.stats.batches += 1
        self.stats.steps += fragment.state.fin.numel()
        return fragment

    @abc.abstractmethod
    def _next(self) -> Fragment: ...

    def _assemble(self, parts: Sequence[Fragment]) -> Fragment:
        """Return one fragment, in new memory, with the lanes of all `parts` side by side."""
        finals, first = [], 0
        for part in parts:
            if part.final is not None:
                finals.append(part.final._replace(lane=part.final.lane + first))
            first += len(part.version)
        apart: dict[str, Any] = dict.fromkeys(("env", "version", "final", "sticky"))
        steps = [as_tensors(part._replace(**apart)) for part in parts]
        fragment: Fragment = tree_map(self._join, *steps)._replace(
            env=join_infos([part.env for part in parts]),
            version=torch.cat([torch.as_tensor(part.version) for part in parts]),
            final=join_finals(finals) if finals else None,
            sticky=self._options.sticky,
        )
        if self._device.type == "cpu":
            return fragment
        return fragment.to(self._device, non_blocking=self._pinned)

    def _join(self, *parts: torch.Tensor) -> torch.Tensor:
        """Join tensors along dimension 1."""
        whole = torch.cat(parts, 1)
        return whole.pin_memory() if self._pinned else whole


@dataclass(frozen=True)
class RolloutPlan:
    """The options that all groups of a rollout share, and the seeds for each group."""

    factory: EnvSource
    actor: BaseActorModule
    options: FragmentOptions
    n_per_actor: int
    seeds: list[GroupSeed]
    states: StartStates | None
    close: bool


class RolloutWorker:
    """Collects the fragments of one group, on request."""

    def __init__(self, plan: RolloutPlan, context: GroupContext) -> None:
        seed, states, count = plan.seeds[context.group], plan.states, plan.n_per_actor
        streams = RandomStreams(seed.words, own_process=context.own_process)
        with streams.in_place():
            self._lanes = lanes_from(plan.factory, count)
        self._plan = plan
        self._context = context
        # A copy, since one process may host several groups and the owner's actor.
        self._actor = copy.deepcopy(plan.actor)
        self._version = -1
        if states is not None:
            states = states[context.group * count : (context.group + 1) * count]
        self._collector = Collector(
            self._lanes,
            self._actor,
            plan.options,
            seed=seed,
            streams=streams,
            states=states,
            beat=context.beat,
        )

    def collect(self) -> Fragment:
        """Collect the next fragment with the newest weights; its leaves are arrays."""
        if (newer := self._context.load(self._version)) is not None:
            self._version, weights = newer
            load_weights(self._actor, weights)
        fragment: Fragment = as_arrays(self._collector.collect(self._version))
        # In a worker process, the memory is copied when the result is sent.
        return fragment if self._context.own_process else copy.deepcopy(fragment)

    def close(self) -> None:
        """Close the environments, unless the user gave ``close=False``."""
        if self._plan.close:
            self._lanes.close()

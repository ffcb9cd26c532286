"""`Trajectories`: the episodes that batchers return; `DictTensor`: the arguments of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from tensordict import TensorDict, pad

from plangym_like.batchers.trees import as_transitions, merged
from plangym_like.errors import InputError
from plangym_like.vector.tree import tree_map


class DictTensor(TensorDict):  # type: ignore[no-untyped-call]
    """A tensordict that takes its batch size from its tensors.

    The length of the first dimension of every tensor is the number of rows, ``B``. All methods of a
    `tensordict.TensorDict` are available. Without tensors, the batch size is ``[]``.

    Parameters
    ----------
    source : mapping of str to tensor, array or mapping, optional
        Tensors ``[B, ...]``; a mapping becomes another `DictTensor`.
    batch_size : sequence of int, optional
        The default is ``[B]``.

    Raises
    ------
    InputError
        A tensor has no dimensions, or tensors differ in their number of rows.

    Examples
    --------
    >>> observation = DictTensor({"frame": torch.zeros(4, 3), "reward": torch.zeros(4)})
    >>> observation.n_elems(), observation[1:3]["frame"].shape
    (4, torch.Size([2, 3]))
    """

    def __init__(
        self,
        source: Mapping[str, Any] | None = None,
        batch_size: Any = None,
        **options: Any,
    ) -> None:
        given = {} if source is None else source
        fields = {key: _field(value) for key, value in given.items()}
        if batch_size is None:
            batch_size = _rows(fields)
        super().__init__(fields, batch_size=batch_size, **options)

    def n_elems(self) -> int:
        """Return the number of rows, or 0 without tensors."""
        return int(self.batch_size[0]) if self.batch_size else 0


def masked_tensor(tensor0: torch.Tensor, tensor1: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the rows of `tensor1` where `mask` is true, and the rows of `tensor0` elsewhere.

    Parameters
    ----------
    tensor0, tensor1 : tensor
        ``[B, ...]``, of the same shape. The result has the dtype of `tensor0`.
    mask : tensor
        ``[B]``, bool or with the values 0 and 1.

    Raises
    ------
    InputError
        The shapes do not fit together.

    Examples
    --------
    >>> masked_tensor(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([False, True]))
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """
    if tensor0.shape != tensor1.shape or mask.shape != tensor0.shape[:1]:
        raise InputError(
            "tensors [B, ...] and a mask [B] are needed, got the shapes "
            f"{tuple(tensor0.shape)}, {tuple(tensor1.shape)} and {tuple(mask.shape)}"
        )
    rows = mask.bool().reshape(-1, *(1,) * (tensor0.ndim - 1))
    return torch.where(rows, tensor1.to(tensor0.dtype), tensor0)


def masked_dicttensor(
    dicttensor0: DictTensor, dicttensor1: DictTensor, mask: torch.Tensor
) -> DictTensor:
    """Apply `masked_tensor` to each field of two DictTensors with the same fields.

    Raises
    ------
    InputError
        The fields or shapes differ.

    Examples
    --------
    >>> old, new = DictTensor({"x": torch.zeros(3)}), DictTensor({"x": torch.ones(3)})
    >>> masked_dicttensor(old, new, torch.tensor([False, True, False]))["x"]
    tensor([0., 1., 0.])
    """
    names = set(dicttensor0.keys(include_nested=True, leaves_only=True))
    others = set(dicttensor1.keys(include_nested=True, leaves_only=True))
    if names != others:
        raise InputError(f"the fields differ: {names} and {others}")
    result: Any = dicttensor0.apply(partial(masked_tensor, mask=mask), dicttensor1)
    return result  # type: ignore[no-any-return]


def has_tensors(fields: TensorDict) -> bool:
    """Return whether `fields` contains any tensors; tensors with 0 rows count too."""
    return not fields.is_empty()  # type: ignore[no-untyped-call]


def _field(value: Any) -> Any:
    if isinstance(value, torch.Tensor | TensorDict):
        return value
    return DictTensor(value) if isinstance(value, Mapping) else torch.as_tensor(value)


def _rows(fields: Mapping[str, Any]) -> list[int]:
    """Return the batch size of `fields`: ``[B]``, or ``[]`` if they hold no tensors."""
    # A part without tensors has no number of rows.
    counts = {
        key: int(field.shape[0]) if field.ndim else None
        for key, field in fields.items()
        if not isinstance(field, TensorDict) or has_tensors(field)
    }
    if None in counts.values() or len(set(counts.values())) > 1:
        raise InputError(
            "the first dimension of every tensor is the number of environments, but the tensors "
            f"have different numbers of rows: {counts}"
        )
    return [count for count in set(counts.values()) if count is not None]


class Trajectories:
    """``B`` trajectories of up to ``T`` steps, with fields such as ``trajectories["action"]``.

    Step t of row i holds an observation (``"frame"``, ``"initial_state"``, ...), the agent's output
    for it (``"action"`` and the other fields of its action), and the agent's state at that point.
    Fields with a leading underscore hold the results of the action: ``"_reward"``, ``"_done"``,
    ``"_frame"``, and the agent's next state. After the end of a trajectory, its row holds zeros.

    Parameters
    ----------
    steps : mapping of str to tensor
        Tensors ``[B, T, ...]``.
    lengths : tensor
        ``[B]`` int64, between 0 and ``T``.
    agent_info, env_info : DictTensor, optional
        ``[B, ...]``; row i belongs to trajectory i. Empty if none were given.

    Examples
    --------
    >>> steps = {"_reward": torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])}
    >>> trajectories = Trajectories(steps, torch.tensor([3, 1]))
    >>> trajectories.mask()
    tensor([[ True,  True,  True],
            [ True, False, False]])
    >>> trajectories["_reward"].sum(1) / trajectories.lengths
    tensor([1., 1.])
    """

    def __init__(
        self,
        steps: Any,
        lengths: torch.Tensor,
        agent_info: DictTensor | None = None,
        env_info: DictTensor | None = None,
    ) -> None:
        if not isinstance(steps, TensorDict):
            first = next(iter(steps.values()))
            steps = TensorDict(dict(steps), batch_size=first.shape[:2])
        self.steps = steps
        self.lengths = lengths
        self.agent_info = DictTensor() if agent_info is None else agent_info
        self.env_info = DictTensor() if env_info is None else env_info

    def __getitem__(self, key: Any) -> Any:
        return self.steps[key]

    def __contains__(self, key: Any) -> bool:
        return key in self.keys()

    def keys(self) -> list[Any]:
        """Return the names of the fields."""
        return list(self.steps.keys())

    def items(self) -> list[tuple[Any, Any]]:
        """Return pairs of field names and tensors."""
        return list(self.steps.items())

    def n_elems(self) -> int:
        """Return the number of trajectories, ``B``."""
        return int(self.steps.batch_size[0])

    @property
    def n_timesteps(self) -> int:
        """Return ``T``, the number of steps in each row, including padding."""
        return int(self.steps.batch_size[1])

    def mask(self) -> torch.Tensor:
        """Return a mask of the steps that took place, ``[B, T]`` bool."""
        steps = torch.arange(self.n_timesteps, device=self.lengths.device)
        return steps < self.lengths[:, None]

    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.lengths.device

    def to(self, device: Any) -> Self:
        """Return the trajectories on `device`."""
        parts: list[Any] = [self.steps, self.lengths, self.agent_info, self.env_info]
        return type(self)(*(part.to(device) for part in parts))

    def index(self, rows: Any) -> Self:
        """Return the trajectories that `rows` (a slice, a mask or indices) selects."""
        if isinstance(rows, int):
            rows = slice(rows, rows + 1) if rows != -1 else slice(rows, None)
        agent_info, env_info = (
            part[rows] if has_tensors(part) else part for part in (self.agent_info, self.env_info)
        )
        return type(self)(self.steps[rows], self.lengths[rows], agent_info, env_info)

    def unfold(self) -> list[Self]:
        """Return a list of single trajectories, without padding."""
        rows = [self.index(row) for row in range(self.n_elems())]
        for row in rows:
            row.steps = row.steps[:, : int(row.lengths)]
        return rows

    def to_tensordict(self) -> TensorDict:
        """Return the steps as a tensordict of batch size ``[B, T]``, in the layout of torchrl.

        Names with a leading underscore move to ``"next"``, so ``"_reward"`` becomes
        ``("next", "reward")``. ``"frame"`` becomes ``"observation"``. Rewards and flags are
        ``[B, T, 1]``. ``"mask"`` is true for steps that took place. Tensors may share memory with
        the trajectories.

        Raises
        ------
        InputError
            A field is called ``"next"`` or ``"mask"``, or two fields would have the same name.
        """
        # One dict for each field, so that `merged` notices two fields that get the same name.
        before: list[dict[str, Any]] = []
        after: list[dict[str, Any]] = []
        for name, steps in self.steps.items():
            part, known = (after, name[1:]) if name.startswith("_") else (before, name)
            part.append({"observation" if known == "frame" else known: steps})
        return as_transitions(merged(*before), merged(*after), self.steps.batch_size, self.mask())

    def temporal_index(self, t: int) -> DictTensor:
        """Return step `t` of every trajectory: ``[B, ...]``."""
        fields = {key: value[:, t] for key, value in self.steps.items()}
        return DictTensor(fields, batch_size=self.steps.batch_size[:1])

    def temporal_slice(self, start: int, stop: int) -> Self:
        """Return the steps ``start:stop`` of every trajectory.

        A trajectory that ends before `stop` has fewer steps; one that ends before `start`, none.

        Raises
        ------
        InputError
            ``0 <= start <= stop`` does not hold.
        """
        if not 0 <= start <= stop:
            raise InputError(f"steps {start} to {stop}: need 0 <= start <= stop")
        steps = self.steps[:, start:stop]
        lengths = (self.lengths - start).clamp(0, int(steps.batch_size[1]))
        return type(self)(steps, lengths, self.agent_info, self.env_info)

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Join the trajectories of all `parts`, padded to the length of the longest.

        Raises
        ------
        InputError
            `parts` is empty, or only some of them have an `agent_info` or `env_info`.
        """
        if not parts:
            raise InputError("no trajectories to concatenate")
        longest = max(part.n_timesteps for part in parts)
        steps: list[Any] = [
            pad(part.steps, [0, 0, 0, longest - part.n_timesteps]) for part in parts
        ]
        return cls(
            torch.cat(steps),
            torch.cat([part.lengths for part in parts]),
            _cat_infos("agent_info", [part.agent_info for part in parts]),
            _cat_infos("env_info", [part.env_info for part in parts]),
        )

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.keys()))
        return f"<Trajectories [{self.n_elems()}, {self.n_timesteps}] of {names}>"


def _cat_infos(name: str, infos: list[Any]) -> Any:
    given = list(map(has_tensors, infos))
    if any(given) and not all(given):
        raise InputError(f"only some of the trajectories have an {name}: {given}")
    return torch.cat(infos) if given[0] else infos[0]


class Steps(NamedTuple):
    """The first steps of some rows of a result: `tensors` are ``(T, n, ...)``.

    Attributes
    ----------
    rows, lengths : Tensor int64 ``(n,)``
        The rows, and how many steps each of them has; later steps hold zeros.
    tensors : tree of Tensor
    """

    rows: torch.Tensor
    lengths: torch.Tensor
    tensors: Any


def assemble(
    parts: Sequence[Steps],
    rows: Sequence[int],
    agent_info: DictTensor | None,
    env_info: DictTensor | None,
) -> Trajectories:
    """Return the trajectories of `rows`, in this order, padded with zeros.

    Parameters
    ----------
    parts : sequence of Steps
        Each row is in one of them.
    rows : sequence of int
        The rows to return, in ascending order.
    agent_info, env_info : DictTensor, optional
        With one row for each of `rows`.
    """
    position = torch.full((max(rows) + 1,), -1)
    position[torch.tensor(rows)] = torch.arange(len(rows))
    lengths = torch.zeros(len(rows), dtype=torch.int64)
    for part in parts:
        lengths[position[part.rows]] = part.lengths
    longest = int(lengths.max())

    def join(*tensors: torch.Tensor) -> torch.Tensor:
        first = tensors[0]
        whole = torch.zeros((len(rows), longest, *first.shape[2:]), dtype=first.dtype)
        for part, steps in zip(parts, tensors, strict=True):
            whole[position[part.rows], : len(steps)] = steps.transpose(0, 1)
        return whole

    steps = tree_map(join, *(part.tensors for part in parts))
    record = TensorDict(steps, batch_size=[len(rows), longest])
    return Trajectories(record, lengths, agent_info, env_info)

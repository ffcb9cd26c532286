"""What a worker hosts: one object for each group of lanes that was dealt to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from plangym_like.batchers.engine.nests import Leaf, leaves, take
from plangym_like.batchers.engine.shared_nest import attach_nest

# The shared memory that every crew has.
CONTROL = "control"


def control_layout(num_groups: int) -> Any:
    """Return the layout of the heartbeats, one a group, and of the flag that ends all work."""
    return {"beats": Leaf((num_groups,), torch.int64), "stop": Leaf((1,), torch.int64)}


# Takes piece `index` of the pool `name`, as it is now, to where its owner sees it.
Send = Callable[[str, int, Any], None]


class StoppedError(Exception):
    """The owner is closing, so what is being done is wanted no longer."""


class Workplace:
    """What the object of one group is given to work with.

    Attributes
    ----------
    group : int
        Its number.
    memory : dict of str to nest of torch.Tensor
        What the owner has shared so far (`Crew.share`), and the pools that it has made, by name.
    alone : bool
        Whether the process is the crew's, and not the owner's.
    """

    def __init__(
        self, group: int, memory: dict[str, Any], *, alone: bool, send: Send | None = None
    ) -> None:
        self.group = group
        self.memory = memory
        self.alone = alone
        self._send = send
        self._beats: memoryview | None = None
        self._stop: memoryview | None = None

    def beat(self) -> None:
        """Tell the owner that work goes on; to be called at least once a step.

        Raises
        ------
        StoppedError
            The work is wanted no longer.
        """
        if self._beats is None or self._stop is None:
            control = self.memory.get(CONTROL)
            if control is None:
                return
            self._beats = memoryview(control["beats"].numpy())
            self._stop = memoryview(control["stop"].numpy())
        self._beats[self.group] += 1
        if self._stop[0]:
            raise StoppedError("closed in the middle of this")

    def place_of(self, name: str, index: int) -> int:
        """Return where in ``memory[name]`` piece `index` of that pool is to be filled.

        There, in memory that is not shared with the owner, one piece stands for any.
        """
        return index % len(leaves(self.memory[name])[0])

    def hand_in(
        self, name: str, index: int, trim: Callable[[Any], Any] = lambda piece: piece
    ) -> None:
        """Let the owner see piece `index` of a pool, once the job is done.

        Parameters
        ----------
        name : str
        index : int
        trim : callable
            Given the piece, returns a nest of what is worth seeing of it, if that is not all.
        """
        if self._send is not None:
            piece = take(self.memory[name], self.place_of(name, index))
            self._send(name, index, trim(piece))


class Residents:
    """The objects of `groups`, made in their order.

    Parameters
    ----------
    make_resident : callable
        Given a `Workplace`, returns the object of its group.
    groups : sequence of int
    memory : dict, optional
        What is shared from the beginning.
    alone : bool
        Whether the process is theirs, so that torch gets one thread for good.
    send : callable, optional
        How pieces of pools get to their owner, where memory is not shared with it.
    """

    def __init__(
        self,
        make_resident: Callable[[Workplace], Any],
        groups: Sequence[int],
        memory: dict[str, Any] | None = None,
        *,
        alone: bool = True,
        send: Send | None = None,
    ) -> None:
        if alone:
            torch.set_num_threads(1)
        self._alone = alone
        self.memory: dict[str, Any] = {} if memory is None else memory
        self._residents: dict[int, Any] = {}
        for group in groups:
            try:
                place = Workplace(group, self.memory, alone=alone, send=send)
                self._residents[group] = self._guarded(make_resident, place)
            except BaseException:
                with suppress(Exception):
                    self.close()
                raise

    def attach(self, name: str, layout: Any, *, fds: Sequence[int]) -> None:
        """Take over shared memory under `name`."""
        (fd,) = fds
        self.memory[name] = attach_nest(fd, layout)

    def do(self, group: int, method: str, *args: Any) -> Any:
        """Call a method of the object of `group`."""
        return self._guarded(getattr(self._residents[group], method), *args)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function`; what would end its owner's loop or program becomes a `RuntimeError`.

        In the owner's own process `KeyboardInterrupt` and `SystemExit` are left as they are.
        """
        try:
            return function(*args)
        except StopIteration as error:
            raise RuntimeError("an environment, actor or factory raised StopIteration") from error
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            if not self._alone:
                raise
            raise RuntimeError(f"an environment, actor or factory raised {error!r}") from error

    def close(self) -> None:
        """Close every object that can be closed, the others even if one fails."""
        failures: list[Exception] = []
        for resident in self._residents.values():
            try:
                getattr(resident, "close", bool)()
            except Exception as error:
                failures.append(error)
        self._residents.clear()
        if failures:
            raise failures[0]

"""All that leads to one worker: its data socket, its alive pipe, and the process itself."""

from __future__ import annotations

import contextlib
import math
import os
import select
from typing import Any

from plangym_like.processes.channel import Channel, outgoing
from plangym_like.processes.interrupts import interrupts_deferred
from plangym_like.processes.messages import CLOSE
from plangym_like.processes.start_methods import Launched


class Transport:
    """Owns what `launch` returned.

    Attributes
    ----------
    channel : Channel
        For messages.
    process : ChildProcess
        The worker.
    descriptor : int
        The data socket's.
    """

    def __init__(self, launched: Launched) -> None:
        self.channel = Channel(launched.connection)
        self.process = launched.process
        self.descriptor = launched.connection.fileno()
        self._alive_write = launched.alive_write
        self._owner = os.getpid()

    def poll(self, mask: int, timeout: float) -> dict[int, int]:
        """Wait up to `timeout` seconds for `mask` on the data socket, or for the process's end."""
        poller = select.poll()
        poller.register(self.descriptor, mask)
        pidfd = self.process.pidfd
        if pidfd is not None:
            poller.register(pidfd, select.POLLIN)
        return dict(poller.poll(math.ceil(max(timeout, 0.0) * 1000)))

    def close(self) -> None:
        """Close all descriptors; may be repeated, also when it was cut short."""
        self.channel.close()
        self._alive_write.close()
        self.process.close()

    def release(self, pending: dict[int, Any]) -> None:
        """End the worker, politely if it owes no reply, else by force, and close the line.

        `pending` holds what it may owe, by request id. Does nothing in a forked copy of the owner.
        """
        if os.getpid() != self._owner:
            return
        with interrupts_deferred(by_finalizer=True):
            with contextlib.suppress(OSError):
                replied: list[int] = []
                self.channel.receive(lambda _kind, request, _payload: replied.append(request))
                if pending.keys() <= set(replied):
                    self.channel.post(outgoing(CLOSE, 0, b""))
                    if self.channel.flush():
                        self.process.wait(1.0)
            self.process.end()
            self.close()

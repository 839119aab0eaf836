"""Connection that passes bytes and open descriptors between a process and its fork."""

from __future__ import annotations

import socket
from collections.abc import Sequence

MOST_DESCRIPTORS = 8  # largest number of descriptors in one message


class DescriptorLine:
    """End of a connection between two processes.

    Selectors and event loops take it as a file.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Returns the descriptor of this end."""
        return self._end.fileno()

    def set_blocking(self, blocking: bool) -> None:
        """Sets whether reading waits; without, reading raises BlockingIOError."""
        self._end.setblocking(blocking)

    def send(self, content: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends bytes, with copies of open descriptors; OSError if the other end is closed."""
        if descriptors:
            socket.send_fds(self._end, [content], descriptors)
        else:
            self._end.sendall(content)

    def receive(self, most: int) -> tuple[bytes, list[int]]:
        """Receives at most `most` bytes, and the descriptors beside them.

        No bytes come once the other end is closed.
        """
        content, descriptors, _, _ = socket.recv_fds(self._end, most, MOST_DESCRIPTORS)
        return content, list(descriptors)

    def close(self) -> None:
        """Closes this end."""
        self._end.close()


def open_line() -> tuple[DescriptorLine, DescriptorLine]:
    """Opens both ends of a line."""
    first, second = socket.socketpair()
    return DescriptorLine(first), DescriptorLine(second)

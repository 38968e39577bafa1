"""Exceptions: one class for each size of what is lost, as in the C interface. Each carries the daemon's own words."""

from __future__ import annotations


class Error(RuntimeError):
    """A call failed, and nothing but the call is lost. `status` is its name in C, such as "GW_ERR_QUOTA"."""

    def __init__(self, status: str, text: str):
        super().__init__(f"{status}: {text}")
        self.status = status


class BufferError(Error):  # noqa: A001 # the word of the interface
    """Memory cannot be used, or has been freed or replaced."""


class BucketError(Error):
    """The ranks submitted different operations, or memory that does not fit."""


class GroupError(Error):
    """The group has failed on all ranks: make a new one."""


class ConnectionError(Error):  # noqa: A001
    """There is no daemon, or it has gone away: `gradwire.init()` again once it is back."""


class TimeoutError(Error):  # noqa: A001
    """Not finished within the time given; the operation goes on."""


# Codes by the tens they begin with; see the statuses in the C header.
_BY_TENS = {3: BufferError, 4: BucketError, 5: GroupError, 7: ConnectionError}
TIMEOUT = 16
# The memory of a bucket was freed or replaced, or its buffer released, since it was declared.
MEMORY_GONE = ("GW_ERR_BUFFER_STALE", "GW_ERR_NOT_FOUND")


def of(code: int, status: str, text: str) -> Error:
    """The exception for a status."""
    kind = TimeoutError if code == TIMEOUT else _BY_TENS.get(code // 10, Error)
    return kind(status, text)

"""Memory that the daemon can reach, and which of it is free

Arrays in the host's memory are copied into memory that is shared with the daemon.
Those of a device are registered where they are, once.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import OrderedDict
from typing import Any

from . import _library

SHARED_BYTES_MIN = 1 << 16
REGISTERED_MAX = 512  # ranges of device memory; the least recently used goes first


class Buffer:
    """A gw_buffer_t."""

    def __init__(self, handle: int, nbytes: int):
        self.handle, self.bytes = handle, nbytes
        self.address = _library.library().gw_buffer_data(handle) or 0

    def view(self, offset: int, nbytes: int) -> Any:
        """Its memory, for frombuffer of NumPy and torch."""
        return (ctypes.c_ubyte * nbytes).from_address(self.address + offset)

    def release(self) -> None:
        _library.call("gw_buffer_release", self.handle)


class Pool:
    """The buffers of a connection."""

    def __init__(self, context: int):
        self._context, self.is_closed = context, False
        self._lock = threading.RLock()  # memory may come back while it is held: when a hook or group is collected
        self._free: dict[int, list[Buffer]] = {}
        self._registered: OrderedDict[int, Buffer] = OrderedDict()

    def allocate(self, nbytes: int) -> Buffer:
        return Buffer(_library.out("gw_buffer_alloc", self._context, max(nbytes, 1)), nbytes)

    def borrow(self, nbytes: int) -> Buffer:
        """A shared buffer of at least so many bytes, which nobody else uses until it is given back."""
        size = max(SHARED_BYTES_MIN, 1 << (max(nbytes, 1) - 1).bit_length())
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        return self.allocate(size)

    def give_back(self, buffer: Buffer) -> None:
        with self._lock:
            self._free.setdefault(buffer.bytes, []).append(buffer)

    def lend(self, nbytes: int) -> tuple[Buffer, Any]:
        """A shared buffer with its memory for frombuffer. It ends when the last array in it is gone."""
        buffer = self.allocate(nbytes)
        view = buffer.view(0, nbytes)
        weakref.finalize(view, self._end_loan, buffer).atexit = False
        return buffer, view

    def _end_loan(self, buffer: Buffer) -> None:
        """One that is in use even then ends with the connection."""
        if not self.is_closed:
            _library.library().gw_buffer_release(buffer.handle)

    def register(self, address: int, nbytes: int) -> Buffer:
        """A buffer that holds a range of device memory. Ranges of buffers do not overlap: what is in the way was freed,
        or is a part of this one, and ends."""
        with self._lock:
            for key, buffer in list(self._registered.items()):  # some may end meanwhile, when a group is collected
                if buffer.address <= address and address + nbytes <= buffer.address + buffer.bytes:
                    self._registered.move_to_end(key)
                    return buffer
        self.forget(address, nbytes)
        buffer = Buffer(_library.out("gw_buffer_register", self._context, address, nbytes), nbytes)
        with self._lock:
            self._registered[address] = buffer
            old = list(self._registered)[:-REGISTERED_MAX]
        for key in old:
            self._release(key, may_wait=False)
        return buffer

    def forget(self, address: int, nbytes: int, may_wait: bool = True) -> None:
        """The memory was freed, or is another's now. Buckets in it cannot be submitted any more. Without may_wait, what is in
        use stays."""
        if self.is_closed:
            return
        with self._lock:
            found = [key for key, buffer in list(self._registered.items())
                     if buffer.address < address + nbytes and address < buffer.address + buffer.bytes]
        for key in found:
            self._release(key, may_wait)

    def _release(self, key: int, may_wait: bool) -> None:
        with self._lock:  # who takes it out ends it
            buffer = self._registered.pop(key, None)
        if buffer is None:
            return
        code = _library.library().gw_buffer_release(buffer.handle)
        if code == _library.BUSY and may_wait:  # an operation on it has been enqueued, and not ended
            _synchronize()
            code = _library.library().gw_buffer_release(buffer.handle)
        if code == _library.OK:
            return
        with self._lock:
            self._registered.setdefault(key, buffer)
        if may_wait:
            raise _library.error(code)


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()

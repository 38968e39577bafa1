"""Memory that the daemon can reach, and which of it is free

Arrays in the host's memory are copied into memory that is shared with the daemon, unless they lie in it (`empty`).
Those of a device are registered where they are, once.
"""

from __future__ import annotations

import ctypes
import threading
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
        self.path = _library.library().gw_buffer_path(handle).decode()

    def view(self, offset: int, nbytes: int) -> Any:
        """Its memory, for frombuffer of NumPy and torch."""
        return (ctypes.c_ubyte * nbytes).from_address(self.address + offset)

    def release(self) -> None:
        _library.call("gw_buffer_release", self.handle)


class Pool:
    """The buffers of a connection."""

    def __init__(self, context: int):
        self._context = context
        self._lock = threading.Lock()
        self._free: dict[int, list[Buffer]] = {}
        self._registered: OrderedDict[tuple[int, int], Buffer] = OrderedDict()

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

    def register(self, address: int, nbytes: int) -> Buffer:
        """The buffer of a range of device memory."""
        key = (address, nbytes)
        with self._lock:
            buffer = self._registered.get(key)
            if buffer:
                self._registered.move_to_end(key)
                return buffer
        buffer = Buffer(_library.out("gw_buffer_register", self._context, address, nbytes), nbytes)
        with self._lock:
            self._registered[key] = buffer
            old = list(self._registered.items())[:-REGISTERED_MAX]
        for where, other in old:
            self._forget(where, other)
        return buffer

    def _forget(self, key: tuple[int, int], buffer: Buffer) -> None:
        """Releases it, unless it is in use."""
        if _library.library().gw_buffer_release(buffer.handle) == _library.OK:
            with self._lock:
                self._registered.pop(key, None)

    def forget(self, address: int, nbytes: int) -> None:
        """The memory was freed, or is another's now."""
        with self._lock:
            buffer = self._registered.get((address, nbytes))
        if buffer:
            self._forget((address, nbytes), buffer)

"""The thread that completes torch's futures of arrays in the host's memory"""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable

from . import errors
from ._group import Group

GRACE_S = 5.0


class Waiter:
    """Completes futures in the order in which they are added, which is that of the operations."""

    def __init__(self, group: Group):
        self._group = group
        self._due: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, wait: Callable[[], Any], future: Any) -> None:
        """`wait` gives the future's result, or raises gradwire.Error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gradwire", daemon=True)
            self._thread.start()
        self._due.put((wait, future))

    def _run(self) -> None:
        while True:
            item = self._due.get()
            if item is None:
                return
            wait, future = item
            try:
                result = wait()
            except errors.Error as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, wait, future  # and what they keep

    def stop(self) -> None:
        """Operations that do not end, since other ranks have not submitted them, fail the group."""
        if self._thread is None:
            return
        self._due.put(None)
        if self._thread is threading.current_thread():  # the last one that knew of the group
            return
        self._thread.join(GRACE_S)
        if self._thread.is_alive():
            self._group.abort("a rank has left with unfinished buckets")
            self._thread.join()
        self._thread = None

"""The thread that completes torch's futures of arrays in the host's memory"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable

from ._group import GRACE_S, Group

EXIT_GRACE_S = 1.0

_waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()


class Waiter:
    """Completes futures in the order in which they are added, which is that of the operations."""

    def __init__(self, group: Group):
        self._group = group
        self._due: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.completing = threading.Lock()
        _waiters.add(self)

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
            with self.completing:
                self._complete(*item)
                del item  # and what it keeps

    @staticmethod
    def _complete(wait: Callable[[], Any], future: Any) -> None:
        try:
            result = wait()
        except Exception as error:  # whatever it is: who waits for the future must hear of it
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            del wait, future  # which the frames of an exception would keep

    def stop(self) -> None:
        """Operations that do not end, since other ranks have not submitted them, fail the group."""
        if self._thread is None:
            return
        self._due.put(None)
        if self._thread is threading.current_thread():  # the last one that knew of the group
            return
        self._thread.join(GRACE_S)
        if self._thread.is_alive():
            self._group.give_up()
            self._thread.join()
        self._thread = None

    def close(self) -> None:
        """Stops, and leaves the group."""
        self.stop()
        self._group.close()


@atexit.register
def _hold() -> None:
    """Python's end stops threads where they next need the interpreter. In the middle of torch's C++ that aborts the
    process; in gw_wait it does not. So no thread is in torch from here on, and one that stays longer is in gw_wait."""
    end = time.monotonic() + EXIT_GRACE_S
    for waiter in list(_waiters):
        waiter.completing.acquire(timeout=max(0.0, end - time.monotonic()))


os.register_at_fork(after_in_child=_waiters.clear)  # the threads are the parent's

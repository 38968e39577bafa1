"""Connections, groups, and the operations of a group"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from collections import OrderedDict, deque
from typing import Any, Callable, Iterator

from . import _arrays, _library, errors
from ._memory import Buffer, Pool

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, BARRIER = range(1, 7)
OPS = {"sum": 1, "avg": 2, "min": 3, "max": 4, "prod": 5}
CODECS = {None: 0, "none": 1, "fp16": 2, "bf16": 3, "fp8": 4, "int8": 5, "int4": 6}  # None: the group's
ROUNDINGS = {None: 0, "nearest": 1, "stochastic": 2}
MISMATCH = "GW_ERR_MISMATCH"  # of an operation that failed alone
SLICE_S = 0.2  # a wait returns to Python so often, which looks for Ctrl-C then
GRACE_S = 5.0  # for what a rank has submitted, when it leaves
BUCKETS_MAX = 256  # that a group keeps beside those that are held; the least recently used goes first


def _name(code: int) -> str:
    return _library.library().gw_status_name(code).decode()


def _choose(table: dict, key: Any, what: str) -> int:
    try:
        return table[key]
    except (KeyError, TypeError):
        raise ValueError(f"{what} {key!r} is none of {', '.join(str(k) for k in table if k)}") from None


class Context:
    """A connection to the daemon of this host."""

    def __init__(self, socket: str | None = None, name: str | None = None):
        options = _library.Options(ctypes.sizeof(_library.Options), socket.encode() if socket else None,
                                   name.encode() if name else None)
        self.handle = _library.out("gw_connect", ctypes.byref(options))
        self.pool = Pool(self.handle)
        self.groups: weakref.WeakSet[Group] = weakref.WeakSet()

    def unique_id(self) -> bytes:
        """The id of a new group; a secret: whoever has it may join."""
        result = _library.UniqueId()
        _library.call("gw_get_unique_id", self.handle, ctypes.byref(result))
        return bytes(result.bytes)

    def group(self, unique_id: bytes, size: int, rank: int, *, codec: str | None = None,
              rounding: str | None = None) -> Group:
        """Joins a group; waits until all ranks have. See `gradwire.init` for codec and rounding."""
        if len(unique_id) != ctypes.sizeof(_library.UniqueId):
            raise ValueError(f"a unique id has {ctypes.sizeof(_library.UniqueId)} bytes, this one {len(unique_id)}")
        copy = _library.UniqueId.from_buffer_copy(unique_id)
        config = _library.GroupConfig(ctypes.sizeof(_library.GroupConfig), codec.encode() if codec else None,
                                      _choose(ROUNDINGS, rounding, "rounding"))
        handle = _library.out("gw_group_init_config", self.handle, ctypes.byref(copy), size, rank, ctypes.byref(config))
        return Group(self, handle, rank, size)

    def alive(self) -> bool:
        """Whether the daemon answers."""
        try:
            self.pool.allocate(1).release()
        except errors.Error:
            return False
        return True

    def close(self) -> None:
        for group in list(self.groups):
            group.close()
        self.pool.is_closed = True
        if self.handle:
            _library.library().gw_disconnect(self.handle)
        self.handle = 0


_connections: dict[str | None, Context] = {}


def connection(socket: str | None = None) -> Context:
    """One that this process shares among its models and process groups. A new one if the daemon of the old one has gone,
    or this process was forked since; groups of the old one stay what they are."""
    known = _connections.get(socket)
    if known is None or not known.alive():
        _connections[socket] = known = Context(socket)
    return known


class Work:
    """An operation that was submitted. Its arrays must be left alone until it has been waited for."""

    def __init__(self, group: Group, op: int, finish: Callable[[], None] | None, stream: int | None):
        self._group, self.op, self._finish, self._stream = group, op, finish, stream
        self._lock = threading.Lock()
        self.arrays: tuple = ()  # kept alive until it is gone

    def done(self) -> bool:
        """Whether it has ended, well or not; raises if not well. Of device memory: on the daemon's side."""
        if self._finish is None and self._stream is None:
            return True
        code = _library.library().gw_test(self._group.handle, self.op)
        if code not in (_library.OK, _library.IN_PROGRESS):
            self._abandon()
            raise _library.error(code)
        return code == _library.OK

    def wait(self, timeout: float | None = None, stream: int | None = None) -> None:
        """Host memory: waits until the result is there. Device memory: makes the stream (the current one of torch, or
        the one it was submitted on) wait for it, and returns."""
        if self._stream is not None:
            _library.call("gw_stream_wait", self._group.handle, self.op, stream if stream is not None else self._stream)
            return
        code = self._group.wait(self.op, timeout)
        if code != _library.OK:
            try:
                raise _library.error(code)
            finally:
                if code != errors.TIMEOUT:
                    self._abandon()
        with self._lock:  # also for a second thread that waits: the result is there when it returns
            finish, self._finish = self._finish, None
            if finish:
                finish()

    def _abandon(self) -> None:
        """The daemon may still write to what was lent: the group gives it back when it ends."""
        with self._lock:
            self._finish = None


class _Bucket:
    """A gw_bucket_t and what keeps its memory. is_held: somebody has its handle."""

    def __init__(self, handle: int, send: Any, recv: Any, is_held: bool):
        self.handle, self.send, self.recv, self.is_held = handle, send, recv, is_held


class Seen:
    """What a guard of an optimizer has seen of a group: the last operation before a step, and before one that was taken."""

    def __init__(self) -> None:
        self.told = self.good = 0


class Group:
    """A rank's part in a group (communicator). Made by `gradwire.init`, `Context.group` or `split`."""

    def __init__(self, context: Context, handle: int, rank: int, size: int):
        self.context, self._handle, self.rank, self.size = context, handle, rank, size
        context.groups.add(self)
        self._lock = threading.Lock()
        self._buckets: OrderedDict[tuple, _Bucket] = OrderedDict()
        self._last_op = 0  # that this rank has submitted
        self._untold: errors.Error | None = None  # that one has failed alone, which check is to tell
        self._was_refused = False  # an operation, by the failed group
        self._barriers: deque[tuple[int, int]] = deque()  # their buckets, and the last operation of each
        self._lent: set[Buffer] = set()  # memory of operations that nobody has waited for yet

    # ---- life ----------------------------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """Its gw_group_t."""
        if not self._handle:
            raise errors.GroupError("GW_ERR_INVALID_ARGUMENT", "this group was closed: make a new one, with "
                                    "gradwire.init, split, or gradwire.torch.register for a new model")
        return self._handle

    def split(self, color: int, key: int = 0) -> Group | None:
        """New groups of this one's ranks, as MPI_Comm_split; None for a negative color. All ranks call it."""
        handle = _library.out("gw_group_split", self.handle, color, key)
        if not handle:
            return None
        lib = _library.library()
        return Group(self.context, handle, lib.gw_group_rank(handle), lib.gw_group_size(handle))

    def check(self) -> None:
        """Raises unless every operation so far can be trusted, and the next can follow. Those that have failed alone are
        told once."""
        with self._lock:
            error, self._untold = self._ask()[0] or self._untold, None
        try:
            if error:
                raise error
        finally:
            del error  # which would keep this frame, and thus what callers have, until garbage is collected

    def check_submitted(self, seen: Seen) -> None:
        """Waits for all that this rank has submitted, and raises unless what was not seen before has ended well, also if the
        group has failed after that: call it before an optimiser step, when streams have been synchronised with. How an
        operation has ended is the same for all ranks of a host and does not change: so none takes a step that others do
        not take, unless the daemon itself ends. What has raised here counts until more is submitted."""
        if self._was_refused or not self._handle or _name(self._look().status) == "GW_ERR_FORKED":
            self.check()
        with self._lock:
            last = self._last_op
        error: errors.Error | None = None
        for op in range((seen.told if seen.told < last else seen.good) + 1, last + 1):
            try:
                Work(self, op, None, None).wait()
            except errors.Error as failure:
                error = error or failure
        seen.told = last
        if error is None:
            seen.good = last
            return
        with self._lock:
            told, self._untold = self._ask()[0] or self._untold, None
        try:
            raise told if told and error.status == "GW_ERR_NOT_FOUND" else error  # it is too long ago to say which
        finally:
            del told, error  # as in check

    def _ask(self) -> tuple[errors.Error | None, Any]:
        """What gw_group_check says; it tells of operations that have failed alone once. The lock is held."""
        report = _library.Report()
        code = _library.library().gw_group_check(self.handle, ctypes.byref(report))
        if code == _library.OK:
            return None, report
        return errors.of(code, _name(code),
                         report.message.decode(errors="replace") or "operations of this group have failed"), report

    def _look(self) -> Any:
        """The report, and nothing counts as told."""
        with self._lock:
            error, report = self._ask()
            if error and error.status == MISMATCH:
                self._untold = error
        return report

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """Around all that an operation takes: one that a failed group has refused is missing from then on."""
        try:
            yield
        except BaseException:
            if self._handle and self._look().status != _library.OK:
                self._was_refused = True
            raise

    def is_over(self) -> bool:
        """Whether it was closed or has failed. Raises if operations have failed alone, which is told once."""
        if not self._handle:
            return True
        try:
            self.check()
        except errors.Error as error:
            if error.status == MISMATCH:
                raise
            return True
        return False

    def last_completed(self) -> int:
        """All operations up to this number have ended; all ranks of a failed group read the same."""
        return self._look().last_completed

    def save_state(self) -> bytes:
        """What lossy codecs have left out between nodes, to be added later: each rank saves its own, between steps."""
        data, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
        _library.call("gw_group_state_save", self.handle, ctypes.byref(data), ctypes.byref(nbytes))
        try:
            return ctypes.string_at(data.value or 0, nbytes.value)
        finally:
            _library.library().gw_group_state_free(data)

    def load_state(self, state: bytes) -> None:
        """Goes on from what this rank of such a group has saved, bit for bit."""
        _library.call("gw_group_state_load", self.handle, state, len(state))

    def give_up(self) -> None:
        """Fails the group, where what this rank has submitted has not ended within GRACE_S of its leaving."""
        self.abort("a rank has left with unfinished buckets")

    def abort(self, reason: str = "") -> None:
        """Fails the group on every rank."""
        _library.call("gw_group_abort", self.handle, reason.encode() or None)

    def close(self) -> None:
        """Leaves the group."""
        with self._lock:
            used = {where for bucket in self._buckets.values() for where in (bucket.send, bucket.recv) if where}
            self._buckets.clear()
        handle, self._handle = self._handle, 0
        if handle:
            _library.library().gw_group_free(handle)  # the daemon has let go of all memory when it returns
        for where in used:  # a device does not get back what is registered
            self.context.pool.forget(where, 1, may_wait=False)
        for buffer in list(self._lent):
            self._give_back(buffer)

    def _give_back(self, buffer: Buffer) -> None:
        with self._lock:
            if buffer not in self._lent:
                return
            self._lent.remove(buffer)
        self.context.pool.give_back(buffer)

    # ---- buckets -------------------------------------------------------------------------------------

    def bucket(self, collective: int, type_: int, count: int, send: int, recv: int, *, op: str = "sum", root: int = 0,
               codec: str | None = None, name: str = "", priority: int = 0, error_feedback: bool = True,
               matrices: list[tuple[int, int, int, int]] | None = None, hold: bool = False) -> int:
        """A gw_bucket_t, the same one for the same arguments. Memory must lie in buffers. It may end when others are
        declared, unless it is held: then not before its memory."""
        shapes = tuple(matrices or ())
        key = (collective, type_, count, send, recv, op, root, codec, name, priority, error_feedback, shapes)
        with self._lock:
            known = self._buckets.get(key)
            if known:
                self._buckets.move_to_end(key)
                known.is_held = known.is_held or hold
                return known.handle
        layout = (_library.Matrix * len(shapes))(*shapes)
        desc = _library.BucketDesc(ctypes.sizeof(_library.BucketDesc), name.encode(), collective, type_,
                                   _choose(OPS, op, "operation"), root, count, send or None, recv or None, priority,
                                   layout if shapes else None, len(shapes), _choose(CODECS, codec, "codec"),
                                   not error_feedback)
        handle = _library.out("gw_bucket_create", self.handle, ctypes.byref(desc))
        with self._lock:
            self._buckets[key] = _Bucket(handle, send, recv, hold)
            old = [item for item in self._buckets.items() if not item[1].is_held][:-BUCKETS_MAX]
            self._take_out(old)
        self._free(old)
        return handle

    def drop_buckets(self, address: int, nbytes: int) -> None:
        """Frees the buckets of memory that is going to be released; those that are in use when others are declared."""
        with self._lock:
            users = [(key, bucket) for key, bucket in self._buckets.items()
                     if any(address <= where < address + nbytes for where in (bucket.send, bucket.recv) if where)]
            self._take_out(users)
        for _, bucket in users:
            bucket.is_held = False
        self._free(users)

    def _take_out(self, buckets: list[tuple[tuple, _Bucket]]) -> None:
        """So that no other thread gets them, or frees them too. The lock is held."""
        for key, _ in buckets:
            del self._buckets[key]

    def _free(self, buckets: list[tuple[tuple, _Bucket]]) -> None:
        """Those that are in use are put back, to be the next."""
        for key, bucket in buckets:
            if _library.library().gw_bucket_free(bucket.handle) != _library.OK:
                with self._lock:
                    key = key if key not in self._buckets else (bucket.handle,)
                    self._buckets[key] = bucket
                    self._buckets.move_to_end(key, last=False)

    def submit(self, bucket: int, stream: int | None = None) -> int:
        op = _library.out("gw_submit", bucket, stream)
        with self._lock:
            self._last_op = max(self._last_op, op)
        return op

    def wait(self, op: int, timeout: float | None = None) -> int:
        """Waits until an operation has ended, in seconds at most. Gives its status, or errors.TIMEOUT."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE_S if end is None else max(0.0, min(SLICE_S, end - time.monotonic()))
            code = _library.library().gw_wait(self.handle, op, int(left * 1e9))
            if code != errors.TIMEOUT or left < SLICE_S:
                return int(code)

    # ---- collectives ---------------------------------------------------------------------------------

    def _on_device(self, collective: int, send: _arrays.Span | None, recv: _arrays.Span | None, count: int,
                   stream: int | None, **options: Any) -> Work:
        """The arrays are registered where they are."""
        first = recv or send
        assert first is not None
        queue = stream if stream is not None else _current_stream(first.device)
        for again in (False, True):
            # The first may have been found in a buffer of memory that was freed since, and which the second then ended.
            for span in (send, recv, send):
                if span and span.bytes:
                    self.context.pool.register(span.address, span.bytes)
            bucket = self.bucket(collective, first.type, count, send.address if send else 0,
                                 recv.address if recv else 0, **options)
            try:
                return Work(self, self.submit(bucket, queue), None, queue)
            except errors.Error as error:
                if again or error.status not in errors.MEMORY_GONE:
                    raise
                for span in (send, recv):  # the memory is another allocation's by now
                    if span:
                        self.drop_buckets(span.address, span.bytes)
                        self.context.pool.forget(span.address, span.bytes)
        raise AssertionError("not reached")

    def _on_host(self, collective: int, send: _arrays.Span | None, recv: _arrays.Span | None, count: int, in_place: int,
                 **options: Any) -> Work:
        """The arrays are copied to shared memory and back. in_place: where in recv the input lies."""
        first = recv or send
        assert first is not None
        pool = self.context.pool
        recv_bytes, send_bytes = (span.bytes if span else 0 for span in (recv, send))
        one = in_place >= 0  # memory for both
        lent = pool.borrow(max(recv_bytes, in_place + send_bytes) if one else recv_bytes + send_bytes + 64)
        start = lent.address
        send_at = start + in_place if one else start + (recv_bytes + 63) // 64 * 64
        if send and send_bytes:
            ctypes.memmove(send_at, send.address, send_bytes)
        try:
            bucket = self.bucket(collective, first.type, count, send_at if send else 0, start if recv else 0, **options)
            op = self.submit(bucket)
        except BaseException:
            pool.give_back(lent)
            raise
        with self._lock:
            self._lent.add(lent)

        def finish() -> None:
            if recv and recv_bytes:
                ctypes.memmove(recv.address, start, recv_bytes)
            self._give_back(lent)

        return Work(self, op, finish, None)

    def _run(self, arrays: tuple, collective: int, send: _arrays.Span | None, recv: _arrays.Span | None, count: int,
             in_place: int, async_op: bool, stream: int | None, **options: Any) -> Work | None:
        spans = [span for span in (send, recv) if span]
        if len({(span.type, str(span.device)) for span in spans}) > 1:
            raise ValueError("input and output differ in type or device")
        with self.submitting():
            if spans and spans[0].device is not None and count:
                work = self._on_device(collective, send, recv, count, stream, **options)
            else:
                work = self._on_host(collective, send, recv, count, in_place, **options)
        if not async_op:
            work.wait()
            return None
        work.arrays = arrays
        return work

    def all_reduce(self, array: Any, op: str = "sum", *, codec: str | None = None, name: str = "", priority: int = 0,
                   async_op: bool = False, stream: int | None = None) -> Work | None:
        """Every rank's `array` becomes the sum (or what `op` says) of all, in place.

        What a codec leaves out is kept and added next time if the array has a name, which says what is the same array."""
        span = _arrays.span(array, op)
        return self._run((array,), ALL_REDUCE, span, span, span.count, 0, async_op, stream, op=op, codec=codec, name=name,
                         priority=priority, error_feedback=bool(name))

    def reduce_scatter(self, output: Any, array: Any, op: str = "sum", *, name: str = "", async_op: bool = False,
                       stream: int | None = None) -> Work | None:
        """Cuts `array` in one piece a rank; rank r gets the sum of all ranks' piece r in `output`."""
        send, recv = _arrays.span(array, op), _arrays.span(output, op)
        self._check_pieces(send, recv, "input", "output")
        return self._run((output, array), REDUCE_SCATTER, send, recv, recv.count, -1, async_op, stream, op=op, name=name)

    def all_gather(self, output: Any, array: Any, *, name: str = "", async_op: bool = False,
                   stream: int | None = None) -> Work | None:
        """Every rank's `array`, one behind the other, in every rank's `output`."""
        send, recv = _arrays.span(array), _arrays.span(output)
        self._check_pieces(recv, send, "output", "input")
        return self._run((output, array), ALL_GATHER, send, recv, send.count, self.rank * send.bytes, async_op, stream, name=name)

    def broadcast(self, array: Any, root: int = 0, *, name: str = "", async_op: bool = False,
                  stream: int | None = None) -> Work | None:
        """The root's `array` becomes every rank's."""
        span = _arrays.span(array)
        return self._run((array,), BROADCAST, span if self.rank == root else None, span, span.count, 0, async_op, stream,
                         root=root, name=name)

    def reduce(self, array: Any, root: int = 0, op: str = "sum", *, name: str = "", async_op: bool = False,
               stream: int | None = None) -> Work | None:
        """The root's `array` becomes the sum of all; the others' stay as they are."""
        span = _arrays.span(array, op)
        return self._run((array,), REDUCE, span, span if self.rank == root else None, span.count, 0, async_op, stream, op=op,
                         root=root, name=name)

    def barrier(self, *, async_op: bool = False) -> Work | None:
        """Returns when all ranks have called it."""
        with self.submitting():
            work = Work(self, self._submit_barrier(), lambda: None, None)
        if async_op:
            return work
        work.wait()
        return None

    def _submit_barrier(self) -> int:
        """Several may be under way: each has a bucket of its own."""
        with self._lock:
            bucket, last = self._barriers.popleft() if self._barriers else (0, 0)
        if bucket and _library.library().gw_test(self.handle, last) == _library.IN_PROGRESS:
            with self._lock:
                self._barriers.appendleft((bucket, last))
            bucket = 0
        if not bucket:
            desc = _library.BucketDesc(ctypes.sizeof(_library.BucketDesc), b"", BARRIER, 1, OPS["sum"])
            bucket = _library.out("gw_bucket_create", self.handle, ctypes.byref(desc))
        op = self.submit(bucket)
        with self._lock:
            self._barriers.append((bucket, op))
        return op

    def _check_pieces(self, whole: _arrays.Span, piece: _arrays.Span, whole_name: str, piece_name: str) -> None:
        if whole.count != self.size * piece.count:
            raise ValueError(f"the {whole_name} has {whole.count} elements; {self.size} ranks with {piece_name}s of "
                             f"{piece.count} need {self.size * piece.count}")


def _current_stream(device: Any) -> int:
    import torch

    return torch.cuda.current_stream(device).cuda_stream

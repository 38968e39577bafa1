"""DistributedDataParallel over gradwire, in one line:

    gradwire.torch.register(ddp_model, codec="none")

From then on the gradients of `ddp_model` are averaged by the daemon, in place of DDP's own all_reduce. Buckets of a GPU
stay where they are: the daemon reads and writes them, while backward goes on, which is not waited for. Those of the CPU
are copied to memory that is shared with the daemon. Everything else is DDP's: buckets, `no_sync`, `join`.

Registered once for each model, on all ranks, after DDP has been made and before the first backward.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _guard, _library, _rendezvous, errors
from ._arrays import span
from ._group import ALL_REDUCE, GRACE_S, Group, Seen, Work, connection

__all__ = ["Hook", "NoHook", "register"]


class _Bucket:
    """What the daemon knows a bucket of DDP as."""

    def __init__(self, bucket: Any, flat: torch.Tensor, handle: int, result: torch.Tensor):
        self.count, self.dtype, self.handle = flat.numel(), flat.dtype, handle
        self.parameters = _order(bucket)
        self.begin, self.bytes = result.data_ptr(), result.numel() * result.element_size()
        self.result = None if result is flat else result  # the bucket itself is DDP's, to free when it likes
        self.views: list[torch.Tensor] = []  # DDP's own, which may still be moved to shared memory
        self.homes: list[tuple[torch.Tensor, torch.Tensor]] = []  # parameters, and where their gradients are shared

    def fits(self, bucket: Any, flat: torch.Tensor) -> bool:
        return (flat.numel() == self.count and flat.dtype is self.dtype and _order(bucket) == self.parameters and
                (self.result is not None or flat.data_ptr() == self.begin))

    def share(self, bucket: Any, flat: torch.Tensor) -> None:
        """With gradient_as_bucket_view the bucket's memory is that of its gradients. It becomes the memory shared with
        the daemon, and nothing is copied any more. Not in the first step with this memory, after which DDP may cut its
        buckets anew; and not if the trainer has made other tensors of it since, as DDP goes on looking at its own."""
        if flat.data_ptr() != self.views[0].data_ptr():
            self.views = _views(bucket)
            return
        pairs, views, self.views = _pairs(bucket), self.views, []
        if any(p.grad is not view for (p, _), view in zip(pairs, views)):
            return
        self.result.copy_(flat)
        begin = flat.data_ptr()
        flat.data = self.result
        for p, g in pairs:
            offset = (g.data_ptr() - begin) // g.element_size()
            p.grad.data = self.result.as_strided(p.grad.shape, p.grad.stride(), offset)
            self.homes.append((p, p.grad.data))

    def fill(self, flat: torch.Tensor) -> None:
        """Brings the gradients to the shared memory."""
        if not self.homes or flat.data_ptr() != self.result.data_ptr():
            self.result.copy_(flat)
            return
        for p, home in self.homes:
            if p.grad is not None and p.grad.data_ptr() != home.data_ptr():
                home.copy_(p.grad)


def _order(bucket: Any) -> list[int]:
    """Which parameters a bucket holds, one after the other. DDP keeps them for as long as there are buckets."""
    return [id(p) for p in bucket.parameters()]


def _pairs(bucket: Any) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
    """The parameters of a bucket, and what it has of their gradients."""
    return [(p, g) for p, g in zip(bucket.parameters(), bucket.gradients()) if g.numel()]


def _views(bucket: Any) -> list[torch.Tensor]:
    """With gradient_as_bucket_view: what DDP has just made the gradients of a bucket."""
    pairs = _pairs(bucket)
    found = [p.grad for p, g in pairs if p.grad is not None and p.grad.data_ptr() == g.data_ptr()]
    return found if len(found) == len(pairs) else []


def _layout(bucket: Any, flat: torch.Tensor) -> list[tuple[int, int, int, int]]:
    """The matrices in a bucket, in elements: for codecs of low rank, of which there is none yet."""
    found: list[tuple[int, int, int, int]] = []
    if flat.is_complex():  # whose bucket is one of real numbers
        return found
    for gradient in bucket.gradients():
        if gradient.numel() == 0 or not gradient.is_contiguous():
            continue
        rows = gradient.shape[0] if gradient.dim() > 1 else gradient.numel()
        columns = gradient.numel() // rows
        found.append(((gradient.data_ptr() - flat.data_ptr()) // flat.element_size(), rows, columns, columns))
    return sorted(found)


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    """torch.cuda.stream, with less on the way: backward stands still meanwhile."""
    current = torch.cuda.current_stream(stream.device)
    torch.cuda.set_stream(stream)
    try:
        yield
    finally:
        torch.cuda.set_stream(current)


def _ended(flat: torch.Tensor) -> Any:
    future = torch.futures.Future()
    future.set_result(flat)
    return future


def _ends_with(stream: Any, flat: torch.Tensor) -> Any:
    """A future that has come when a stream has done what it has by now."""
    future = torch.futures.Future(devices=[flat.device])
    with _on(stream):
        future.set_result(flat)
    return future


def _asks_after_last(model: Any) -> bool:
    """Whether DDP, when all buckets have been handed over, only waits for them, on one device: with views of the buckets there
    is nothing to copy. Then one future will do, for a GPU's takes the processor 85 us."""
    return (model.gradient_as_bucket_view and not getattr(model, "skip_all_reduce_unused_params", False) and
            len({p.device for p in model.parameters()}) == 1)


def _refuse_what_goes_past(model: Any) -> None:
    """What DDP would average without the hook, of what other versions of torch do not have."""
    if getattr(model, "_use_python_reducer", False):
        raise errors.Error("GW_ERR_UNSUPPORTED", "torch._dynamo.config.optimize_ddp is 'python_reducer', which calls no hook: "
                           "leave it True, and make the DDP model anew")
    if getattr(model, "_delay_all_reduce_params", None):
        raise errors.Error("GW_ERR_UNSUPPORTED", "delay_all_reduce_named_params are averaged without a hook, and not waited for: "
                           "make the DDP model without them")


class _Due:
    """A bucket of the CPU that is under way, and DDP's future of it."""

    def __init__(self, work: Work, result: torch.Tensor, flat: torch.Tensor):
        self.work, self.result, self.flat, self.future = work, result, flat, torch.futures.Future()

    def complete(self) -> bool:
        """Waits, and gives the future the average or what has gone wrong. Whether all is well."""
        try:
            self.work.wait()
        except errors.Error as error:
            self.future.set_exception(error.with_traceback(None))  # whose frames have the future
            return False
        self.future.set_result(self.result if self.result.dtype is self.flat.dtype else self.flat.copy_(self.result))
        return True


class _Used:
    """Memory, streams and operations of a hook. It stays when the hook has gone, until all of it has ended."""

    def __init__(self) -> None:
        self.buckets: dict[int, _Bucket] = {}
        self.streams: dict[torch.device, Any] = {}
        self.ops: dict[int, int] = {}  # the last of each bucket on a device
        self.in_flight: dict[int, torch.Tensor] = {}  # DDP's buckets on a device, until it waits for them: a backward may fail
        self.due: deque[_Due] = deque()  # on the CPU

    def end_with_backward(self, in_backward: bool) -> None:
        """Has `end` called when backward has done all else, just before DDP waits for its buckets; out of backward, at once."""
        if in_backward:
            with contextlib.suppress(RuntimeError):  # a rank without input takes part out of backward
                torch.autograd.Variable._execution_engine.queue_callback(self.end)
                return
        self.end()

    def end(self) -> None:
        """Waits for the buckets of the CPU: here, as Ctrl-C is not heard where DDP waits. Like DDP, which then waits in the same
        order, for none after one that has failed."""
        self.in_flight.clear()
        while self.due and self.due[0].complete():
            self.due.popleft()

    def begin(self, group: Group) -> None:
        """What a backward that has failed has left is known to have ended, or is refused as being in flight."""
        while self.due:
            group.wait(self.due.popleft().work.op, 0)


def _close(group: Group, used: _Used) -> None:
    try:
        if any(group.wait(due.work.op, GRACE_S) == errors.TIMEOUT for due in used.due):  # of a backward that has failed
            group.give_up()
        for op in used.ops.values():
            group.wait(op)  # how it ended, check has told
        for stream in used.streams.values():
            stream.synchronize()  # which may still copy averages back
    finally:
        group.close()
        used.due.clear()
        used.in_flight.clear()
        used.buckets.clear()


class Hook:
    """What `register` gives: the group of the model, and a way to ask whether all went well."""

    def __init__(self, group: Group, model: Any, reduce_dtype: torch.dtype | None = None):
        self.group, self.reduce_dtype, self.all_with_last = group, reduce_dtype, _asks_after_last(model)
        self._model = weakref.ref(model)  # which has the hook, and ends it
        self._in_backward = not model.static_graph  # with which DDP hands over its first buckets after backward
        self._seen, self._used = Seen(), _Used()
        self._buckets, self._streams = self._used.buckets, self._used.streams
        self._closing = weakref.finalize(self, _close, group, self._used)  # with the model, if not before
        self._closing.atexit = False  # a process that ends says so to the daemon by ending, at once

    def average(self, bucket: Any) -> Any:
        """A future of the bucket's average, for DDP. With `all_with_last`, of buckets of a GPU: the last one's is that of all,
        and those of others say nothing."""
        flat = bucket.buffer()
        if flat.is_sparse:
            raise errors.Error("GW_ERR_UNSUPPORTED", "a bucket has sparse gradients: make the embedding with sparse=False, or "
                               "leave the model to DDP")
        with self.group.submitting():
            if bucket.index() == 0:
                self.group.check()  # a step that has failed is not followed by another
                self._used.begin(self.group)
                self._refuse_other_averages()
            future = self._on_device(bucket, flat) if flat.is_cuda else self._on_host(bucket, flat)
        if bucket.is_last():
            self._used.end_with_backward(self._in_backward)
            self._in_backward = True
        return future

    def check(self) -> None:
        """Raises unless all gradients so far can be trusted. For steps on a GPU: those that have ended."""
        self.group.check()

    def check_all(self, seen: Seen | None = None) -> None:
        """Waits for what backward has exchanged, not for what else streams do, and raises unless it has ended well. `seen`:
        what a guard has seen; else what was seen here."""
        for stream in self._streams.values():
            stream.synchronize()
        self.group.check_submitted(seen or self._seen)

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes every step of the optimizer call `check_all` first: what is not there yet could still fail.

        The guards of groups that have failed or were closed end with a new one, as when those who are left go on."""
        me, seen = weakref.ref(self), Seen()  # the group is to end with the model

        def check() -> None:
            hook = me()
            if hook is not None:
                hook.check_all(seen)

        def is_over() -> bool:
            hook = me()
            return hook is None or hook.group.is_over()

        _guard.guard(optimizer, me, check, is_over)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What codecs have left out, of this rank: for its checkpoint. Between steps.

        It fits buckets that are cut alike. DDP cuts them anew after its first step, so the first one after a restart
        begins with nothing left out; not with find_unused_parameters, where it goes on bit for bit."""
        return {"state": torch.frombuffer(bytearray(self.group.save_state()), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Goes on from a checkpoint of this rank, before the first step."""
        self.group.load_state(state["state"].numpy().tobytes())

    def close(self) -> None:
        """Leaves the group: after the last backward. Waits until what was submitted has ended."""
        self._closing()

    def _refuse_other_averages(self) -> None:
        model = self._model()
        if model is not None and model._join_config.enable and not model._divide_by_initial_world_size:
            raise errors.Error("GW_ERR_UNSUPPORTED", "join(divide_by_initial_world_size=False) divides by the ranks that have "
                               "input left, a hook by all: leave it True")

    # ---- buckets -------------------------------------------------------------------------------------

    def _dtype(self, flat: torch.Tensor) -> torch.dtype:
        """What the daemon gets the bucket as."""
        return self.reduce_dtype if self.reduce_dtype and flat.is_floating_point() else flat.dtype

    def _declare(self, bucket: Any, flat: torch.Tensor, address: int, result: torch.Tensor) -> _Bucket:
        what = span(result)  # of complex numbers: twice as many elements
        handle = self.group.bucket(ALL_REDUCE, what.type, what.count, address, address, op="avg",
                                   name=f"ddp.{bucket.index()}", matrices=_layout(bucket, flat), hold=True)
        known = self._buckets[bucket.index()] = _Bucket(bucket, flat, handle, result)
        return known

    def _forget(self, index: int) -> torch.Tensor | None:
        """Releases the bucket that was known, and what the daemon knows of its memory. Gives what it had of its own."""
        known = self._buckets.pop(index)
        if known.result is not None and known.result.is_cuda:  # another's when all streams have come past it
            known.result.record_stream(torch.cuda.current_stream(known.result.device))
        self.group.drop_buckets(known.begin, known.bytes)
        self.group.context.pool.forget(known.begin, known.bytes)
        return known.result

    def _known(self, bucket: Any, flat: torch.Tensor) -> _Bucket | None:
        """DDP cuts its buckets anew after the first step: what was known of the old ones is released, as new ones may lie
        where any of them did."""
        known = self._buckets.get(bucket.index())
        if known is None or known.fits(bucket, flat):
            return known
        for other in [other for other in self._buckets if other >= bucket.index()]:
            self._forget(other)
        return None

    def _on_host(self, bucket: Any, flat: torch.Tensor) -> Any:
        if not flat.numel():
            return _ended(flat)
        known, dtype = self._known(bucket, flat), self._dtype(flat)
        if known is None:
            buffer, view = self.group.context.pool.lend(flat.numel() * torch.empty(0, dtype=dtype).element_size())
            result = torch.frombuffer(view, dtype=dtype, count=flat.numel())
            known = self._declare(bucket, flat, buffer.address, result)
            if dtype is flat.dtype:
                known.views = _views(bucket)
        elif known.views:
            known.share(bucket, flat)
        known.fill(flat)
        due = _Due(Work(self.group, self.group.submit(known.handle), lambda: None, None), known.result, flat)
        self._used.due.append(due)
        return due.future

    def _side_stream(self, device: torch.device) -> Any:
        """Where ends are waited for, while backward goes on."""
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = torch.cuda.Stream(device)
        return side

    def _on_device(self, bucket: Any, flat: torch.Tensor) -> Any:
        side = self._side_stream(flat.device)
        if flat.numel():
            self._used.in_flight[bucket.index()] = flat
            self._exchange(bucket, flat, side)
        return _ended(flat) if self.all_with_last and not bucket.is_last() else _ends_with(side, flat)

    def _exchange(self, bucket: Any, flat: torch.Tensor, side: Any) -> None:
        """Backward stands still meanwhile, and launches nothing: what can be looked up is."""
        current = torch.cuda.current_stream(flat.device)
        known, op = self._submit_on_device(bucket, flat, current.cuda_stream)
        self._used.ops[bucket.index()] = op
        _library.call("gw_stream_wait", self.group.handle, op, side.cuda_stream)
        if known.result is not None:
            with _on(side):
                flat.copy_(known.result)

    def _submit_on_device(self, bucket: Any, flat: torch.Tensor, stream: int) -> tuple[_Bucket, int]:
        known = self._known(bucket, flat)
        if known is None:
            known = self._register(bucket, flat, self._place(flat))
        if known.result is not None:
            known.result.copy_(flat)
        try:
            return known, self.group.submit(known.handle, stream)
        except errors.Error as error:
            if error.status not in errors.MEMORY_GONE:
                raise
        result = self._forget(bucket.index())  # other memory had this address when it was registered
        known = self._register(bucket, flat, flat if result is None else result)
        return known, self.group.submit(known.handle, stream)

    def _place(self, flat: torch.Tensor) -> torch.Tensor:
        """Where the daemon reads a bucket, and writes its average."""
        dtype = self._dtype(flat)
        if dtype is flat.dtype:
            return flat
        result = torch.empty_like(flat, dtype=dtype)
        result.record_stream(self._streams[flat.device])  # which copies it back
        return result

    def _register(self, bucket: Any, flat: torch.Tensor, result: torch.Tensor) -> _Bucket:
        what = span(result)
        self.group.context.pool.register(what.address, what.bytes)
        return self._declare(bucket, flat, what.address, result)


class NoHook:
    """What `register` gives where DDP does it alone: it does nothing, and is False."""

    def __bool__(self) -> bool:
        return False

    def check(self) -> None:
        pass

    check_all = close = check

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        pass

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        pass


def gradwire_hook(state, bucket):  # type: ignore[no-untyped-def] # DDP reads the annotations
    """What DDP calls, with the Hook."""
    return state.average(bucket)


def register(model: Any, codec: str = "none", *, reduce_dtype: torch.dtype | None = None, socket: str | None = None,
             fallback: str | None = None) -> Hook | NoHook:
    """Has the gradients of a DistributedDataParallel model averaged by gradwire.

    codec: how they may shrink on their way between hosts: "none", "fp16", "bf16", "fp8", "int8", "int4", or
        "auto:bf16,int8" for the fastest of these for each size of bucket.
    reduce_dtype: what gradients are rounded to before the daemon gets them, and their average is; for memory and PCIe, which
        torch.bfloat16 relieves of half. 16-bit types are summed in 32 bits. None: what they are, which is exact.
    socket: the daemon's; else $GRADWIRE_SOCKET and the usual places.
    fallback: "torch" leaves the model to DDP, with a warning, where a rank has no daemon.
    Gives the hook, or a NoHook where DDP does it alone: one rank, or the fallback.
    Errors: gradwire.Error, with what the daemon says."""
    if fallback not in (None, "torch"):
        raise ValueError(f"fallback {fallback!r} is not None or 'torch'")
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(f"register takes a model in torch.nn.parallel.DistributedDataParallel, not {type(model).__name__}")
    process_group = model.process_group
    if reduce_dtype not in (None, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"reduce_dtype {reduce_dtype!r} is not None or torch.float16, bfloat16, float32 or float64")
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    if size == 1 or (fallback and not _have_all(process_group, socket, model)):
        return NoHook()
    _refuse_what_goes_past(model)
    who = ".".join(str(dist.get_global_rank(process_group, r)) for r in range(size)) if size < dist.get_world_size() else "all"
    store = distributed_c10d._get_default_store()
    key = _rendezvous.turn(store, f"gradwire/ddp/{size}/{who}", rank)
    with _rendezvous.told(store, key, rank):
        context = connection(socket)
    hook = Hook(_rendezvous.join(context, store, key, rank, size, codec=codec), model, reduce_dtype)
    try:
        model.register_comm_hook(hook, gradwire_hook)
    except BaseException:
        hook.close()
        raise
    return hook


def _have_all(process_group: Any, socket: str | None, model: Any) -> bool:
    """Whether all ranks have a daemon: they must decide alike. Warns if not."""
    failure = ""
    try:
        connection(socket)
    except errors.Error as error:
        failure = f" (here: {error})"
    device = next(model.parameters()).device
    flag = torch.tensor([int(not failure)], device=device if dist.get_backend(process_group) == "nccl" else "cpu")
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=process_group)
    if not flag.item():
        warnings.warn("gradwire: a rank has no daemon, so DDP averages the gradients itself" + failure, RuntimeWarning,
                      stacklevel=3)
    return bool(flag.item())

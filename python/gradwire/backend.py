"""A backend of torch.distributed: all of a trainer's collectives by gradwire, and none by NCCL.

    import gradwire.backend
    torch.distributed.init_process_group("gradwire")

Tensors may be the host's or a GPU's. Those of a GPU follow the order of streams: a collective begins when the current
stream has come to it, and `wait` makes the current stream wait. What DDP, SyncBatchNorm and sharded training need is
there; not send, recv and all_to_all. Nothing is rounded on its way between hosts: codecs are the hook's
(`gradwire.torch.register`), which goes together with this backend. When a rank or the daemon dies, the others get a
gradwire.Error; a stream that waits comes free, with undefined results: so call `guard` once for the optimizer.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import _arrays, _guard, _rendezvous, errors
from ._group import Group, Seen, connection
from ._group import Work as Operation
from ._waiter import Waiter

__all__ = ["ProcessGroup", "check", "guard"]

NAME = "gradwire"
KEPT_MAX = 1024  # operations that nobody has waited for yet
_OPS = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "prod"}
_ELSEWHERE = 'use a group of another backend for it, as torch.distributed.new_group(backend="gloo")'
_BOOLEAN = {"SUM": "max", "MAX": "max", "MIN": "min", "PRODUCT": "min"}  # or, or, and, and

_made: dict[str, Callable[[], ProcessGroup | None]] = {}  # the last one of each name


def _op_name(op: Any) -> str:
    for name in (*_OPS, "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name, None):
            return name
    return "PREMUL_SUM"


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements side by side: its own memory if it is contiguous, else a copy."""
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,))  # view(-1) keeps any stride of a single element


def _operand(flat: torch.Tensor, op: Any) -> tuple[torch.Tensor, str]:
    """What gradwire reduces, and how."""
    name = _op_name(op)
    ops = _BOOLEAN if flat.dtype == torch.bool else _OPS
    if name not in ops:
        raise errors.Error("GW_ERR_UNSUPPORTED", f"ReduceOp.{name} of {flat.dtype}: gradwire has {', '.join(ops)}; " +
                           _ELSEWHERE)
    return (flat.view(torch.uint8) if flat.dtype == torch.bool else flat), ops[name]


def _moved(flat: torch.Tensor) -> torch.Tensor:
    """What gradwire moves: types that it does not know, as bytes."""
    known = str(flat.dtype).split(".")[1] in (*_arrays.TYPES, *_arrays.PAIRS)
    return flat if known else flat.view(torch.uint8)


def _copy_back(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    """Copies results to where they belong, unless they lie there."""
    apart = [(tensor, flat) for tensor, flat in pairs if tensor.numel() and tensor.data_ptr() != flat.data_ptr()]

    def finish() -> None:
        with torch.no_grad():
            for tensor, flat in apart:
                tensor.copy_(flat.view(tensor.shape))
    return finish


class Work(c10d.Work):
    """What torch.distributed gives for a collective with async_op=True."""

    def __init__(self, pg: ProcessGroup, operations: list[Operation], finish: Callable[[], None], result: list):
        super().__init__()
        self._pg, self._operations, self._finish, self._result = pg, operations, finish, result
        self._lock = threading.Lock()
        self._ended = False
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until the result is there. Of a GPU: makes the current stream wait, and raises what is known by then to have
        failed of what came before, too. A timeout of 0 is the group's."""
        self._end(timeout)
        return True

    def _end(self, timeout: timedelta | None) -> list:
        self._bring(timeout)
        self._pg.bring_due()
        self._pg.let_go(self)
        return self._result

    def _bring(self, timeout: timedelta | None) -> None:
        """The result to where it belongs."""
        with self._lock:
            if not self._ended:
                for operation in self._operations:
                    operation.wait((timeout or self._pg.timeout).total_seconds())
                self._finish()
                self._ended = True

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                self._future = self._new_future()
            return self._future

    def _new_future(self) -> Any:
        """DDP's C++ takes one that Python gave an exception for one with a result; errors of callbacks it knows."""
        future = torch.futures.Future()
        self._pg.waiter.add(lambda: self._end(None), future)
        return future.then(lambda ended: ended.value())

    def is_completed(self) -> bool:
        """Whether the result is there: who has asked need not wait."""
        if not self._ended and all(operation.done() for operation in self._operations):
            self._bring(None)
        return self._ended

    def has_ended(self) -> bool:
        """Well or not; what is wrong with it hears who waits for it."""
        try:
            return self.is_completed()
        except Exception:
            return True

    def is_success(self) -> bool:
        try:
            return self.is_completed()
        except errors.Error:
            return False

    def result(self) -> list:
        return self._result

    def synchronize(self) -> None:
        self.wait()


class _DeviceWork(Work):
    """Of tensors of a GPU. A stream of the group's waits for each operation; who wants the result waits for that."""

    def __init__(self, pg: ProcessGroup, operations: list[Operation], finish: Callable[[], None], result: list,
                 used: list[torch.Tensor]):
        super().__init__(pg, operations, finish, result)
        self._device = used[0].device
        self._stream = pg.stream(self._device)
        for operation in operations:
            operation.wait(stream=self._stream.cuda_stream)
        with torch.cuda.stream(self._stream):
            finish()
            self._event = self._stream.record_event()
        for tensor in (*used, *result):  # the allocator gives their memory to nobody before that
            tensor.record_stream(self._stream)

    def _end(self, timeout: timedelta | None) -> list:
        if not all([operation.done() for operation in self._operations]):  # which raises if one has failed
            self._pg.check()
        torch.cuda.current_stream(self._device).wait_event(self._event)
        self._pg.let_go(self)
        return self._result

    def _new_future(self) -> Any:
        future = torch.futures.Future(devices=[self._device])
        with torch.cuda.stream(self._stream):  # complete when this stream has come here
            future.set_result(self._result)
        self._pg.let_go(self)
        return future

    def is_completed(self) -> bool:
        return self._event.query() and all([operation.done() for operation in self._operations])


class ProcessGroup(dist.ProcessGroup):
    """What `init_process_group("gradwire")` and `new_group` make, with the methods that torch.distributed calls."""

    def __init__(self, group: Group, timeout: timedelta):
        super().__init__(group.rank, group.size)
        self.group, self.timeout = group, timeout
        self.waiter = Waiter(group)
        self._streams: dict[torch.device, Any] = {}
        self._names = {"name": "", "description": ""}
        self._kept: dict[int, Work] = {}
        self._lock = threading.Lock()
        self._due: deque[weakref.ref[Work]] = deque()  # whose ends were not seen yet
        self._closing = weakref.finalize(self, self.waiter.close)
        self._closing.atexit = False  # a process that ends says so to the daemon by ending, at once

    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self._names["name"] = name

    def getGroupName(self) -> str:
        return self._names["name"]

    def setGroupDesc(self, description: str) -> None:
        self._names["description"] = description

    def getGroupDesc(self) -> str:
        return self._names["description"]

    def check(self) -> None:
        """Raises unless all that was exchanged so far can be trusted; of a GPU: that its streams have come to."""
        self.group.check()

    def check_all(self, seen: Seen) -> None:
        """Waits for all that was submitted, and raises unless what a guard has not seen has ended well."""
        self.synchronize()
        self.group.check_submitted(seen)

    def synchronize(self) -> None:
        """Waits for all operations of GPUs; a failure of the group ends that."""
        for stream in self._streams.values():
            stream.synchronize()

    def stream(self, device: torch.device) -> Any:
        """The group's own on a device."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def bring_due(self) -> None:
        """The results of operations that have ended, since perhaps nobody waits for them: their memory comes back so."""
        with self._lock:
            while self._due and ((oldest := self._due[0]()) is None or oldest.has_ended()):
                self._due.popleft()

    def keep(self, work: Work) -> Work:
        """Until it is waited for: DDP itself keeps only the half of it that is C++. (Newer torch keeps both.)"""
        self.bring_due()
        with self._lock:
            self._due.append(weakref.ref(work))
        self._kept[id(work)] = work
        if len(self._kept) > KEPT_MAX:
            self._kept.pop(next(iter(self._kept)), None)
        return work

    def let_go(self, work: Work) -> None:
        self._kept.pop(id(work), None)

    def shutdown(self) -> None:
        """Leaves the group, when what was submitted has ended: other ranks may be behind."""
        self.synchronize()
        self._closing()

    def abort(self) -> None:
        """Fails the group on all ranks."""
        self.group.abort("a rank has aborted its process group")

    def _work(self, used: list[torch.Tensor], submit: Callable[[], list], finish: Callable[[], None],
              result: list[torch.Tensor]) -> Work:
        """used: the memory that gradwire gets; submit: gives its operations, but those without elements."""
        if used and used[0].is_cuda:
            with torch.cuda.device(used[0].device):
                return self.keep(_DeviceWork(self, submit(), finish, result, used))
        return self.keep(Work(self, submit(), finish, result))

    # ---- reductions ----------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor] | torch.Tensor, opts: Any = None) -> Work:
        if isinstance(tensors, torch.Tensor):  # so DDP calls it when ranks join
            tensors = [tensors]
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        flats = [_flat(tensor) for tensor in tensors]
        operands = [_operand(flat, op) for flat in flats if flat.numel()]
        return self._work([array for array, _ in operands],
                          lambda: [self.group.all_reduce(array, how, async_op=True) for array, how in operands],
                          _copy_back(list(zip(tensors, flats))), tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        flat = _flat(tensors[0])
        array, how = _operand(flat, opts.reduceOp)
        pairs = [(tensors[0], flat)] if self.group.rank == opts.rootRank else []
        return self._work([array] if flat.numel() else [],
                          lambda: [self.group.reduce(array, opts.rootRank, how, async_op=True)] if flat.numel() else [],
                          _copy_back(pairs), tensors)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        return self._reduce_scatter(outputs, [torch.cat([_flat(piece) for piece in inputs[0]])], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, array: torch.Tensor, opts: Any = None) -> Work:
        return self._reduce_scatter([output], [_flat(array)], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any = None) -> Work:
        return self._reduce_scatter(outputs, [_flat(array) for array in inputs], opts)

    def _reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        flats = [_flat(output) for output in outputs]
        operands = [(_operand(flat, op)[0], *_operand(array, op))
                    for flat, array in zip(flats, inputs) if array.numel()]
        return self._work([array for flat, sent, _ in operands for array in (flat, sent)],
                          lambda: [self.group.reduce_scatter(flat, sent, how, async_op=True)
                                   for flat, sent, how in operands], _copy_back(list(zip(outputs, flats))), outputs)

    # ---- copies --------------------------------------------------------------------------------------

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        flats = [_flat(tensor) for tensor in tensors]
        moved = [_moved(flat) for flat in flats if flat.numel()]
        return self._work(moved,
                          lambda: [self.group.broadcast(array, opts.rootRank, async_op=True) for array in moved],
                          _copy_back(list(zip(tensors, flats))), tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        if len({output.numel() for output in (*outputs[0], inputs[0])}) != 1:
            raise ValueError("all_gather: the tensors have different sizes; pad them to one")
        sent = _flat(inputs[0])
        whole = sent.new_empty(self.group.size * sent.numel())
        pieces = list(zip(outputs[0], whole.view(self.group.size, -1))) if sent.numel() else []
        return self._allgather([whole], [sent], _copy_back(pieces), outputs[0])

    def _allgather_base(self, output: torch.Tensor, array: torch.Tensor, opts: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [array], opts)

    def allgather_into_tensor_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any = None) -> Work:
        flats = [_flat(output) for output in outputs]
        return self._allgather(flats, [_flat(array) for array in inputs], _copy_back(list(zip(outputs, flats))),
                               outputs)

    def _allgather(self, wholes: list[torch.Tensor], inputs: list[torch.Tensor], finish: Callable[[], None],
                   result: list[torch.Tensor]) -> Work:
        arrays = [(_moved(whole), _moved(sent)) for whole, sent in zip(wholes, inputs) if sent.numel()]
        return self._work([array for pair in arrays for array in pair],
                          lambda: [self.group.all_gather(whole, sent, async_op=True) for whole, sent in arrays],
                          finish, result)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        """By all_gather: every rank needs memory for all."""
        if self.group.rank != opts.rootRank:
            outputs = [[torch.empty_like(inputs[0]) for _ in range(self.group.size)]]
        return self.allgather(outputs, inputs)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        """By broadcast: every rank needs memory for all."""
        count = outputs[0].numel()
        whole = torch.cat([_flat(piece) for piece in inputs[0]]) if self.group.rank == opts.rootRank else \
            outputs[0].new_empty(count * self.group.size)
        moved = _moved(whole)
        mine = whole[self.group.rank * count:(self.group.rank + 1) * count]
        return self._work([moved] if count else [],
                          lambda: [self.group.broadcast(moved, opts.rootRank, async_op=True)] if count else [],
                          _copy_back([(outputs[0], mine)]), outputs)

    def barrier(self, opts: Any = None) -> Work:
        """Of processes: what their current streams were given before has ended, too."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        operation = self.group.barrier(async_op=True)
        assert operation is not None
        return self.keep(Work(self, [operation], lambda: None, []))

    # ---- what there is not ---------------------------------------------------------------------------

    def _unsupported(self, name: str) -> Any:
        raise errors.Error("GW_ERR_UNSUPPORTED", f"{name}: gradwire has no messages between two ranks; " + _ELSEWHERE)

    def send(self, *_arguments: Any) -> Any:
        self._unsupported("send")

    def recv(self, *_arguments: Any) -> Any:
        self._unsupported("recv")

    def recv_anysource(self, *_arguments: Any) -> Any:
        self._unsupported("recv")

    def alltoall(self, *_arguments: Any) -> Any:
        self._unsupported("all_to_all")

    def alltoall_base(self, *_arguments: Any) -> Any:
        self._unsupported("all_to_all_single")


def _create(options: Any, _backend_options: Any = None) -> ProcessGroup:
    """What torch.distributed calls on all ranks of a new group."""
    old = _made.pop(options.group_id, lambda: None)()
    if old is not None:  # destroyed, which not every torch says; a model may still have it
        old.shutdown()
    key = _rendezvous.turn(options.store, f"gradwire/{options.group_size}", options.group_rank)
    with _rendezvous.told(options.store, key, options.group_rank):
        context = connection()
    group = _rendezvous.join(context, options.store, key, options.group_rank, options.group_size, codec="none")
    made = ProcessGroup(group, options.timeout)
    _made[options.group_id] = weakref.ref(made)
    return made


def _process_group(group: Any) -> ProcessGroup:
    found = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(found, ProcessGroup):
        raise ValueError(f"the process group's backend is {dist.get_backend(group)}, not {NAME}")
    return found


def check(group: Any = None) -> None:
    """Raises gradwire.Error unless all that a process group (None: the default one) has exchanged can be trusted."""
    _process_group(group).check()


def guard(optimizer: torch.optim.Optimizer, group: Any = None) -> None:
    """No step of the optimizer on gradients that cannot be trusted: it waits for their exchange first, and may raise."""
    if group is not None:
        _process_group(group)  # what is wrong with it is better said now
    seen: weakref.WeakKeyDictionary[ProcessGroup, Seen] = weakref.WeakKeyDictionary()  # the default group may be another later

    def check_all() -> None:
        found = _process_group(group)
        found.check_all(seen.setdefault(found, Seen()))
    _guard.guard(optimizer, group, check_all, lambda: group is not None and _process_group(group).group.is_over())


def _register() -> None:
    try:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except TypeError:  # before torch 2.0 a backend was for all devices
        dist.Backend.register_backend(NAME, _create, extended_api=True)


_register()

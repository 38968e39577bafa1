"""Average gradients through the gradwire daemon of this host.

    import gradwire
    gradwire.init()                          # under torchrun; or init(rank, size, unique_id=...)
    gradwire.all_reduce(tensor, op="avg")    # torch tensors and NumPy arrays

For DistributedDataParallel: `gradwire.torch.register(model)`.

Arrays in the host's memory are exchanged when a call returns. Those on a device are exchanged in the order of the
stream (torch's current one, or `stream`), as NCCL does it. With `async_op=True` a call returns a `Work` to wait for.
All ranks make the same calls in the same order; a difference is an error on all of them that shows both.
"""

from __future__ import annotations

import threading
from typing import Any

from . import _library, _rendezvous
from ._group import CODECS, OPS, Context, Group, Work
from .errors import BucketError, BufferError, ConnectionError, Error, GroupError, TimeoutError

__all__ = ["CODECS", "OPS", "BucketError", "BufferError", "ConnectionError", "Context", "Error", "Group", "GroupError",
           "TimeoutError", "Work", "all_gather", "all_reduce", "barrier", "broadcast", "check", "finish", "init",
           "reduce", "reduce_scatter", "split", "version"]

_lock = threading.Lock()
_default: Group | None = None


def version() -> str:
    """Of the C library."""
    return _library.library().gw_version().decode()


def init(rank: int | None = None, size: int | None = None, *, unique_id: bytes | None = None,
         socket: str | None = None, name: str | None = None, codec: str | None = None,
         rounding: str | None = None) -> Group:
    """Connects to the daemon and joins the group of all ranks, which is the default one from then on.

    With `unique_id` (of `Context.unique_id` on one rank, passed on by any means) also `rank` and `size` are given.
    Without, the ranks meet by torch.distributed if it is initialised, else by the environment (torchrun). `socket`:
    the daemon's; else $GRADWIRE_SOCKET and the usual places. `codec`: how sums and averages of floating-point numbers
    may shrink between hosts: "none", "fp16", "bf16", "fp8", "int8", "int4", or "auto:bf16,int8" for the fastest of these
    for each size; `rounding`: "nearest" or "stochastic"; None: as the daemon is configured. Called again, it ends what was
    before, and starts anew: after a failure, or when a cell of a notebook is run again."""
    global _default
    finish()
    shared, rank, size = _place(rank, size, unique_id)
    key = _rendezvous.turn(shared, f"gradwire/default/{size}", rank) if shared is not None else ""
    with _rendezvous.told(shared, key, rank):
        context = Context(socket, name)
    try:
        if shared is None:
            made = context.group(unique_id or context.unique_id(), size, rank, codec=codec, rounding=rounding)
        else:
            made = _rendezvous.join(context, shared, key, rank, size, codec=codec, rounding=rounding)
    except BaseException:
        context.close()
        raise
    with _lock:
        _default = made
    return made


def _place(rank: int | None, size: int | None, unique_id: bytes | None) -> tuple[Any, int, int]:
    """Where the ranks meet, or None where they need not, and which of them this is."""
    if unique_id is not None:
        if rank is None or size is None:
            raise ValueError("with unique_id, rank and size must be given")
        return None, rank, size
    if (size or (_rendezvous.environment() or (0, 1))[1]) == 1 and not _is_torch_up():
        return None, rank or 0, 1
    shared, *place = _rendezvous.store()
    if any(given not in (None, found) for given, found in zip((rank, size), place)):
        raise ValueError(f"init for rank {rank} of {size}, but torch and the environment say {place[0]} of {place[1]}: "
                         "leave them out, or pass unique_id, too")
    return shared, *place


def _is_torch_up() -> bool:
    dist = _rendezvous.torch_distributed()
    return dist is not None and dist.is_initialized()


def finish() -> None:
    """Leaves the default group and closes its connection. Groups made of it end, too."""
    global _default
    with _lock:
        old, _default = _default, None
    if old:
        old.close()
        old.context.close()


def _chosen(chosen: Group | None) -> Group:
    """The default group, or the one given."""
    if chosen is not None:
        return chosen
    if _default is None:
        raise Error("GW_ERR_NOT_FOUND", "there is no group: call gradwire.init() first")
    return _default


def split(color: int, key: int = 0, *, group: Group | None = None) -> Group | None:
    """See Group.split."""
    return _chosen(group).split(color, key)


def check(*, group: Group | None = None) -> None:
    """See Group.check."""
    _chosen(group).check()


def all_reduce(array: Any, op: str = "sum", *, codec: str | None = None, group: Group | None = None, name: str = "",
               async_op: bool = False, stream: int | None = None) -> Work | None:
    """See Group.all_reduce."""
    return _chosen(group).all_reduce(array, op, codec=codec, name=name, async_op=async_op, stream=stream)


def reduce_scatter(output: Any, array: Any, op: str = "sum", *, group: Group | None = None, name: str = "",
                   async_op: bool = False, stream: int | None = None) -> Work | None:
    """See Group.reduce_scatter."""
    return _chosen(group).reduce_scatter(output, array, op, name=name, async_op=async_op, stream=stream)


def all_gather(output: Any, array: Any, *, group: Group | None = None, name: str = "", async_op: bool = False,
               stream: int | None = None) -> Work | None:
    """See Group.all_gather."""
    return _chosen(group).all_gather(output, array, name=name, async_op=async_op, stream=stream)


def broadcast(array: Any, root: int = 0, *, group: Group | None = None, name: str = "", async_op: bool = False,
              stream: int | None = None) -> Work | None:
    """See Group.broadcast."""
    return _chosen(group).broadcast(array, root, name=name, async_op=async_op, stream=stream)


def reduce(array: Any, root: int = 0, op: str = "sum", *, group: Group | None = None, name: str = "",
           async_op: bool = False, stream: int | None = None) -> Work | None:
    """See Group.reduce."""
    return _chosen(group).reduce(array, root, op, name=name, async_op=async_op, stream=stream)


def barrier(*, group: Group | None = None) -> None:
    """See Group.barrier."""
    _chosen(group).barrier()

"""How ranks find each other: the id of a group goes from rank 0 to the others by a store of torch.distributed"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from . import errors
from ._group import Context, Group

_FAILED = b"failed: "
_by_environment: Any = None  # kept: a second store would need rank 0's port again


def torch_distributed() -> Any:
    """The module, or None where there is no torch, or it was built without."""
    try:
        import torch.distributed as dist
    except ImportError:
        return None
    return dist if dist.is_available() else None


def environment() -> tuple[int, int] | None:
    """Rank and size as torchrun and others give them."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return None


def store() -> tuple[Any, int, int]:
    """A store that all ranks share, with rank and size: of torch.distributed's default group, or of the environment."""
    global _by_environment
    dist = torch_distributed()
    if dist is not None and dist.is_initialized():
        from torch.distributed import distributed_c10d

        return distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    if dist is None or environment() is None:
        raise errors.Error("GW_ERR_INVALID_ARGUMENT", "the ranks have no way to find each other: call "
                           "torch.distributed.init_process_group first, start the trainer with torchrun, or pass "
                           "unique_id, rank and size")
    if _by_environment is None:
        _by_environment = next(iter(dist.rendezvous("env://")))
    return _by_environment


@contextlib.contextmanager
def told(shared: Any, key: str, rank: int) -> Iterator[None]:
    """What fails on rank 0 is told to the others, who wait for its id."""
    try:
        yield
    except errors.Error as error:
        if rank == 0 and shared is not None:
            shared.set(key, _FAILED + str(error).encode())
        raise


def turn(shared: Any, name: str, rank: int) -> str:
    """A key that is new each time that the ranks meet by this name. The store counts how often each rank has come,
    whatever process it was, and whom else that has met."""
    return f"{name}/{shared.add(f'{name}.{rank}', 1)}"


def join(context: Context, shared: Any, key: str, rank: int, size: int, **choices: str | None) -> Group:
    """Makes the group of all who call this with the same key."""
    if rank == 0:
        with told(shared, key, rank):
            unique_id = context.unique_id()
        shared.set(key, unique_id)
    else:
        unique_id = shared.get(key)
        if unique_id.startswith(_FAILED):
            raise errors.Error("GW_ERR_BOOTSTRAP", "rank 0 could not make the group: " +
                               unique_id[len(_FAILED):].decode(errors="replace"))
    return context.group(unique_id, size, rank, **choices)

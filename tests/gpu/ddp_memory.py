"""ddp_memory.py - one rank of test_ddp.py: where a GPU's memory of buckets lies, and when it is free again

    ddp_memory.py SCENARIO...      as ddp_rank.py
"""

import gc
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

import ddp_rank  # noqa: E402, finds gradwire
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ddp_rank import DEVICE, RANK, SIZE, Fails, Perceptron, Wide, batch, compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import gradwire.torch  # noqa: E402
from gradwire import _group  # noqa: E402


def emptied_caches():
    """What was registered must outlive what torch gives back to the device, and not hide what comes in its place."""
    def after():
        torch.cuda.empty_cache()
        torch.empty(1 << 22, device=DEVICE).fill_(7)
    return compare(Perceptron, more={"after": after}, bucket_cap_mb=0.02)


def allocations_tried_again():
    """The same, where it is torch that empties its caches, as no memory is left."""
    torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(DEVICE).total_memory, DEVICE)

    def after():
        torch.empty(600 << 20, dtype=torch.uint8, device=DEVICE)  # is kept, and leaves too little beside it
        torch.empty(700 << 20, dtype=torch.uint8, device=DEVICE).fill_(7)
        torch.empty(1 << 22, device=DEVICE).fill_(7)
    before = torch.cuda.memory_stats(DEVICE)["num_alloc_retries"]
    try:
        result = compare(Perceptron, more={"after": after}, bucket_cap_mb=0.02)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
        torch.cuda.empty_cache()
    return result if torch.cuda.memory_stats(DEVICE)["num_alloc_retries"] > before else "no allocation was tried again"


def first_cut():
    """A GPU's memory of DDP's first bucket, which holds all gradients, is free when DDP has cut it into others."""
    peaks = []
    for has_hook in (False, True):
        model = DDP(Wide(2048).to(DEVICE), gradient_as_bucket_view=True, bucket_cap_mb=20)
        hook = gradwire.torch.register(model) if has_hook else gradwire.torch.NoHook()
        x = batch(0, (2048,))[0]
        torch.cuda.reset_peak_memory_stats(DEVICE)
        before = torch.cuda.memory_allocated(DEVICE)
        for _ in range(3):
            model.zero_grad()
            model(x).square().mean().backward()
        torch.cuda.synchronize(DEVICE)
        hook.check()
        hook.close()
        peaks.append((torch.cuda.max_memory_allocated(DEVICE) - before) / 2**20)
        del model, hook
    return "same" if peaks[1] < peaks[0] + 20 else f"{peaks[1]:.0f} MiB at most, DDP needs {peaks[0]:.0f}"


def given_back():
    """When a model has gone, and torch gives its memory back, the device has it again."""
    free = []
    for _ in range(3):
        model = DDP(Wide(2048).to(DEVICE), gradient_as_bucket_view=True)
        hook, x = gradwire.torch.register(model), batch(0, (2048,))[0]
        for _ in range(2):
            model.zero_grad()
            model(x).square().mean().backward()
        hook.close()
        del model, hook
        gc.collect()
        torch.cuda.synchronize(DEVICE)
        torch.cuda.empty_cache()
        dist.barrier()
        free.append(torch.cuda.mem_get_info(DEVICE)[0] >> 20)
        dist.barrier()
    return "same" if free[0] - free[-1] < 50 else f"MiB that are free after each model: {free}"


class Fragile(Wide):
    def __init__(self, width, at):
        super().__init__(width)
        self.at = at

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = Fails.apply(x.requires_grad_() if i == 0 else x) if i == self.at else x
            x = x + layer(x)
        return x + self.empty.sum()


def _late_bucket(at, dtype):
    """Numbers of others that have changed. at: the layer behind which backward fails; 0: when all buckets are handed over."""
    def fail():
        raise ValueError("this one fails")
    model = DDP(Fragile(2048, at).to(DEVICE), gradient_as_bucket_view=True, bucket_cap_mb=10)
    hook, x = gradwire.torch.register(model, reduce_dtype=dtype), batch(0, (2048,))[0]
    model(x).square().mean().backward()  # buckets are cut anew after it
    model.zero_grad()
    loss = model(x).square().mean()
    torch.cuda.synchronize(DEVICE)
    dist.barrier()
    time.sleep(RANK)
    Fails.happens = fail
    try:
        loss.backward()
        return "nothing failed"
    except ValueError:
        Fails.happens = None
    del model, loss
    gc.collect()
    others = [torch.full((1 << 22,), 7.0, device=DEVICE) for _ in range(16)]
    dist.barrier()
    hook.close()
    return sum(int((other != 7).sum()) for other in others)


def bucket_of_a_failed_backward():
    """What is still exchanged is nobody else's memory, though DDP and its gradients have gone."""
    changed = {(at, dtype): _late_bucket(at, dtype) for at in (3, 0) for dtype in (None, torch.bfloat16)}
    return "same" if set(changed.values()) == {0} else f"numbers of others that have changed: {changed}"


class Long(nn.Module):
    """Needs memory in whole parts only."""

    def __init__(self, count):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))

    def forward(self, x):
        return (self.weight * x).sum()


def addresses_used_again():
    """Where a model is trained after another, what torch allocates may lie in any number of ranges that were registered, and
    given back to the device since."""
    nbytes, part = 1 << 28, 1 << 22
    pool, old = _group.connection().pool, torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)
    begin = old.data_ptr()
    for offset in range(0, nbytes, part):
        pool.register(begin + offset, part)
    del old
    torch.cuda.empty_cache()
    if torch.empty(nbytes, dtype=torch.uint8, device=DEVICE).data_ptr() != begin:  # which torch keeps, and takes parts of
        return "nothing lies where something was"
    model = DDP(Long(part // 2).to(DEVICE))
    hook = gradwire.torch.register(model, reduce_dtype=torch.bfloat16)
    for _ in range(3):
        model.zero_grad()
        torch.cuda._sleep(10**8)  # what is freed now cannot be had again at once
        model(torch.full((part // 2,), 1.0 + RANK, device=DEVICE)).backward()
    hook.check()
    result = hook._buckets[0].result.data_ptr() - begin
    hook.close()
    if not 0 <= result < nbytes or result % part:
        return f"the bucket lies {result} bytes from there"
    found, wanted = model.module.weight.grad.unique().tolist(), [sum(1.0 + r for r in range(SIZE)) / SIZE]
    return "same" if found == wanted else f"{found} instead of {wanted}"


if __name__ == "__main__":
    ddp_rank.main(globals())

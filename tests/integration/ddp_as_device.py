"""ddp_as_device.py - one rank of test_torch.py: the hook's way for buckets of a GPU, on the CPU

    ddp_as_device.py SCENARIO...      as ddp_rank.py

Buckets are registered where they lie, as a GPU's are: the same addresses come back, and tensors of DDP's end when it
says so. What is CUDA's is not here: streams are none, and where one would wait for an operation the process does. So this
shows nothing of what waits for what; gpu/test_ddp does.
"""

import types

import ddp_rank  # finds gradwire
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire.torch
from gradwire import _library


class NoStream:
    cuda_stream = None

    def __init__(self, device=None):
        self.device = device

    def synchronize(self):
        pass


def stream_wait(name, *arguments, call=_library.call):
    if name == "gw_stream_wait":
        group, op, _ = arguments
        name, arguments = "gw_wait", (group, op, -1)
    call(name, *arguments)


def pretend():
    _library.call = stream_wait
    torch.cuda.Stream, torch.cuda.current_stream = NoStream, NoStream
    torch.cuda.set_stream = torch.cuda.synchronize = lambda *_: None
    torch.Tensor.is_cuda, torch.Tensor.record_stream = True, lambda *_: None
    future = torch.futures.Future
    torch.futures.Future = lambda devices=(): future()


def in_place():
    """Without this the others would show what they show of the CPU's way. When the hook goes nothing stays registered, which
    a device would not get back."""
    wrapped = DDP(ddp_rank.Perceptron())
    hook = gradwire.torch.register(wrapped)
    ddp_rank.train(wrapped)
    pool, results = hook.group.context.pool, [known.result for known in hook._buckets.values()]
    before = len(pool._registered)
    hook.close()
    found = results, before, len(pool._registered)
    return "same" if found == ([None], 1, 0) else f"the daemon works in {found}"


class Fragile(ddp_rank.Perceptron):
    """Its backward may fail when all buckets have been handed over."""

    def forward(self, x):
        return super().forward(ddp_rank.Fails.apply(x.requires_grad_()))


def kept_in_flight():
    """DDP's buckets are kept until it waits for them: after a backward that has failed until the hook goes, else no longer."""
    def fail():
        raise ValueError("this one fails")
    kept = []
    for options in ({}, {"static_graph": True}):
        wrapped = DDP(Fragile(), gradient_as_bucket_view=True, bucket_cap_mb=0.02, **options)
        hook = gradwire.torch.register(wrapped)
        ddp_rank.train(wrapped, steps=3, after=lambda: kept.append(len(hook._used.in_flight)))
        loss = wrapped(ddp_rank.batch(0)[0]).sum()
        ddp_rank.Fails.happens = fail
        try:
            loss.backward()
        except ValueError:
            ddp_rank.Fails.happens = None
        kept.append(len(hook._used.in_flight) == len(hook._buckets) > 0)
        hook.close()
        kept.append(len(hook._used.in_flight) + len(hook._buckets))
    return "same" if kept == [0, 0, 0, True, 0] * 2 else f"kept: {kept}"


def one_future():
    """It does for all buckets only where DDP copies none, leaves none out, and has one device."""
    views = DDP(ddp_rank.Perceptron(), gradient_as_bucket_view=True)
    skipping = DDP(ddp_rank.Perceptron(), gradient_as_bucket_view=True)
    skipping.skip_all_reduce_unused_params = True  # an option since torch 2.5
    spread = types.SimpleNamespace(gradient_as_bucket_view=True,
                                   parameters=lambda: [torch.zeros(1), torch.zeros(1, device="meta")])
    found = [gradwire.torch._asks_after_last(model) for model in (views, DDP(ddp_rank.Perceptron()), skipping, spread)]
    return "same" if found == [True, False, False, False] else f"one future for all: {found}"


def shapes():
    """The matrices of a bucket go along, where they lie in it."""
    wrapped = DDP(ddp_rank.Perceptron())
    hook, told = gradwire.torch.register(wrapped), []
    declare = hook.group.bucket
    hook.group.bucket = lambda *words, **more: told.append(more["matrices"]) or declare(*words, **more)
    ddp_rank.train(wrapped)
    hook.close()
    wanted = [(p.shape[0], p.numel() // p.shape[0]) for p in wrapped.module.parameters()]
    ends = [[(at + rows * columns) for at, rows, columns, _ in matrices] for matrices in told]
    begins = [[at for at, _, _, _ in matrices] for matrices in told]
    right = all(sorted((rows, columns) for _, rows, columns, _ in matrices) == sorted(wanted) for matrices in told)
    joined = all(b[1:] == e[:-1] and b[0] == 0 for b, e in zip(begins, ends))
    return "same" if told and right and joined else f"matrices: {told}"


if __name__ == "__main__":
    pretend()
    ddp_rank.main({**vars(ddp_rank), "in_place": in_place, "kept_in_flight": kept_in_flight,
                   "one_future": one_future, "shapes": shapes})

"""ddp_codecs.py - one rank of test_torch.py and test_ddp.py: what DDP trains with codecs between nodes

    ddp_codecs.py SCENARIO...      as ddp_rank.py
"""

import copy

import ddp_rank  # finds gradwire
import torch
import torch.distributed as dist
from ddp_rank import DEVICE, RANK, SIZE, STEPS, Perceptron, batch, differing, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire.torch


def _are_replicas(parameters):
    flat = torch.cat([p.flatten() for p in parameters]).cpu()
    every = [torch.empty_like(flat) for _ in range(SIZE)]
    dist.all_gather(every, flat)
    return all(torch.equal(other, flat) for other in every)


def _distance(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs))


def _train_coded(codec, stops, model, dtype=None):
    """Trains with a hook that is closed, and made anew with its saved state, before each of the steps in `stops`."""
    wrapped = DDP(model, find_unused_parameters=True)  # else buckets are cut anew after the first step
    hook = gradwire.torch.register(wrapped, codec=codec, reduce_dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if step in stops:
            state = hook.state_dict()
            hook.close()
            wrapped = DDP(model, find_unused_parameters=True)
            hook = gradwire.torch.register(wrapped, codec=codec, reduce_dtype=dtype)
            if stops[step]:
                hook.load_state_dict(state)
        optimizer.zero_grad()
        x, y = batch(step)
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
    hook.check()
    hook.close()
    return [p.detach().clone() for p in model.parameters()]


def coded():
    """Replicas stay identical with every codec, and a coded training is near an exact one, but not the same."""
    results = {}
    for codec, dtype in (("none", None), ("bf16", None), ("int8", None), ("int4", None), ("auto:bf16,int8", None),
                         ("none", torch.bfloat16), ("int8", torch.bfloat16), ("int4", torch.float16)):
        torch.manual_seed(7)
        results[codec, dtype] = _train_coded(codec, {}, Perceptron().to(DEVICE), dtype)
        if not _are_replicas(results[codec, dtype]):
            return f"the replicas differ with {codec}"
    for coding, result in results.items():
        off = _distance(result, results["none", None])
        if not (0 < off < 0.05 or coding in (("none", None), ("auto:bf16,int8", None))):
            return f"with {coding} parameters are {off} off"
    return "same"


def continued():
    """A training that is stopped and goes on from its saved state is the same bit for bit; without the state it is not."""
    results = []
    for stops in ({}, {2: True, 4: True}, {2: False}):
        torch.manual_seed(7)
        results.append(_train_coded("int4", stops, Perceptron().to(DEVICE)))
    if differing(results[0], results[1]):
        return f"parameters {differing(results[0], results[1])} differ"
    return "same" if differing(results[0], results[2]) else "the state makes no difference"


def coded_in_other_ways():
    """Where DDP cuts its buckets anew, or adds up gradients first."""
    for options, more in (({"bucket_cap_mb": 0.02}, {}), ({"bucket_cap_mb": 0.02, "gradient_as_bucket_view": True}, {}),
                          ({}, {"micro_steps": 3}), ({"static_graph": True}, {})):
        torch.manual_seed(7)
        model = Perceptron().to(DEVICE)
        exact = train(DDP(copy.deepcopy(model), **options), **more)
        for codec in ("bf16", "int8", "int4"):
            wrapped = DDP(copy.deepcopy(model), **options)
            hook = gradwire.torch.register(wrapped, codec=codec)
            ours = train(wrapped, **more)
            hook.check()
            hook.close()
            off = _distance(ours, exact)
            if not _are_replicas(ours) or not 0 < off < 0.05:
                return f"{codec}, {options}, {more}: the replicas differ, or parameters are {off} off"
    return "same"


def _train_scaled(codec):
    """A loss that is scaled, as a GradScaler does it. In one step it overflows on the last rank alone."""
    torch.manual_seed(7)
    model = Perceptron().to(DEVICE)
    wrapped = DDP(model, find_unused_parameters=True)
    hook = gradwire.torch.register(wrapped, codec=codec)
    optimizer, scale, left_out = torch.optim.SGD(model.parameters(), lr=0.1), 2.0**14, []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        overflows = step == 2 and RANK == SIZE - 1
        (nn.functional.cross_entropy(wrapped(x), y) * scale * (float("inf") if overflows else 1)).backward()
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            for p in model.parameters():
                p.grad /= scale
            optimizer.step()
        else:
            left_out.append(step)
            scale /= 2
    hook.check()
    hook.close()
    return left_out, [p.detach().clone() for p in model.parameters()]


def overflows():
    """Every rank hears of an overflow of one, and what codecs keep for the next step is not spoilt by it."""
    exact = _train_scaled("none")[1]
    for codec in ("bf16", "fp8", "int8", "int4"):
        left_out, ours = _train_scaled(codec)
        off = _distance(ours, exact)
        if left_out != [2] or not _are_replicas(ours) or not 0 < off < 0.05:
            return f"{codec}: steps {left_out} were left out, the replicas differ, or parameters are {off} off"
    return "same"


if __name__ == "__main__":
    ddp_rank.main(globals())

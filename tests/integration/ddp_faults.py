"""ddp_faults.py - one rank of test_torch.py: what goes wrong with the hook, and what is refused

    ddp_faults.py SCENARIO...      as ddp_rank.py
"""

import gc
import os
import time
import warnings

import ddp_rank  # finds gradwire
import torch
import torch.distributed as dist
from ddp_rank import DEVICE, RANK, Fails, Perceptron, batch, shared_kib, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire.torch


def failing_backward():
    """An exception in the model's backward comes out as it was, and the hook has nothing to tell."""
    class Model(Perceptron):
        def forward(self, x):
            return Perceptron.forward(self, Fails.apply(x.requires_grad_()))

    def fail():
        raise ValueError("this one fails")
    Fails.happens = fail
    torch.manual_seed(7)
    wrapped = DDP(Model().to(DEVICE))
    hook = gradwire.torch.register(wrapped)
    x, y = batch(0)
    try:
        nn.functional.cross_entropy(wrapped(x), y).backward()
    except ValueError:
        Fails.happens = None
        hook.check()
        hook.close()
        return "same"
    return "no exception came"


def sparse_gradients():
    """An error that names what to do."""
    model = DDP(nn.Sequential(nn.Embedding(100, 8, sparse=True), nn.Linear(8, 2)))
    gradwire.torch.register(model)
    try:
        model(torch.arange(5)).sum().backward()
        return "no error came"
    except RuntimeError as error:
        return "same" if "GW_ERR_UNSUPPORTED" in str(error) and "sparse=False" in str(error) else str(error)


def no_daemon():
    """On the second rank only: both hear of it."""
    wrapped = DDP(Perceptron().to(DEVICE))
    nowhere = "/nonexistent/gradwire.sock" if RANK == 1 else None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hook = gradwire.torch.register(wrapped, socket=nowhere, fallback="torch")
        if hook:
            return "a hook was registered"
    if not any("no daemon" in str(warning.message) for warning in said):
        return f"the warnings were {[str(warning.message) for warning in said]}"
    hook.guard(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    train(wrapped, steps=1)
    hook.check()
    hook.load_state_dict(hook.state_dict())
    hook.close()
    try:
        gradwire.torch.register(wrapped, socket="/nonexistent/gradwire.sock")
    except gradwire.ConnectionError as error:
        return "same" if error.status == "GW_ERR_NO_DAEMON" and "/nonexistent" in str(error) else str(error)
    return "no error came"


def registered_twice():
    """The second is refused, and the model trains on with the first."""
    wrapped = DDP(Perceptron().to(DEVICE))
    gradwire.torch.register(wrapped)
    train(wrapped, steps=2)
    try:
        gradwire.torch.register(wrapped)
    except RuntimeError as error:
        train(wrapped, steps=2)
        return "same" if "twice" in str(error) or "once" in str(error) else str(error)
    return "no error came"


def forgotten_models():
    """Their groups end with them, and the memory that they shared with the daemon: that of their gradients, too."""
    before = shared_kib()
    for _ in range(4):
        wrapped = DDP(Perceptron(500).to(DEVICE), gradient_as_bucket_view=True)
        group = gradwire.torch.register(wrapped).group
        train(wrapped, steps=3)
        if DEVICE == "cpu" and shared_kib() == before:
            return "nothing is shared"
        del wrapped
        gc.collect()
        if group._handle:
            return "a group did not end with its model"
        if shared_kib() != before:
            return f"{shared_kib() - before} KiB are left"
    return "same"


def after_a_failure():
    """A step after one in which something has failed is refused, also without a guard."""
    model = DDP(Perceptron().to(DEVICE))
    hook = gradwire.torch.register(model)
    train(model, steps=2)
    hook.group.all_reduce(torch.ones(10 + RANK), async_op=True)
    while hook.group._look().failed_ops == 0:
        time.sleep(0.01)
    dist.barrier()
    try:
        train(model, steps=1)
        return "the step was taken"
    except (gradwire.BucketError, RuntimeError) as error:  # older torch makes it another
        return "same" if "GW_ERR_MISMATCH: operation" in str(error) else str(error)


def alone():
    """With one rank there is nothing to do, and no hook."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model = DDP(Perceptron().to(DEVICE), process_group=groups[RANK])
    hook = gradwire.torch.register(model)
    train(model, steps=1)
    return "same" if isinstance(hook, gradwire.torch.NoHook) and not hook else f"{hook}"


def killed_rank():
    """Rank 1 ends in the middle of a backward; the other hears its name. Comes last."""
    wrapped = DDP(Perceptron().to(DEVICE))
    hook = gradwire.torch.register(wrapped)
    train(wrapped, steps=1)
    x, y = batch(1)
    if RANK == 1:
        wrapped.module.second.weight.register_hook(lambda gradient: os._exit(0))
    try:
        nn.functional.cross_entropy(wrapped(x), y).backward()
    except (gradwire.Error, RuntimeError) as error:
        text = str(error)
        try:
            hook.check()
        except gradwire.GroupError as checked:
            return "same" if "GW_ERR_RANK_DIED" in text and "rank 1" in text and "rank 1" in str(checked) else text
    return "no error came"


if __name__ == "__main__":
    ddp_rank.main(globals())

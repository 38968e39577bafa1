"""ddp_faults.py - one rank of test_torch.py: what goes wrong with the hook, and what is refused

    ddp_faults.py SCENARIO...      as ddp_rank.py
"""

import gc
import inspect
import os
import signal
import sys
import time
import warnings
import weakref

import ddp_rank  # finds gradwire
import torch
import torch.distributed as dist
from ddp_rank import DEVICE, RANK, Fails, Perceptron, batch, differing, shared_kib, train
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


def other_buckets():
    """Where ranks cut their buckets differently each hears how, at once, though some buckets have no counterpart."""
    first_bytes = dist._DEFAULT_FIRST_BUCKET_BYTES
    if RANK == 1:
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1
    try:  # without find_unused_parameters the first step has one bucket, and later ones are cut as on rank 0
        wrapped = DDP(Perceptron().to(DEVICE), bucket_cap_mb=25 if RANK == 0 else 0.01, find_unused_parameters=True)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = first_bytes
    hook = gradwire.torch.register(wrapped)
    try:
        train(wrapped, steps=1)
        return "no error came"
    except (gradwire.BucketError, RuntimeError) as error:  # older torch makes it another
        text = str(error)
    dist.barrier()  # nobody has heard it because another has left
    hook.close()
    model = weakref.ref(wrapped)
    del wrapped
    if model():
        return "what has failed keeps the model"
    return "same" if "GW_ERR_MISMATCH" in text and "rank 0" in text and "rank 1" in text else text


def refused_ways():
    """What would be averaged otherwise, or without the hook; no group is made for it."""
    model = DDP(Perceptron().to(DEVICE))
    gradwire.torch.register(model)
    try:
        with model.join(divide_by_initial_world_size=False):
            train(model, steps=1)
        return "another divisor was taken"
    except (gradwire.Error, RuntimeError) as error:
        if "GW_ERR_UNSUPPORTED" not in str(error) or "divide_by_initial_world_size" not in str(error):
            return str(error)
    for word, make in _later_ways():
        model = make()
        groups = len(gradwire.torch.connection().groups)
        try:
            gradwire.torch.register(model)
            return f"{word} was taken"
        except (gradwire.Error, RuntimeError) as error:
            if word not in str(error) or len(gradwire.torch.connection().groups) != groups:
                return f"{word}: {error}"
    return "same"


def _later_ways():
    """Those of later versions of torch, with a word of what is said."""
    arguments, model = inspect.signature(DDP.__init__).parameters, Perceptron().to(DEVICE)
    if "delay_all_reduce_named_params" in arguments:
        yield "delay_all_reduce_named_params", lambda: DDP(
            model, delay_all_reduce_named_params=[("first.weight", model.first.weight)], param_to_hook_all_reduce=model.last.weight)
    if hasattr(DDP(model), "_use_python_reducer"):
        def python_reducer():
            torch._dynamo.config.optimize_ddp = "python_reducer"
            try:
                return DDP(Perceptron().to(DEVICE))
            finally:
                torch._dynamo.config.optimize_ddp = True
        yield "python_reducer", python_reducer


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
    dist.barrier()  # the first rank has the store, and may not end before the others
    return "same" if isinstance(hook, gradwire.torch.NoHook) and not hook else f"{hook}"


def restarted_daemon():
    """Between two steps; test_torch.py does it when it is told. A clear error, and a new DDP goes on."""
    model = Perceptron().to(DEVICE)
    wrapped = DDP(model)
    hook = gradwire.torch.register(wrapped)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.guard(optimizer)
    train(wrapped, steps=2)
    print("restart now", flush=True)
    sys.stdin.readline()
    before = [p.detach().clone() for p in model.parameters()]
    for attempt in (lambda: train(wrapped, steps=1), optimizer.step):
        try:
            attempt()
            return "no error came"
        except (gradwire.Error, RuntimeError) as error:
            if "GW_ERR_DAEMON_GONE" not in str(error):
                return str(error)
    if differing(model.parameters(), before):
        return "a step was taken"
    wrapped = DDP(model)
    hook = gradwire.torch.register(wrapped)
    hook.guard(optimizer)
    train(wrapped, steps=2)
    optimizer.step()
    hook.check()
    hook.close()
    return "same"


def interrupted():
    """Ctrl-C ends a backward that waits for a late rank."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what they start in the background ignore it
    model = DDP(Perceptron().to(DEVICE))
    gradwire.torch.register(model)
    train(model, steps=2)
    dist.barrier()
    if RANK == 1:
        model.module.first.weight.register_hook(lambda gradient: time.sleep(60))
    try:
        print("interrupt now", flush=True)
        train(model, steps=1)
        return "nothing came"
    except KeyboardInterrupt:
        return "same"


def killed_daemon():
    """Rank 1 kills it in the middle of a backward; both hear of it. Comes last."""
    wrapped = DDP(Perceptron().to(DEVICE))
    gradwire.torch.register(wrapped)
    train(wrapped, steps=2)
    dist.barrier()
    died = time.monotonic()
    if RANK == 1:
        wrapped.module.first.weight.register_hook(lambda gradient: os.kill(int(os.environ["DAEMON_PID"]), signal.SIGKILL))
    try:
        train(wrapped, steps=1)
        return "no error came"
    except (gradwire.Error, RuntimeError) as error:
        text, heard = str(error), time.monotonic() - died
    return "same" if "GW_ERR_DAEMON_GONE" in text and heard < 2 else f"heard after {heard:.1f} s: {text}"


def killed_rank():
    """Rank 1 ends in the middle of a backward; the other hears its name. Comes last."""
    wrapped = DDP(Perceptron().to(DEVICE))
    hook = gradwire.torch.register(wrapped)
    train(wrapped, steps=1)
    x, y = batch(1)
    died = time.monotonic()
    if RANK == 1:
        wrapped.module.second.weight.register_hook(lambda gradient: os._exit(0))
    try:
        nn.functional.cross_entropy(wrapped(x), y).backward()
    except (gradwire.Error, RuntimeError) as error:
        text, heard = str(error), time.monotonic() - died
        if heard > 2:
            return f"heard after {heard:.1f} s"
        try:
            hook.check()
        except gradwire.GroupError as checked:
            return "same" if "GW_ERR_RANK_DIED" in text and "rank 1" in text and "rank 1" in str(checked) else text
    return "no error came"


if __name__ == "__main__":
    ddp_rank.main(globals())

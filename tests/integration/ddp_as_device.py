"""ddp_as_device.py - one rank of test_torch.py: the hook's way for buckets of a GPU, on the CPU

    ddp_as_device.py SCENARIO...      as ddp_rank.py

Buckets are registered where they lie, as a GPU's are: the same addresses come back, and tensors of DDP's end when it
says so. What is CUDA's is not here: streams are none, and where one would wait for an operation the process does.
"""

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


if __name__ == "__main__":
    pretend()
    ddp_rank.main({**vars(ddp_rank), "in_place": in_place})

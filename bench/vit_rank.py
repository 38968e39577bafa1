#!/usr/bin/env python3
"""One rank of bench/vit.py: it trains one model in all the ways that it is told, one after the other.

Started by bench/vit.py with what it needs as JSON in the variable VIT_RANK. Each line that comes over the control
socket is a command with its arguments as JSON; each answer is "ok" and JSON, or "error" and a text, after which the
rank ends.

  make WAY        wraps the model and trains {warm} steps; {"ms": of the last one}, or {"absent": why it is not there}
  time {steps}    {"ms": [of each step], "seconds": of all, "peak_bytes", "used_bytes", "digest": of the gradients}
  gradients {}    {"digests": of each parameter's gradient, after steps that change nothing}
  drop {}         gives the model back as it was before make
"""
import contextlib
import gc
import hashlib
import inspect
import json
import os
import socket
import sys
import time
import traceback

sys.dont_write_bytecode = True
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import gradwire.torch  # noqa: E402
from vit_model import MODELS, Block  # noqa: E402

HOOKS = {"noop": debugging_hooks.noop_hook, "fp16": default_hooks.fp16_compress_hook,
         "bf16": default_hooks.bf16_compress_hook}
SETTLING = 1  # steps until DDP has cut its buckets anew


class Trainer:
    def __init__(self, told):
        self.told, self.rank = told, told["rank"]
        self.device = torch.device(told["device"])
        self.cuda = self.device.type == "cuda"
        torch.manual_seed(0)
        with torch.device(self.device) if hasattr(torch.device, "__enter__") else contextlib.nullcontext():
            self.model = MODELS[told["model"]]().to(self.device)
        torch.manual_seed(1 + self.rank)
        batch = told["batch"]
        self.inputs = torch.randn(batch, *self.model.shape, device=self.device)
        self.labels = torch.randint(0, self.model.classes, (batch,), device=self.device)
        self.loss = nn.CrossEntropyLoss()
        groups = [dist.new_group([rank]) for rank in range(told["ranks"])]
        self.alone = groups[self.rank]
        self.net, self.hook, self.optimizer = None, None, None
        self.without, self.left = None, 0  # bytes: what is in use without a way, and what ways before have left more

    # ---- a way -------------------------------------------------------------------------------------------

    def wrap(self, way):
        """The model as this way trains it."""
        self.hook = None
        if way["kind"] == "plain":
            return self.model
        options = {"static_graph": True} if way["static"] else {}
        net = DDP(self.model, device_ids=[self.device.index] if self.cuda else None, bucket_cap_mb=way["cap"],
                  gradient_as_bucket_view=way["views"], process_group=self.alone if way["alone"] else None, **options)
        if way["kind"] == "gradwire":
            self.hook = gradwire.torch.register(net, codec=way["codec"],
                                                reduce_dtype=torch.bfloat16 if way["rounded"] else None)
        elif way["kind"] == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif way["kind"] != "ddp":
            net.register_comm_hook(None, HOOKS[way["kind"]])
        return net

    def make(self, way):
        try:
            self.net = self.wrap(way)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
            if way["guarded"]:
                self.hook.guard(self.optimizer)
            begin = time.perf_counter()
            for _ in range(way["warm"]):
                self.synchronize()
                begin = time.perf_counter()
                self.step()
            self.synchronize()
        except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as why:
            if isinstance(why, gradwire.Error):
                raise  # it must work here
            return {"absent": f"{type(why).__name__}: {why}".splitlines()[0]}
        return {"ms": (time.perf_counter() - begin) * 1e3}

    def drop(self):
        for parameter in self.model.parameters():
            parameter.grad = None
        if self.hook is not None:
            self.hook.close()
        self.net = self.hook = self.optimizer = None
        gc.collect()  # DDP takes its hooks off the parameters when it goes
        if self.cuda:
            torch.cuda.empty_cache()
            used = torch.cuda.memory_allocated()
            self.without = used if self.without is None else self.without
            self.left = used - self.without
        return {}

    # ---- steps -------------------------------------------------------------------------------------------

    def backward(self):
        for micro in range(self.told["accumulate"]):
            last = micro + 1 == self.told["accumulate"]
            with contextlib.nullcontext() if last or self.net is self.model else self.net.no_sync():
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.told["autocast"]):
                    loss = self.loss(self.net(self.inputs), self.labels)
                loss.backward()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.backward()
        self.optimizer.step()

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def mark(self):
        """The time, on the GPU when it comes there."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def since(self, before, after):
        return before.elapsed_time(after) if self.cuda else (after - before) * 1e3

    def time(self, steps):
        self.synchronize()
        dist.barrier()
        self.synchronize()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        marks, begin = [self.mark()], time.perf_counter()
        for _ in range(steps):
            self.step()
            marks.append(self.mark())
        self.synchronize()
        seconds = time.perf_counter() - begin
        if self.hook is not None:
            self.hook.check()
        peak, used = None, None
        if self.cuda:
            free, total = torch.cuda.mem_get_info()
            peak, used = torch.cuda.max_memory_allocated() - self.left, total - free
        return {"ms": [self.since(a, b) for a, b in zip(marks, marks[1:])], "seconds": seconds, "peak_bytes": peak,
                "used_bytes": used, "digest": hashlib.sha256(repr(self.digests()).encode()).hexdigest()}

    # ---- checks ------------------------------------------------------------------------------------------

    def digests(self):
        """A number of 64 bits for each parameter's gradient: another bit in one element is another number."""
        sums = []
        for parameter in self.model.parameters():
            bits = parameter.grad.detach().contiguous().view(-1).view(torch.int32).to(torch.int64)
            weights = torch.arange(1, 2 * bits.numel(), 2, device=self.device)
            sums.append((bits * weights).sum())
        return torch.stack(sums).tolist()

    @contextlib.contextmanager
    def repeatable(self):
        """Backward passes that give the same bits each time: some of the fast ones do not."""
        Block.fused, torch.backends.cudnn.deterministic = False, True
        yield
        Block.fused, torch.backends.cudnn.deterministic = True, False

    def gradients(self):
        with self.repeatable():
            for _ in range(SETTLING + 1):
                self.optimizer.zero_grad(set_to_none=True)
                self.backward()
        if self.hook is not None:
            self.synchronize()
            self.hook.check()
        return {"digests": self.digests()}

    def about(self):
        parameters = list(self.model.parameters())
        nccl = torch.cuda.nccl.version() if self.cuda and dist.get_backend() == "nccl" else None
        return {"device": torch.cuda.get_device_name(self.device) if self.cuda else "processor",
                "parameters": sum(p.numel() for p in parameters),
                "bytes": sum(p.numel() * p.element_size() for p in parameters),
                "threads": torch.get_num_threads(), "tf32_products": torch.backends.cuda.matmul.allow_tf32,
                "tf32_convolutions": torch.backends.cudnn.allow_tf32,
                "nccl": ".".join(map(str, nccl)) if nccl else None}


def begin(told):
    options = {}
    if torch.device(told["device"]).type == "cuda":
        torch.cuda.set_device(told["device"])
        torch.backends.cuda.matmul.allow_tf32 = False
        if told["backend"] == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:
            options["device_id"] = torch.device(told["device"])
    else:
        torch.set_num_threads(told["threads"])
    dist.init_process_group(told["backend"], init_method="file://" + told["meeting"], world_size=told["ranks"],
                            rank=told["rank"], **options)
    return Trainer(told)


def serve(trainer, stream):
    for line in stream:
        command, _, more = line.partition(" ")
        options = json.loads(more)
        answer = trainer.make(options) if command == "make" else getattr(trainer, command)(**options)
        stream.write(f"ok {json.dumps(answer)}\n")
        stream.flush()


def main():
    told = json.loads(os.environ["VIT_RANK"])
    trainer = begin(told)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.connect(told["control"])
    stream = control.makefile("rw")
    stream.write(f"hello {told['rank']} {json.dumps(trainer.about())}\n")
    stream.flush()
    try:
        serve(trainer, stream)
    except Exception as why:  # whatever it is, the bench says it
        traceback.print_exc()
        stream.write(f"error rank {told['rank']}: {type(why).__name__}: {why}".replace("\n", " ") + "\n")
        stream.flush()
    sys.stderr.flush()
    os._exit(0)  # a process group whose peers have gone is not waited for


main()

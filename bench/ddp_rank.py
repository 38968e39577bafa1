#!/usr/bin/env python3
"""One rank of the trainings that bench/run-ddp and bench/run-ddp-codecs compare: the network and images of scripts/demo.

Started by these, one process a rank, it does what comes by the control socket, all ranks the same at once:

    make NAME EXCHANGE VIEWS MEGABYTES    a model in DDP. EXCHANGE: gloo, DDP's own; a codec: gradwire's hook with it; or
                                          noop, a hook that leaves gradients as they are; or alone, no DDP at all.
                                          VIEWS: gradient_as_bucket_view, 0 or 1
    start NAME SEED SCALE                 anew: the weights and images of the seed; losses are scaled, rates fall to 0
    steps NAME N TOTAL                    N steps of TOTAL: "ok" and the loss before and the nanoseconds of each
    hash NAME                             of all parameters
    test NAME                             the loss over the test images
    drop NAME
"""
import hashlib
import json
import os
import socket
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "examples"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import fashion  # noqa: E402

import gradwire.torch  # noqa: E402

BATCH = 64  # as the demo's
RATE, MOMENTUM = 0.1, 0.9


class Training:
    def __init__(self, exchange, views, megabytes, images):
        self.images, self.hook = images, None
        self.inner = self.model = fashion.network(0)
        if exchange != "alone":
            self.model = DDP(self.inner, gradient_as_bucket_view=views, bucket_cap_mb=megabytes)
            if exchange == "noop":
                self.model.register_comm_hook(None, debugging_hooks.noop_hook)
            elif exchange != "gloo":
                self.hook = gradwire.torch.register(self.model, codec=exchange)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.step, self.scale = 0, 1.0

    def start(self, seed, scale):
        with torch.no_grad():
            for mine, fresh in zip(self.inner.parameters(), fashion.network(seed).parameters()):
                mine.copy_(fresh)
        self.optimizer.state.clear()
        self.images.shuffle(seed)
        self.step, self.scale = 0, scale

    def steps(self, n, total):
        losses, times = [], []
        for _ in range(n):
            pixels, labels = self.images.batch(BATCH)
            begin = time.perf_counter_ns()
            self.optimizer.param_groups[0]["lr"] = RATE * (total - self.step) / total
            self.optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(self.model(pixels), labels)
            (loss * self.scale).backward()
            self.optimizer.step()
            times.append(time.perf_counter_ns() - begin)
            losses.append(loss.item())
            self.step += 1
        return losses, times

    def hash(self):
        return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in self.inner.parameters())).hexdigest()[:16]

    def close(self):
        if self.hook:
            self.hook.check()
            self.hook.close()


class Rank:
    def __init__(self, rank, size):
        folder = os.environ.get("FASHION_MNIST", fashion.IMAGES)
        self.train, self.test = fashion.Images(folder, "train", rank, size), fashion.Images(folder, "t10k")
        self.trainings = {}

    def answer(self, what, name, *words):
        """What a command gives."""
        if what == "make":
            exchange, views, megabytes = words
            self.trainings[name] = Training(exchange, views == "1", float(megabytes), self.train)
        elif what == "drop":
            self.trainings.pop(name).close()
        elif what == "start":
            self.trainings[name].start(int(words[0]), float(words[1]))
        elif what == "steps":
            dist.barrier()
            return self.trainings[name].steps(*map(int, words))
        elif what == "hash":
            return self.trainings[name].hash()
        elif what == "test":
            return fashion.loss_and_accuracy(self.trainings[name].inner, self.test)
        return None


def main():
    if len(sys.argv) != 5:
        sys.exit("usage: ddp_rank.py CONTROL-SOCKET INIT-FILE RANKS RANK (started by bench/run-ddp)")
    path, init_file, size, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo", init_method="file://" + init_file, world_size=size, rank=rank)
    mine = Rank(rank, size)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.connect(path)
    stream = control.makefile("rw")
    stream.write(f"hello {rank} torch {torch.__version__}\n")
    stream.flush()
    for line in stream:
        answer = json.dumps(mine.answer(*line.split()))
        stream.write(f"ok {answer}\n")
        stream.flush()


main()
os._exit(0)  # threads of Gloo and of hooks that were not dropped

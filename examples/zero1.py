#!/usr/bin/env python3
"""zero1.py - sharded training as in ZeRO, stage 1: each rank keeps the optimiser's state of its part of the parameters

A step is: reduce_scatter of the gradients (a rank gets the average of its part), Adam on that part, all_gather of the
parameters. That moves as many bytes as all_reduce, and a rank has 1/n of Adam's two moments. The same training with
all_reduce, where every rank keeps all of it, ends with the same parameters bit for bit. The control, a training without an
exchange, does not.
"""

import argparse

import torch
from torch import nn

import fashion  # before gradwire: it says where that is

import gradwire


class AllReduced:
    """Every rank updates all parameters."""

    def __init__(self, flat, rank, size):
        self.flat = flat
        self.optimizer = torch.optim.Adam([_with_gradient(flat.parameters, flat.gradients)])

    def step(self):
        gradwire.all_reduce(self.flat.gradients, "avg", name="gradients")
        self.optimizer.step()


class Sharded:
    """Each rank updates its part, and gets the others'."""

    def __init__(self, flat, rank, size):
        self.flat, n = flat, len(flat.parameters) // size
        self.part = flat.parameters[rank * n:(rank + 1) * n]
        self.average = torch.empty_like(self.part)
        self.optimizer = torch.optim.Adam([_with_gradient(self.part, self.average)])

    def step(self):
        gradwire.reduce_scatter(self.average, self.flat.gradients, "avg", name="gradients")
        self.optimizer.step()
        gradwire.all_gather(self.flat.parameters, self.part, name="parameters")


class Alone(AllReduced):
    """The control."""

    def step(self):
        self.optimizer.step()


def _with_gradient(values, gradient):
    values.grad = gradient
    return values


def train(kind, options, images, rank, size):
    """Returns the parameters, the bytes of the optimiser's state, and the loss of this rank's last batch."""
    model = fashion.network(options.seed).to(fashion.device())
    flat = fashion.Flat(model, size)
    exchange = kind(flat, rank, size)
    images.shuffle(options.seed)
    for _ in range(options.steps):
        flat.gradients.zero_()
        pixels, labels = images.batch(64)
        loss = nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        exchange.step()
    gradwire.check()
    states = exchange.optimizer.state.values()
    nbytes = sum(t.numel() * t.element_size() for state in states for t in state.values() if torch.is_tensor(t) and t.dim())
    return flat.parameters, nbytes, loss.item()


def main(options):
    group = gradwire.init()
    images = fashion.Images(options.data, "train", group.rank, group.size, fashion.device())
    results = {kind: train(kind, options, images, group.rank, group.size) for kind in (AllReduced, Sharded, Alone)}
    whole = results[AllReduced][0]
    same = {kind: torch.equal(result[0], whole) for kind, result in results.items()}
    for kind, (_, nbytes, loss) in results.items():
        print(f"rank {group.rank}: {kind.__name__:10} loss {loss:.6f}, Adam's state {nbytes / 1e6:5.2f} MB, parameters "
              f"{'equal bit for bit' if same[kind] else 'differ'}", flush=True)
    gradwire.finish()
    return 0 if same[Sharded] and not same[Alone] else 1


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Sharded training as in ZeRO, stage 1, beside all_reduce.")
    arguments.add_argument("--steps", type=int, default=200, metavar="N", help="default: 200")
    fashion.launch(main, arguments)

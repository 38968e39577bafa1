#!/usr/bin/env python3
"""local_sgd.py - local SGD: ranks train on their own, and average their parameters every k steps

That is a k-th of the bytes of averaging gradients. With k = 1 it is that, but for rounding: plain SGD is linear in the
gradients. The table shows what larger k cost in loss, and what they save. Replicas are equal bit for bit after each
exchange, and not before it.
"""

import argparse
import time

import torch
from torch import nn

import fashion  # before gradwire: it says where that is

import gradwire


def are_equal(parameters, group):
    """Whether all ranks have the same bits."""
    every = torch.empty(group.size * len(parameters), dtype=parameters.dtype, device=parameters.device)
    gradwire.all_gather(every, parameters)
    return all(torch.equal(part, parameters) for part in every.chunk(group.size))


def train(every, options, images, test, group):
    """Returns a row of the table, and whether replicas are equal after the last exchange only."""
    model = fashion.network(options.seed).to(fashion.device())
    flat = fashion.Flat(model, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images.shuffle(options.seed)
    exchanges, apart, begin = 0, True, time.monotonic()
    for step in range(1, options.steps + 1):
        flat.gradients.zero_()
        pixels, labels = images.batch(64)
        nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
        if step % every == 0 or step == options.steps:
            if step == options.steps:
                apart = not are_equal(flat.parameters, group)
            gradwire.all_reduce(flat.parameters, "avg", name="parameters")
            exchanges += 1
    gradwire.check()
    seconds = time.monotonic() - begin
    good = apart and are_equal(flat.parameters, group)
    loss, accuracy = fashion.loss_and_accuracy(model, test)
    megabytes = exchanges * flat.parameters.numel() * 4 / 1e6
    return (f"{every:5} {exchanges:9} {megabytes:9.1f} {seconds:8.1f} {loss:9.4f} {accuracy:8.2f}", good)


def main(options):
    group = gradwire.init()
    images = fashion.Images(options.data, "train", group.rank, group.size, fashion.device())
    test = fashion.Images(options.data, "t10k", device=fashion.device())
    if group.rank == 0:
        print(f"# {group.size} ranks, {options.steps} steps\n# every exchanges averaged  seconds  test loss accuracy\n"
              "# steps                 (MB)                            (%)", flush=True)
    all_good = True
    for every in options.every:
        row, good = train(every, options, images, test, group)
        all_good = all_good and good
        if group.rank == 0:
            print(f" {row}  replicas {'equal bit for bit' if good else 'DIFFER'}", flush=True)
    gradwire.finish()
    return 0 if all_good else 1


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Local SGD: parameters are averaged every k steps.")
    arguments.add_argument("--steps", type=int, default=400, metavar="N", help="default: 400")
    arguments.add_argument("--every", type=lambda text: [int(k) for k in text.split(",")], default=[1, 8, 64], metavar="K,...",
                           help="steps between exchanges (default: 1,8,64)")
    fashion.launch(main, arguments)

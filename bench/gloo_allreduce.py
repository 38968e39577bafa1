#!/usr/bin/env python3
"""The peer of `make bench-host`: torch.distributed's all_reduce over Gloo, in place.

Started by bench/run-host, one process a rank. Runs, fills and checks exactly as bench/rank.h does; see there.
"""
import socket
import sys
import time

import torch
import torch.distributed as dist

SKIPPED = 2  # as BENCH_SKIPPED


def base(count):
    """The part of the first values that differs by element."""
    index = torch.arange(count, dtype=torch.int64)
    return index.mul_(2654435761).bitwise_and_(0xFFFFFFFF).__rshift__(22).to(torch.float32)


def offset(rank, block):
    return (1 << (2 * rank)) + block % 512


def run(rank, size, ranks, blocks, timed):
    elements = base(size // 4)
    data = torch.empty_like(elements)
    times, wrong = [], 0
    for block in range(blocks):
        torch.add(elements, offset(rank, block), out=data)
        for k in range(SKIPPED + timed):
            start = time.perf_counter_ns()
            dist.all_reduce(data, op=dist.ReduceOp.SUM)
            if k >= SKIPPED:
                times.append(time.perf_counter_ns() - start)
        expected = elements * ranks
        expected += sum(offset(other, block) for other in range(ranks))
        expected *= float(ranks) ** (SKIPPED + timed - 1)
        wrong += int((data != expected).sum())
    return wrong, times


def main():
    if len(sys.argv) != 5:
        sys.exit("usage: gloo_allreduce.py CONTROL-SOCKET INIT-FILE RANKS RANK (started by bench/run-host)")
    path, init_file, ranks, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)  # for filling and checking; Gloo has threads of its own
    dist.init_process_group("gloo", init_method="file://" + init_file, world_size=ranks, rank=rank)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.connect(path)
    stream = control.makefile("rw")
    stream.write(f"hello {rank} torch {torch.__version__}\n")
    stream.flush()
    for line in stream:
        _, _, size, n_ranks, blocks, timed = line.split()
        wrong, times = run(rank, int(size), int(n_ranks), int(blocks), int(timed))
        stream.write("ok " + " ".join(map(str, [wrong] + times)) + "\n")
        stream.flush()


main()

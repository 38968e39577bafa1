"""test_buckets.py - 100 000 buckets of mixed sizes: every result right, and memory flat on both sides

Sizes of 4 KiB to 4 MiB, and one in 500 of 64 MiB; several types and operations; eight in flight. Kernels make inputs and
check every element of every result: see trainer.cu. GW_GPU_BUCKETS says how many. The simulated driver runs no kernels:
with it there are fewer, checked by the CPU. Ends within 4 minutes.
"""

import os
import random
import time

from gpu import (QUICK, SIMULATED, SLOW, Daemon, Skip, Trainers, check, equal, exchange, held_mib, main, until)

BUCKETS = int(os.environ.get("GW_GPU_BUCKETS", 400 if SIMULATED else 100000))
LIMIT_S = 150  # of the whole run; a GPU does them in half a minute
SEED = 20240607
KB, MB = 1 << 10, 1 << 20
GROWTH_KB = 4096


def _figures(text):
    """'N wrong N rss_kib N free_mib N'"""
    words = text.split()
    return int(words[0]), {words[i]: int(words[i + 1]) for i in range(1, len(words) - 1, 2)}


def _run(daemon, n, **variables):
    """Returns the trainers' lines of progress, and beside each what the daemon held then."""
    progress = []
    with Trainers(daemon, 2, "buckets", n, SEED, **variables) as trainers:
        while trainers[0].read(LIMIT_S):
            word, when, text = trainers[0].lines[-1]
            if word in ("PROGRESS", "DONE"):
                progress.append((when, *_figures(text), daemon.memory() // KB, held_mib(daemon.pid), daemon.fd_count()))
            if word == "PROGRESS" and len(progress) % 5 == 0:
                print(f"# {progress[-1][1]} buckets, {when - progress[0][0]:.1f} s", flush=True)
        code = trainers[0].process.wait(10)
        while trainers[1].read(LIMIT_S):
            pass
        other = trainers[1].process.wait(10)
        check(progress and trainers[0].lines[-1][0] == "DONE" and trainers[1].lines[-1][0] == "DONE",
              f"{trainers[0].said()}; {trainers[1].said()}")
        return progress, code, other, _figures(trainers[1].lines[-1][2])[1]


def buckets_of_mixed_sizes_are_right_and_memory_is_flat():
    if SIMULATED:
        raise Skip("the simulated driver runs no kernels")
    with Daemon("--trace.events=64", "--log.level=warning") as daemon:
        progress, code, other, figures = _run(daemon, BUCKETS)
        equal((code, other), (0, 0), "exit codes")
        equal((progress[-1][1], progress[-1][2]["wrong"], figures["wrong"]), (BUCKETS, 0, 0), "buckets, wrong elements")
        early, late = progress[len(progress) // 10], progress[-1]
        print(f"# {BUCKETS} buckets in {late[0] - progress[0][0]:.0f} s after the first {progress[0][1]}", flush=True)
        for name, before, after, allowed in (
                ("the trainer's memory, KiB", early[2]["rss_kib"], late[2]["rss_kib"], GROWTH_KB),
                ("the daemon's memory, KiB", early[3], late[3], GROWTH_KB),
                ("GPU memory in use, MiB", -early[2]["free_mib"], -late[2]["free_mib"], 2),
                ("the daemon's GPU memory, MiB", early[4] or 0, late[4] or 0, 0),
                ("the daemon's descriptors", early[5], late[5], 0)):
            print(f"# {name}: {before} after {early[1]} buckets, {after - before:+d} after {late[1]}", flush=True)
            check(after <= before + allowed, f"{name}: {before} after {early[1]} buckets, {after} after {late[1]}")
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the trainers have gone")


def one_wrong_element_is_seen():
    """The negative control: an element of one bucket of 2000 that is not what it must be."""
    if SIMULATED:
        raise Skip("the simulated driver runs no kernels")
    with Daemon(bystanders=False) as daemon:
        progress, code, other, figures = _run(daemon, 2000, GW_TEST_FLIP="1")
        equal((code, other), (1, 1), "exit codes of trainers that saw a wrong element")
        check(progress[-1][2]["wrong"] > 0 and figures["wrong"] > 0, "nobody saw the wrong element")


def buckets_of_mixed_sizes_with_inputs_of_the_cpu():
    """As the first one, smaller: the scripts' own ranks, which compare on the CPU."""
    rng = random.Random(SEED)
    n = 100 if not SIMULATED else BUCKETS
    begin = time.monotonic()
    with Daemon("--trace.events=64") as daemon:
        ranks = daemon.group(2)
        for rank in ranks:
            rank.ok(f"alloc b {16 * MB}")
        for number in range(n):
            count = int(1024 * 2 ** rng.uniform(0, 10 if number % 50 else 12)) if number % 7 else rng.randrange(2000)
            type_, unit = rng.choice((("f32", 4), ("i32", 4), ("f64", 8), ("i64", 8)))
            offset = rng.randrange(16 * MB - count * 8) // 64 * 64
            op = rng.choice(("sum", "max"))
            for r, rank in enumerate(ranks):
                rank.ok(f"fill b:{offset} {type_} {count} {number + r} 3")
                rank.ok(f"bucket k g all_reduce {type_} {op} {count} b:{offset} b:{offset}")
            exchange(ranks)
            value, step = (2 * number + 1, 6) if op == "sum" else (number + 1, 3)
            for rank in ranks:
                equal(rank.ok(f"expect b:{offset} {type_} {count} {value} {step}"), "0",
                      f"wrong elements of bucket {number}, {type_} {op} {count}")
                rank.ok("drop k")
    print(f"# {n} buckets in {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main(globals(), LIMIT_S)

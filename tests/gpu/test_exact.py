"""test_exact.py - the same inputs give the same bits on every path of device memory as in the host's memory

Each run of matrix.c compares every result bit by bit with what must come out, too; see there. Ends within 5 minutes.
"""

import os
import re
import subprocess

from gpu import QUICK, SLOW, Daemon, check, equal, main, program

SEED = 4711
# Flags of the daemon, and the kind and path of the memory.
VARIANTS = (
    ((), "malloc", "ipc"),
    (("--device.stream_bytes=0",), "malloc", "ipc"),  # all of it by the daemon's copies, however small
    (("--device.stream_bytes=1G",), "malloc", "ipc"),  # all of it by the trainers' streams
    (("--device.chunk_bytes=64K", "--device.window=1", "--reduce.inline_bytes=0"), "malloc", "ipc"),
    (("--device.arena_bytes=1M", "--device.chunk_bytes=64K", "--lane.count=2", "--reduce.threads=3"), "malloc", "ipc"),
    ((), "vmm", "vmm"),
    ((), "pool", "pool"),
    ((), "async", "stream"),
    ((), "private", "stream"),
    ((), "managed", "stream"),
)


def _digest(daemon, n, *words):
    result = subprocess.run([program("tests/integration/matrix"), str(n), *map(str, words)], capture_output=True, text=True,
                            env=dict(os.environ, GRADWIRE_SOCKET=daemon.socket), timeout=100 * SLOW, check=False)
    line = re.search(r"^cases (\d+) wrong (\d+) (\w+) digest (\w+) (\w+)$", result.stdout, re.M)
    check(result.returncode == 0 and line, f"matrix {n} {words} ended with {result.returncode}: {result.stderr[:500]}")
    check(int(line[1]) > 350, f"only {line[1]} cases")
    equal((line[2], line[3]), ("0", "same"), f"wrong results, and whether the ranks agree ({result.stderr[:500]})")
    return line[4], line[5]


def _same_as_host(n, variants, *words):
    with Daemon() as daemon:
        host, path = _digest(daemon, n, SEED, "host", *words)
        equal(path, "shared", "the path of host memory")
    for flags, kind, wanted in variants:
        with Daemon(*flags, bystanders=False, checks=False) as daemon:
            digest, path = _digest(daemon, n, SEED, f"device:auto:{kind}", *words)
            equal(path, wanted, f"the path of {kind}")
            equal(digest, host, f"digest with {flags} and {kind}")
            daemon.assert_alive()


def one_rank():
    _same_as_host(1, VARIANTS[:2], "quick")


def two_ranks_on_every_path():
    _same_as_host(2, VARIANTS, "quick")


def three_ranks():
    _same_as_host(3, VARIANTS[1:5], "quick")


def four_ranks():
    _same_as_host(4, VARIANTS[:1] if QUICK else VARIANTS[:5], "quick")


def every_case_of_two_ranks():
    _same_as_host(2, VARIANTS[1:2] if QUICK else VARIANTS[:4])


def another_seed_gives_another_digest():
    """The negative control: the digest says something."""
    with Daemon() as daemon:
        digests = {_digest(daemon, 2, seed, "device:auto", "quick")[0] for seed in (SEED, SEED + 1)}
        equal(len(digests), 2, "digests of two seeds")


if __name__ == "__main__":
    main(globals(), 110)

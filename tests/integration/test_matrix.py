"""test_matrix.py - the numbers: every collective, type and operation for 1 to 8 ranks, bit by bit; see matrix.c"""

import os
import re
import subprocess

from ranks import ON_DEVICE, SLOW, Daemon, check, contains, equal, main, program

TIMEOUT_S = 100 * SLOW
QUICK = ["quick"] if SLOW > 1 else []  # under a sanitizer
WHERE = ["device:auto"] if ON_DEVICE else []


def _run(daemon, *words):
    result = subprocess.run([program("tests/integration/matrix"), *map(str, words), *QUICK, *WHERE],
                            env=dict(os.environ, GRADWIRE_SOCKET=daemon.socket), capture_output=True, text=True,
                            timeout=TIMEOUT_S, check=False)
    line = re.search(r"^cases (\d+) wrong (\d+) (\w+) digest (\w+) (\w+)$", result.stdout, re.M)
    check(result.returncode == 0 and line, f"matrix {words} ended with {result.returncode}: {result.stderr[:500]}")
    equal(line[5], "ipc" if ON_DEVICE else "shared", "the path of the memory")
    return int(line[1]), int(line[2]), line[3], line[4], result.stderr[:500]


def _all_right(n, *more, flags=()):
    with Daemon(*flags) as daemon:
        cases, wrong, same, _, said = _run(daemon, n, 1234 + n, *more)
        check(cases > (350 if QUICK else 1400), f"only {cases} cases")
        equal(wrong, 0, f"wrong results ({said})")
        equal(same, "same", "results of the ranks")


def one_rank():
    _all_right(1)


def two_ranks():
    _all_right(2)


def three_ranks():
    _all_right(3)


def four_ranks():
    _all_right(4)


def five_ranks():
    _all_right(5)


def six_ranks():
    _all_right(6)


def seven_ranks():
    _all_right(7)


def eight_ranks():
    _all_right(8)


def four_ranks_as_threads_of_one_process():
    _all_right(4, "threads")


def results_do_not_depend_on_threads_and_chunks():
    digests = set()
    for flags in ((), ("--reduce.threads=3", "--reduce.chunk_bytes=4096"), ("--reduce.inline_bytes=0", "--lane.count=2"),
                  ("--reduce.threads=1", "--reduce.inline_bytes=1G")):
        with Daemon(*flags) as daemon:
            _, wrong, same, digest, said = _run(daemon, 3, 99)
            equal((wrong, same), (0, "same"), f"wrong results with {flags} ({said})")
            digests.add(digest)
    equal(len(digests), 1, "different results of the same inputs")


def one_flipped_bit_is_seen():
    """The negative control."""
    with Daemon() as daemon:
        _, wrong, _, _, said = _run(daemon, 3, 99, "flip")
        check(wrong > 0, "a flipped bit went unseen")
        contains(said, "wrong bits")


if __name__ == "__main__":
    main(globals(), 100)

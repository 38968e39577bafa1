"""test_examples.py - the examples in Python, and the benchmarks of DDP, in short: each proves itself, and says so

Needs a Python with torch, and the images.
"""

import functools
import os
import re
import subprocess
import sys

from ranks import SLOW, Daemon, Skip, check, contains, equal, gwtest, main

sys.path.insert(0, os.path.join(gwtest.ROOT, "bench"))
import peers  # noqa: E402

IMAGES = "/usr/share/datasets/fashion-mnist"
PATIENCE_S = 100


@functools.lru_cache
def _python():
    return peers.gloo_python()


def _run(path, *options, **environment):
    """What it prints."""
    if SLOW > 1:
        raise Skip("a sanitizer's runtime comes first in a program, not in Python")
    if _python() is None or not os.path.isdir(IMAGES):
        raise Skip("there are no images and no torch")
    library = os.path.join(os.environ["BUILD"], "libgradwire.so.0")
    result = subprocess.run([_python(), "-B", os.path.join(gwtest.ROOT, path), *options], capture_output=True, text=True,
                            timeout=PATIENCE_S, check=False, env=dict(os.environ, GRADWIRE_LIBRARY=library, **environment))
    equal(result.returncode, 0, f"exit code of {path} ({result.stdout[-1000:]} {result.stderr[-1500:]})")
    return result.stdout


def sharded_training_is_the_same():
    with Daemon(bystanders=False) as daemon:
        said = _run("examples/zero1.py", "--ranks=2", "--steps=10", GRADWIRE_SOCKET=daemon.socket)
    equal(len(re.findall("Sharded .*equal bit for bit", said)), 2, f"ranks whose parameters are the same: {said}")
    equal(len(re.findall("Alone .*differ", said)), 2, f"ranks whose parameters differ without an exchange: {said}")


def local_sgd_exchanges_less():
    with Daemon(bystanders=False) as daemon:
        said = _run("examples/local_sgd.py", "--ranks=2", "--steps=6", "--every=1,4", GRADWIRE_SOCKET=daemon.socket)
    equal(re.findall(r"^ +(\d+) +(\d+) .*equal bit for bit", said, re.M), [("1", "6"), ("4", "2")], f"rows of {said}")


def steps_of_ddp_are_measured():
    path = os.path.join(os.environ["BUILD"], "bench", "ddp-test.json")
    said = _run("bench/run-ddp", "--ranks=2", "--rounds=1", "--steps=2", "--buckets=25", f"--json={path}")
    contains(said, "DDP, Gloo", "DDP, gradwire", "times as fast")
    check(os.path.getsize(path) > 100, "the JSON is empty")


if __name__ == "__main__":
    main(globals())

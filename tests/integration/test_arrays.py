"""test_arrays.py - the Python package with NumPy arrays: every collective, groups, and what is refused

Needs a Python with NumPy: this one's, or the system's. The ranks are processes of this file.
"""

import os
import subprocess
import sys
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
N = 3


def _rank_main(rank, folder):
    """One rank: raises when anything is wrong."""
    sys.path.insert(0, os.path.join(ROOT, "python"))
    import numpy as np

    import gradwire

    def fails(kind, words, call, *arguments, **keywords):
        try:
            call(*arguments, **keywords)
        except kind as error:
            assert words in str(error), f"'{error}' does not say '{words}'"
            return
        raise AssertionError(f"{words}: nothing was raised")

    fails(gradwire.Error, "gradwire.init()", gradwire.barrier)
    fails(gradwire.ConnectionError, "/nonexistent", gradwire.Context, "/nonexistent/client.sock")
    path = os.path.join(folder, "id")
    if rank == 0:
        with open(path + ".new", "wb") as file:
            file.write(gradwire.Context().unique_id())
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        unique_id = file.read()
    fails(ValueError, "128 bytes", gradwire.init, rank, N, unique_id=unique_id[1:])
    group = gradwire.init(rank, N, unique_id=unique_id)
    assert (group.rank, group.size) == (rank, N)

    numbers = np.arange(100000)
    for kind in (np.float32, np.float64, np.int32, np.int64):
        array = (numbers + rank).astype(kind)
        gradwire.all_reduce(array)
        assert (array == N * numbers + sum(range(N))).all(), kind
    array = np.full((5, 7), rank, np.float16)
    gradwire.all_reduce(array, "avg")
    assert (array == sum(range(N)) / N).all()
    array = np.full(3, 1 + 1j * rank, np.complex64)
    gradwire.all_reduce(array)
    assert (array == N + 1j * sum(range(N))).all()
    works = [gradwire.all_reduce(np.full(10 + i, rank * i), "max", async_op=True) for i in range(20)]
    for i, work in enumerate(works):
        work.wait(timeout=60)
        assert work.done() and (work.arrays[0] == (N - 1) * i).all()
    whole = np.zeros((N, 5), np.int64)
    gradwire.all_gather(whole, np.full(5, rank))
    assert (whole == np.arange(N)[:, None]).all()
    piece = np.zeros(5, np.int64)
    gradwire.reduce_scatter(piece, whole)
    assert (piece == N * rank).all()
    array = np.full(7, rank, np.uint8)
    gradwire.broadcast(array, 1)
    assert (array == 1).all()
    array = np.full(7, rank + 1, np.int8)
    gradwire.reduce(array, 2)
    assert (array == (sum(range(N)) + N if rank == 2 else rank + 1)).all()
    gradwire.all_reduce(np.zeros(0, np.float32))
    gradwire.barrier()

    pool, memory = group.context.pool, np.zeros(10000, np.uint8)  # as if it were a device's
    start = memory.ctypes.data
    whole = pool.register(start, 5000)
    assert pool.register(start, 5000) is whole and pool.register(start + 100, 200) is whole
    other = pool.register(start + 6000, 1000)
    larger = pool.register(start + 4000, 2500)  # overlaps both, which end
    assert larger is not whole and pool.register(start + 4100, 10) is larger
    assert pool.register(start, 100) is not whole and pool.register(start + 6600, 400) is not other
    pool.forget(start, 10000)
    assert pool.register(start + 4000, 2500) is not larger

    right = []

    def many():
        """More at once than may be in flight, and than a group keeps buckets for."""
        arrays = [np.full(1000, float(rank)) for _ in range(200)]
        works = [gradwire.all_reduce(array, async_op=True) for array in arrays]
        for work in reversed(works):
            work.wait()
        right.append(all((array == 3).all() for array in arrays))
    threads = [threading.Thread(target=many) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True, True], right

    part = gradwire.split(rank % 2, -rank)
    assert (part.rank, part.size) == ([1, 0, 0][rank], [2, 1, 2][rank])
    array = np.full(4, rank, np.int64)
    gradwire.all_reduce(array, group=part)
    assert (array == [2, 1, 2][rank]).all()
    part.close()
    assert gradwire.split(-1 if rank == 0 else 0) is None or rank > 0

    fails(TypeError, "bool", gradwire.all_reduce, np.zeros(3, bool))
    fails(TypeError, "sum and avg", gradwire.all_reduce, np.zeros(3, np.complex64), "max")
    fails(TypeError, "list", gradwire.all_reduce, [1, 2])
    fails(ValueError, "ascontiguousarray", gradwire.all_reduce, np.zeros((4, 4))[:, ::2])
    fails(ValueError, "'mean'", gradwire.all_reduce, np.zeros(3), "mean")
    fails(ValueError, "'zip'", gradwire.all_reduce, np.zeros(3), codec="zip")
    fails(ValueError, "3 ranks", gradwire.all_gather, np.zeros(4), np.zeros(2))
    fails(ValueError, "type", gradwire.all_gather, np.zeros(6, np.float32), np.zeros(2))
    gradwire.check()
    gradwire.barrier()
    fails(gradwire.BucketError, "rank 1", gradwire.all_reduce, np.zeros(2 if rank == 1 else 3))
    fails(gradwire.BucketError, "rank 1", gradwire.check)
    part, work = gradwire.split(0), gradwire.all_reduce(np.zeros(3), async_op=True)
    while not work.done():
        time.sleep(0.001)
    gradwire.finish()
    fails(gradwire.GroupError, "closed", part.check)
    fails(gradwire.GroupError, "closed", work.wait)
    print("done", flush=True)


def _find_python():
    if ranks.SLOW > 1:
        raise ranks.Skip("a sanitizer's runtime comes first in a program, not in Python")
    for path in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([path, "-c", "import numpy"], capture_output=True, timeout=60, check=False).returncode == 0:
            return path
    raise ranks.Skip("no numpy")


def _run(folder, **variables):
    python = _find_python()
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1",
                       GRADWIRE_LIBRARY=os.path.join(os.environ["BUILD"], "libgradwire.so.0"), **variables)
    return [ranks.spawn([python, __file__, "rank", str(rank), folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        text=True, env=environment) for rank in range(N)]


def collectives_and_errors():
    with ranks.Daemon() as daemon:
        for rank, process in enumerate(_run(os.path.dirname(daemon.socket), GRADWIRE_SOCKET=daemon.socket)):
            output, errors = process.communicate(timeout=60 * ranks.SLOW)
            ranks.equal(output, "done\n", f"what rank {rank} said ({errors[-1500:]})")


AGAIN = """
import sys, numpy, gradwire
gradwire.init()
gradwire.barrier()
print("ready", flush=True)
other = sys.stdin.readline().strip()
try:
    gradwire.all_reduce(numpy.ones(5))
except gradwire.ConnectionError as error:
    print(error.status, flush=True)
group = gradwire.init(socket=other)
array = numpy.ones(5)
gradwire.all_reduce(array)
print(array.sum(), flush=True)
"""


def a_daemon_that_is_killed_is_told_and_another_one_serves():
    python = _find_python()
    with ranks.Daemon(bystanders=False, checks=False) as daemon, ranks.Daemon(bystanders=False) as other:
        process = ranks.spawn([python, "-c", AGAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"),
                                                  PYTHONDONTWRITEBYTECODE="1", GRADWIRE_SOCKET=daemon.socket,
                                                  GRADWIRE_LIBRARY=os.path.join(os.environ["BUILD"], "libgradwire.so.0")))
        ranks.equal(process.stdout.readline(), "ready\n", "what the trainer says first")
        ranks.kill(daemon.process)
        output, errors = process.communicate(other.socket + "\n", timeout=60 * ranks.SLOW)
        ranks.equal(output, "GW_ERR_DAEMON_GONE\n5.0\n", f"what it says then ({errors[-1000:]})")


def a_library_that_is_missing_or_another_is_named():
    for path, word in (("/nonexistent/lib.so", "not found"), ("libc.so.6", "gw_connect")):
        result = subprocess.run([sys.executable, "-c", "import gradwire; gradwire.version()"], capture_output=True, text=True,
                                env=dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"), PYTHONDONTWRITEBYTECODE="1",
                                         GRADWIRE_LIBRARY=path), timeout=60, check=False)
        ranks.contains(result.stderr, path, word, "GRADWIRE_LIBRARY")


if __name__ == "__main__" and sys.argv[1:2] == ["rank"]:
    _rank_main(int(sys.argv[2]), sys.argv[3])
elif __name__ == "__main__":
    import ranks
    ranks.main(globals(), 110)

"""test_users.py - trainers and daemon as different unprivileged users: the daemon opens the trainers' device memory

Ends within 2 minutes.
"""

import atexit
import os
import shutil
import subprocess
import tempfile

from gpu import SIMULATED, SLOW, Daemon, Skip, check, contains, equal, exchange, gwtest, join, main, prepare, program

DAEMON, USERS = 61001, (61002, 61003)  # numbers that belong to nobody
COUNTS = (1000, 1 << 20)  # elements: by the trainer's stream, by the daemon's copies


def _make_reachable():
    """Other users run the programs, too: where the build folder is closed to them, a copy that is not."""
    if os.getuid() != 0:
        raise Skip("it takes root to become other users")
    if subprocess.run(["setpriv", f"--reuid={DAEMON}", f"--regid={DAEMON}", "--clear-groups", "test", "-x",
                       program("gradwired")], check=False).returncode == 0:
        return
    folder = tempfile.mkdtemp(prefix="gw-test-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.chmod(folder, 0o755)
    shutil.copytree(gwtest.BUILD, os.path.join(folder, "build"), symlinks=True,
                    ignore=shutil.ignore_patterns("obj", "*.a", "bundle", "fuzz", "asan", "tsan", "ubsan", "test-logs"))
    for variable in ("LD_LIBRARY_PATH", "GRADWIRE_PLUGIN_DIR"):
        os.environ[variable] = os.environ.get(variable, "").replace(gwtest.BUILD, os.path.join(folder, "build"))
    gwtest.BUILD = os.path.join(folder, "build")


def _owner(pid):
    return os.stat(f"/proc/{pid}").st_uid


def _round(daemon, path, kind="malloc"):
    ranks = [daemon.rank(user=user, memory=f"device:{r}:{kind}") for r, user in enumerate(USERS)]
    equal([_owner(rank.pid) for rank in ranks], list(USERS), "users of the ranks")
    join(ranks)
    for count in COUNTS:
        for rank in ranks:
            equal(rank.ok(f"alloc b{count} {count * 4}"), path, "the path of the memory")
        for r, rank in enumerate(ranks):
            rank.ok(f"fill b{count} f32 {count} {r + 1} 1")
            rank.ok(f"bucket k{count} g all_reduce f32 sum {count} b{count}:0 b{count}:0")
        for _ in range(3):
            exchange(ranks, bucket=f"k{count}")
        for rank in ranks:  # each time the sum of two that are alike: 2 * 2 * (1 + 2 + 2i)
            equal(rank.ok(f"expect b{count} f32 {count} 12 8"), "0", f"wrong elements of {count}")
    uids = {b["uid"] for b in daemon.admin_json("buffers") if b["device"]}
    equal(uids, set(USERS), "owners of device memory at the daemon")
    for rank in ranks:
        rank.end()


def _with_users(kind, path):
    _make_reachable()
    with Daemon(user=DAEMON) as daemon:
        equal(_owner(daemon.pid), DAEMON, "the daemon's user")
        _round(daemon, path, kind)
        if kind == "pool" and not SIMULATED:  # what the driver opens once for each device and keeps; see test_lifetimes.py
            daemon.base_fds += len(USERS)


def memory_of_cuda_malloc():
    _with_users("malloc", "ipc")


def memory_of_cuMemCreate():
    _with_users("vmm", "vmm")


def memory_of_a_shared_pool():
    _with_users("pool", "pool")


def memory_of_the_default_pool():
    _with_users("async", "stream")


def a_daemon_of_root_serves_users():
    _make_reachable()
    with Daemon() as daemon:
        _round(daemon, "ipc")


def a_trainer_of_another_user_dies():
    _make_reachable()
    with Daemon(user=DAEMON) as daemon:
        ranks = [daemon.rank(user=user, memory=f"device:{r}") for r, user in enumerate(USERS)]
        join(ranks)
        prepare(ranks, count=1 << 20)
        exchange(ranks)
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        ranks[1].kill()
        reply = ranks[0].answer("GW_ERR_RANK_DIED", "rank 1", f"pid {ranks[1].pid}")
        check(reply.ms < 2000 * SLOW, f"told after {reply.ms} ms")
        contains(ranks[0].do("check g").text, "last=1")


if __name__ == "__main__":
    main(globals(), 60)

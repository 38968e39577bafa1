"""test_limits.py - quotas, descriptors and memory run out: the request is refused, with the limit's name"""

import os
import resource
import subprocess
import sys
import time

from ranks import (Daemon, Rank, Skip, check, contains, equal, exchange, gw, join, main, prepare, program, until)

MB = 1 << 20


def too_many_clients():
    with Daemon("--limits.clients=5") as daemon:
        daemon.rank()
        daemon.rank()
        late = daemon.rank(connect=False)
        equal(daemon.admin_json("status")["clients"], 5, "clients: the bystanders, two ranks and gwctl")
        daemon.rank()
        late.expect("GW_ERR_QUOTA", "connect", "limits.clients")
        daemon.ranks[0].close()
        until(lambda: late.do("connect").status == "GW_OK", "a place is free")


def too_many_clients_of_one_user():
    with Daemon("--limits.clients_per_uid=4", "--deadline.bootstrap_s=1") as daemon:
        for _ in range(2):
            daemon.rank()
        daemon.rank(connect=False).expect("GW_ERR_QUOTA", "connect", "limits.clients_per_uid", "uid 0" if
                                          os.getuid() == 0 else "uid")
        if os.getuid() == 0:
            daemon.rank(user=12345).ok("id")  # another user has limits of its own
        daemon.close_ranks()
        until(lambda: daemon.admin_json("status")["clients"] == 1, "the clients have gone")


def too_many_groups():
    with Daemon("--limits.groups_per_uid=4", "--deadline.bootstrap_s=2") as daemon:
        rank = daemon.rank()
        ids = [rank.ok("id") for _ in range(3)]
        rank.expect("GW_ERR_QUOTA", "id", "limits.groups_per_uid")
        for n, unique_id in enumerate(ids):
            rank.ok(f"join g{n} {unique_id} 1 0")
        rank.expect("GW_ERR_QUOTA", "id", "limits.groups_per_uid")
        rank.expect("GW_ERR_QUOTA", "split g0 h 0 0", "limits.groups_per_uid")
        rank.ok("leave g1")
        unique_id = rank.ok("id")  # and it is left alone: it goes after the bootstrap deadline
        rank.expect("GW_ERR_QUOTA", "id")
        until(lambda: rank.do("id").status == "GW_OK", "an id that nobody used has gone", 5)


def too_many_buffers():
    with Daemon("--limits.buffers_per_uid=6") as daemon:
        rank = daemon.rank()
        for n in range(4):
            rank.ok(f"alloc b{n} 4096")
        rank.expect("GW_ERR_QUOTA", "alloc b 4096", "limits.buffers_per_uid")
        rank.ok("release b0")
        rank.ok("register b 4096 1")


def too_many_bytes():
    with Daemon("--limits.buffer_bytes_per_uid=1M") as daemon:
        rank = daemon.rank()
        rank.ok("alloc b 1000000")
        rank.expect("GW_ERR_QUOTA", "alloc c 100000", "limits.buffer_bytes_per_uid")
        rank.expect("GW_ERR_QUOTA", "alloc c 10000000", "limits.buffer_bytes_per_uid")
        rank.ok("release b")
        rank.ok("alloc c 1000000")


def too_many_buckets():
    with Daemon("--limits.buckets_per_uid=10") as daemon:
        rank = daemon.group(1)[0]
        rank.ok("alloc b 4096")
        for n in range(8):
            rank.ok(f"bucket k{n} g all_reduce f32 sum 16 b:0 b:0")
        rank.expect("GW_ERR_QUOTA", "bucket k g all_reduce f32 sum 16 b:0 b:0", "limits.buckets_per_uid")
        rank.ok("drop k3")
        rank.ok("bucket k g all_reduce f32 sum 16 b:0 b:0")


def too_many_descriptors_of_one_user():
    with Daemon("--limits.fds_per_uid=16") as daemon:
        ranks = []
        for _ in range(10):
            rank = daemon.rank(connect=False)
            reply = rank.do("connect")
            if reply.status != "GW_OK":
                break
            ranks.append(rank)
        equal(reply.status, "GW_ERR_QUOTA", "the last connection")
        contains(reply.text, "limits.fds_per_uid")
        ranks[0].expect("GW_ERR_QUOTA", "alloc b 4096", "limits.fds_per_uid")
        daemon.close_ranks()
        until(lambda: daemon.admin_json("status")["clients"] == 1, "the clients have gone")


def refusals_leave_nothing_charged():
    with Daemon("--limits.buffers_per_uid=20", "--limits.buffer_bytes_per_uid=1M", "--limits.fds_per_uid=40") as daemon:
        with gw.Client(daemon.socket) as client:
            for _ in range(200):
                for fields in ({"bytes": 4096, "parts": 1}, {"bytes": 2 * MB, "parts": 1}, {"bytes": 4096, "parts": 100}):
                    try:
                        request = client.post("BufferCreate", **fields)
                        client.post("BufferPart", (), request, index=7, kind=1, bytes=4096)
                        client.answer(request)
                        raise AssertionError("a part out of order was taken")
                    except gw.Refused:
                        pass
            client.buffer(MB // 2)


def half_made_things_go_with_their_session():
    with Daemon() as daemon:
        for _ in range(20):
            client = gw.Client(daemon.socket)
            memory = gw.Memory(8192)
            request = client.post("BufferCreate", bytes=8192 * 9, parts=9)
            for index in range(8):
                client.post("BufferPart", [memory.fd], request, index=index, kind=1, bytes=8192)
            client.close()
            memory.close_fd()
            client = gw.Client(daemon.socket)
            group = client.joined(client.post_join(client.unique_id(), 1, 0))
            client.post("BucketCreate", group=group.handle, name="k", collective=1, type=1, redop=1, matrices=5)
            client.post("BucketLayout", (), client.last_request, matrix=[{"rows": 1, "columns": 1, "stride": 1}])
            client.close()


# ---- descriptors of the processes -----------------------------------------------------------------------


def the_daemon_runs_out_of_descriptors():
    with Daemon() as daemon:
        ready = daemon.ready(2)
        spare = 10
        daemon.spare_fds(spare)
        refused = 0
        ranks = []
        for _ in range(20):
            rank = daemon.rank(connect=False)
            reply = rank.do("connect")
            refused += reply.status != "GW_OK"
            ranks.append(rank)
            if reply.status != "GW_OK":
                check(reply.status in ("GW_ERR_FD_LIMIT", "GW_ERR_DAEMON_GONE", "GW_ERR_NO_DAEMON"), f"{reply}")
        check(2 <= 20 - refused <= spare, f"{20 - refused} connected with {spare} descriptors to spare")
        exchange(ready)  # those who are there go on
        daemon.check_bystanders()
        for rank in ranks:
            reply = rank.do("alloc b 4096")
            check(reply.status != "GW_OK" or refused, f"{reply}")
            rank.close()
        until(lambda: daemon.fd_count() <= daemon.base_fds + 6 + 10, "their descriptors are closed")
        daemon.spare_fds(None)
        again = daemon.ready(2)
        exchange(again)


def the_daemon_cannot_take_a_memfd_for_want_of_descriptors():
    with Daemon() as daemon:
        rank = daemon.rank()
        daemon.spare_fds(0)
        for _ in range(3):
            rank.expect("GW_ERR_FD_LIMIT", "alloc b 4096", "descriptor")
        daemon.spare_fds(None)
        rank.ok("alloc b 4096")


def the_daemon_cannot_make_a_group_for_want_of_descriptors():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(3)]
        unique_id = ranks[0].ok("id")
        daemon.spare_fds(3)
        for r, rank in enumerate(ranks):
            rank.send(f"join g {unique_id} 3 {r}")
        for rank in ranks:
            rank.answer("GW_ERR_FD_LIMIT")
        daemon.spare_fds(None)
        join(ranks)
        prepare(ranks)
        exchange(ranks)


def a_client_runs_out_of_descriptors():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(2)]
        lonely = daemon.rank(connect=False)
        lonely.ok("fds 0")
        lonely.expect("GW_ERR_FD_LIMIT", "connect", "descriptor")
        lonely.ok("fds 1")
        lonely.ok("connect")
        lonely.ok("fds 0")
        lonely.expect("GW_ERR_FD_LIMIT", "alloc b 4096", "descriptor")
        unique_id = ranks[0].ok("id")
        ranks[1].ok("fds 1")  # two come with GroupReady
        ranks[0].send(f"join g {unique_id} 2 0")
        ranks[1].expect("GW_ERR_FD_LIMIT", f"join g {unique_id} 2 1", "descriptor")
        ranks[0].answer("GW_OK")  # it came together; and then the other one had to leave
        reply = ranks[0].do("call g barrier f32 sum 0 - -")
        equal(reply.status, "GW_ERR_RANK_LEFT", "what the other sees")
        ranks[1].ok("fds 10")
        ranks[0].ok("leave g")
        join(ranks)
        prepare(ranks)
        exchange(ranks)


# ---- memory ---------------------------------------------------------------------------------------------


def _limit_address_space(pid, spare_bytes):
    if "-fsanitize" in _flags():
        raise Skip("sanitizers need address space without limit")
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        size = int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.prlimit(pid, resource.RLIMIT_AS, (size + spare_bytes, resource.RLIM_INFINITY))


def a_client_has_no_address_space_left():
    with Daemon() as daemon:
        rank = daemon.rank()
        _limit_address_space(rank.pid, 8 * MB)
        rank.expect("GW_ERR_NO_MEMORY", f"alloc b {64 * MB}")
        rank.ok("alloc b 4096")


def the_daemon_has_no_address_space_left():
    """The mapping fails; that request is refused, and the daemon goes on."""
    with Daemon() as daemon:
        rank = daemon.rank()
        _limit_address_space(daemon.pid, 8 * MB)
        rank.expect("GW_ERR_NO_MEMORY", f"alloc b {64 * MB}", "mmap")
        daemon.check_bystanders()
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        rank.ok(f"alloc b {64 * MB}")


def _flags():
    with open(program(".flags"), encoding="utf-8") as flags:
        return flags.read()


def _memory_cgroup(limit):
    """A folder in the memory controller, of either version, or Skip."""
    for root, key in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = f"{root}/gradwire-test-{os.getpid()}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            with open(f"{folder}/{key}", "w", encoding="ascii") as file:
                file.write(str(limit))
            return folder
        except OSError:
            os.rmdir(folder)
    raise Skip("no memory cgroup can be made here")


def a_client_reaches_the_limit_of_its_cgroup():
    """The kernel kills it while it allocates; its group hears so."""
    folder = _memory_cgroup(64 * MB)
    try:
        with Daemon() as daemon:
            ranks = daemon.ready(2)
            with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(ranks[1].pid))
            op = ranks[0].ok("submit k")
            ranks[0].send(f"wait g {op} -1")
            ranks[1].send(f"alloc big {512 * MB}")
            try:
                reply = ranks[1].recv()
                equal(reply.status, "GW_ERR_NO_MEMORY", "the allocation")
                ranks[1].kill()
            except AssertionError as error:
                contains(str(error), "has ended")
            ranks[0].answer("GW_ERR_RANK_DIED", f"pid {ranks[1].pid}")
    finally:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.rmdir(folder)
                break
            except OSError:
                time.sleep(0.05)


# ---- other users ----------------------------------------------------------------------------------------


def a_rank_of_another_user():
    if os.getuid() != 0:
        raise Skip("only root can start a rank as another user")
    with Daemon() as daemon:
        ranks = [daemon.rank(), daemon.rank(user=12345)]
        unique_id = ranks[0].ok("id")
        ranks[1].expect("GW_ERR_UNKNOWN_ID", f"join g {unique_id[:60]}{'0' * 40}{unique_id[100:]} 2 1")
        ranks[0].send(f"join g {unique_id} 2 0")
        ranks[1].ok(f"join g {unique_id} 2 1")  # it has the id
        ranks[0].answer("GW_OK")
        prepare(ranks)
        exchange(ranks)
        equal({c["uid"] for c in daemon.admin_json("clients") if c["name"] == "rank"}, {0, 12345}, "users shown")
        equal({b["uid"] for b in daemon.admin_json("buffers")}, {0, 12345}, "owners of buffers")


def another_user_does_not_reach_the_admin_socket():
    if os.getuid() != 0:
        raise Skip("only root can start gwctl as another user")
    with Daemon() as daemon:
        result = subprocess.run([program("gwctl"), "--socket", daemon.admin, "status"],
                                capture_output=True, text=True, user=12345, group=12345, extra_groups=[], check=False)
        equal(result.returncode, 1, "exit code of gwctl")
        contains(result.stderr, "ermission")


def a_socket_that_is_closed_to_others():
    if os.getuid() != 0:
        raise Skip("only root can start a rank as another user")
    with Daemon("--socket.client_mode=0600") as daemon:
        rank = Rank(daemon.socket, user=12345, connect=False)
        daemon.ranks.append(rank)
        rank.expect("GW_ERR_NO_DAEMON", "connect", "ermission", "socket.group")


# ---- the log ----------------------------------------------------------------------------------------

# A program that closes its error output's reader; Python's own disposition of SIGPIPE would be inherited.
NO_READER = """
import os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 2)
os.close(writer)
os.execv(sys.argv[1], sys.argv[1:])
"""


def a_log_that_takes_nothing_costs_only_the_log():
    """On a full disk, or in a pipe that nobody reads from any more."""
    for wrapper in (["sh", "-c", 'exec "$@" 2>/dev/full', "sh"], [sys.executable, "-c", NO_READER]):
        with Daemon("--log.level=debug", wrapper=wrapper) as daemon:
            ranks = daemon.ready(3)
            ranks[1].kill()
            for rank in (ranks[0], ranks[2]):
                until(lambda rank=rank: rank.do("check g").status == "GW_ERR_RANK_DIED", "the loss is known")
            equal(daemon.log(), "", "what reached the log")


if __name__ == "__main__":
    main(globals())

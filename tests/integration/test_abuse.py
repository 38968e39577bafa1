"""test_abuse.py - memory, slots and sockets as no library would use them

The bystanders' group works on beside every one of these, and no descriptor stays behind: see ranks.py.
"""

import fcntl
import os
import random
import signal
import socket
import tempfile
import threading
import time

from ranks import SLOW, Daemon, Skip, check, contains, equal, exchange, gw, main, until

MFD_HUGETLB = 4
MB = 1 << 20


def _offer(client, fds, n_bytes, part_bytes=None, **part):
    """Registers memory of one part; returns the handle, or the name and text of the refusal."""
    request = client.post("BufferCreate", bytes=n_bytes, parts=1)
    fields = {"index": 0, "kind": 1, "bytes": part_bytes or n_bytes, **part}
    client.post("BufferPart", fds, request, **fields)
    try:
        return client.answer(request).fields.buffer
    except gw.Refused as refusal:
        return refusal.status, refusal.text


def _refused(status, fd, n_bytes=8192, **part):
    with Daemon() as daemon, gw.Client(daemon.socket) as client:
        try:
            got = _offer(client, [fd] if fd >= 0 else [], n_bytes, **part)
        finally:
            if fd >= 0:
                os.close(fd)
        check(isinstance(got, tuple), "it was taken")
        check(got[0] == status, f"{got} instead of {status}")
        check(client.buffer(8192).handle > 0, "a good buffer was refused afterwards")


def _memfd(n_bytes=8192, seals=gw.F_SEAL_SHRINK, allocate=True, flags=os.MFD_ALLOW_SEALING):
    fd = os.memfd_create("abuse", os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, n_bytes)
    if allocate:
        os.posix_fallocate(fd, 0, n_bytes)
    if seals:
        fcntl.fcntl(fd, gw.F_ADD_SEALS, seals)
    return fd


# ---- what is no memfd that the daemon can take ----------------------------------------------------------


def a_memfd_that_can_shrink():
    _refused("GW_ERR_BUFFER_SEAL", _memfd(seals=0))


def a_memfd_sealed_against_growing_only():
    _refused("GW_ERR_BUFFER_SEAL", _memfd(seals=gw.F_SEAL_GROW))


def a_memfd_that_is_too_short():
    _refused("GW_ERR_BUFFER_SHORT", _memfd(4096))


def a_part_that_reaches_past_the_end():
    _refused("GW_ERR_BUFFER_SHORT", _memfd(8192), 8192, offset=4096)


def a_part_whose_end_overflows():
    _refused("GW_ERR_INVALID_ARGUMENT", _memfd(8192), part_bytes=(1 << 64) - 4096, offset=8192)


def a_memfd_of_holes():
    _refused("GW_ERR_BUFFER_HOLES", _memfd(allocate=False))


def a_memfd_with_one_hole():
    fd = _memfd(64 * 4096, seals=0)
    _punch(fd, 4096, 4096)
    fcntl.fcntl(fd, gw.F_ADD_SEALS, gw.F_SEAL_SHRINK)
    _refused("GW_ERR_BUFFER_HOLES", fd, 64 * 4096)


def a_memfd_that_cannot_be_written():
    """Sealed against writing: the daemon could not map it."""
    with Daemon() as daemon, gw.Client(daemon.socket) as client:
        fd = _memfd(seals=gw.F_SEAL_SHRINK | 8)
        got = _offer(client, [fd], 8192)
        os.close(fd)
        check(isinstance(got, tuple), "it was taken")


def a_memfd_of_huge_pages():
    try:
        fd = os.memfd_create("huge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | MFD_HUGETLB)
        os.ftruncate(fd, 2 * MB)
    except OSError as error:
        raise Skip(f"no huge pages: {error}") from None
    fcntl.fcntl(fd, gw.F_ADD_SEALS, gw.F_SEAL_SHRINK)
    _refused("GW_ERR_BUFFER_KIND", fd, 2 * MB)


def a_regular_file():
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.write(bytes(8192))
        file.flush()
        _refused("GW_ERR_BUFFER_KIND", os.dup(file.fileno()))


def a_file_of_shared_memory():
    """A tmpfs file can be truncated by anybody who can open it."""
    path = f"/dev/shm/gw-abuse-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    os.posix_fallocate(fd, 0, 8192)
    with Daemon() as daemon, gw.Client(daemon.socket) as client:
        got = _offer(client, [fd], 8192)
        os.close(fd)
        check(isinstance(got, tuple) and got[0] in ("GW_ERR_BUFFER_SEAL", "GW_ERR_BUFFER_KIND"), f"{got}")


def a_pipe():
    read, write = os.pipe()
    os.close(write)
    _refused("GW_ERR_BUFFER_KIND", read)


def a_socket():
    one, other = socket.socketpair()
    other.close()
    _refused("GW_ERR_BUFFER_KIND", one.detach())


def a_folder():
    _refused("GW_ERR_BUFFER_KIND", os.open("/", os.O_RDONLY))


def no_descriptor_at_all():
    _refused("GW_ERR_BUFFER_KIND", -1)


def two_descriptors_where_one_is_due():
    with Daemon() as daemon, gw.Client(daemon.socket) as client:
        fds = [_memfd(), _memfd()]
        request = client.post("BufferCreate", bytes=8192, parts=1)
        client.post("BufferPart", fds, request, index=0, kind=1, bytes=8192)
        for fd in fds:
            os.close(fd)
        packets = client.recv_all()
        equal([(p.name, gw.STATUS_NAMES[p.fields.status]) for p in packets], [("Error", "GW_ERR_PROTOCOL")], "packets")


def handles_of_devices_that_are_not_there():
    with Daemon() as daemon, gw.Client(daemon.socket) as client:
        for kind in (0, 2, 3, 4, 99, 2**32 - 1):
            equal(_offer(client, [], 8192, kind=kind, data=b"x" * 64)[0], "GW_ERR_UNSUPPORTED", f"kind {kind}")
        equal(_offer(client, [], 8192, data=b"x" * 60000)[0], "GW_ERR_INVALID_ARGUMENT", "60000 bytes of handle")


def buffers_of_impossible_sizes():
    with Daemon() as daemon, gw.Client(daemon.socket) as client:
        for fields in ({"bytes": 0, "parts": 1}, {"bytes": 4096, "parts": 0}, {"bytes": 4096, "parts": 5000},
                       {"bytes": 1 << 63, "parts": 1}, {"bytes": (1 << 64) - 1, "parts": 4096}):
            try:
                client.request("BufferCreate", **fields)
                raise AssertionError(f"{fields} was taken")
            except gw.Refused as refusal:
                check(refusal.status in ("GW_ERR_INVALID_ARGUMENT", "GW_ERR_QUOTA"), f"{fields}: {refusal}")


# ---- memory that changes under the daemon ---------------------------------------------------------------


class _Pair:
    """A group of a Python rank, whose memory is at our mercy, and a rank of the library."""

    def __init__(self, daemon, n_bytes=4 * MB):
        self.daemon = daemon
        self.client, self.rank = gw.Client(daemon.socket), daemon.rank()
        self.count = n_bytes // 4
        unique_id = self.client.unique_id()
        request = self.client.post_join(unique_id, 2, 0)
        self.rank.ok(f"join g {unique_id.hex()} 2 1")
        self.group = self.client.joined(request)
        self.memory = gw.Memory(n_bytes, seals=gw.F_SEAL_SHRINK)
        self.buffer = gw.Buffer(self.client, _offer(self.client, [self.memory.fd], n_bytes), [self.memory])
        self.bucket = self.group.bucket("k", self.buffer, count=self.count)
        self.rank.ok(f"alloc b {n_bytes}")
        self.rank.ok(f"bucket k g all_reduce f32 sum {self.count} b:0 b:0")

    def run(self, times, meanwhile=None):
        """Returns how the operations ended on both sides."""
        self.rank.send(f"loop g k {times}")
        ends = set()
        for _ in range(times):
            op = self.group.submit(self.bucket)
            if meanwhile:
                meanwhile()
            ends.add(self.group.wait(op, 20 * SLOW))
        return ends, self.rank.recv().status

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.client.close()
        self.memory.close_fd()


def _punch(fd, offset, length):
    check(gw._libc.fallocate(fd, 3, gw.ctypes.c_long(offset), gw.ctypes.c_long(length)) == 0,
          "no hole can be punched")


def holes_punched_while_operations_run():
    with Daemon() as daemon, _Pair(daemon) as pair:
        equal(pair.run(30, lambda: _punch(pair.memory.fd, 0, 4 * MB)), ({"GW_OK"}, "GW_OK"), "the operations")


def holes_punched_by_a_rank_of_the_library():
    with Daemon() as daemon:
        ranks = daemon.ready(2, count=MB)
        for _ in range(10):
            for rank in ranks:
                rank.ok("punch b:0 4194304")
            exchange(ranks)
            for rank in ranks:
                equal(rank.ok("expect b f32 1024 0"), "0", "wrong elements: holes are zeros")


def contents_that_change_while_operations_run():
    """The others get some sum of what was there; nothing else happens."""
    with Daemon() as daemon, _Pair(daemon) as pair:
        going = True

        def scribble():
            noise = random.randbytes(64 * 1024)
            while going:
                at = random.randrange(0, 4 * MB - len(noise))
                pair.memory.map[at:at + len(noise)] = noise

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            equal(pair.run(30), ({"GW_OK"}, "GW_OK"), "the operations")
        finally:
            going = False
            thread.join()


def a_memfd_that_grows():
    with Daemon() as daemon, _Pair(daemon) as pair:
        os.ftruncate(pair.memory.fd, 64 * MB)
        equal(pair.run(5), ({"GW_OK"}, "GW_OK"), "the operations")
        try:
            os.ftruncate(pair.memory.fd, 4096)
            raise AssertionError("a sealed memfd shrank")
        except PermissionError:
            pass


def one_memfd_registered_many_times():
    with Daemon() as daemon, _Pair(daemon) as pair:
        handles = [_offer(pair.client, [pair.memory.fd], 4 * MB) for _ in range(20)]
        equal(len(set(handles)), 20, "different handles")
        equal(pair.run(3), ({"GW_OK"}, "GW_OK"), "the operations")


def spans_of_two_buffers_that_are_one_memory():
    """Two registrations overlap where no check can see it: wrong sums for those who do it, and no more."""
    with Daemon() as daemon, _Pair(daemon) as pair:
        alias = gw.Buffer(pair.client, _offer(pair.client, [pair.memory.fd], 4 * MB - 4096, offset=4096), [pair.memory])
        bucket = pair.group.bucket("k", pair.buffer, alias, count=MB - 1024)
        pair.rank.ok("bucket k2 g all_reduce f32 sum 1047552 b:0 b:0 as=k")
        pair.rank.send("loop g k2 10")
        for _ in range(10):
            equal(pair.group.wait(pair.group.submit(bucket), 20 * SLOW), "GW_OK", "an operation")
        pair.rank.answer("GW_OK")


# ---- slots ----------------------------------------------------------------------------------------------


def slots_scribbled_over_while_operations_run():
    with Daemon("--deadline.bucket_s=2") as daemon, _Pair(daemon) as pair:
        going = True

        def scribble():
            while going:
                noise = random.randbytes(pair.group.slots.bytes)
                pair.group.slots.map[0:len(noise)] = noise

        thread = threading.Thread(target=scribble)
        thread.start()
        pair.rank.send("loop g k 1000000")
        try:
            for n in range(200):
                pair.group.channel.send("Submit", 0, (), gw.pack("Submit", bucket=pair.bucket, epoch=1, sequence=n + 1))
                time.sleep(0.002)
            daemon.check_bystanders()
        finally:
            going = False
            thread.join()
        pair.client.close()
        check(pair.rank.recv(20 * SLOW).status in ("GW_ERR_RANK_DIED", "GW_ERR_DEADLINE"), "how the loop ended")
        contains(pair.rank.do("check g").text, "rank 0")


def slots_scribbled_over_by_a_rank_of_the_library():
    with Daemon("--deadline.bucket_s=1") as daemon:
        for _ in range(10):
            ranks = daemon.ready(2, count=65536)
            for rank in ranks:
                rank.ok("submit k") if rank is ranks[0] else rank.ok("scribble g")
            ranks[0].ok("scribble g")
            ranks[1].do("submit k")
            for rank in ranks:
                rank.send("leave g")
            for rank in ranks:
                rank.answer("GW_OK")
                rank.close()


def an_input_that_never_becomes_ready():
    with Daemon("--deadline.late_ms=100", "--deadline.bucket_s=1") as daemon, _Pair(daemon) as pair:
        pair.group.submit(pair.bucket, ready=False)
        op = pair.rank.ok("submit k")
        reply = pair.rank.do(f"wait g {op} -1")
        equal(reply.status, "GW_ERR_DEADLINE", "the wait")
        contains(reply.text, "rank 0", f"pid {os.getpid()}")
        check("rank 1" not in reply.text, f"rank 1 was ready: {reply.text}")


# ---- sockets --------------------------------------------------------------------------------------------


def groups_that_end_while_many_inputs_never_become_ready():
    with Daemon() as daemon, gw.Client(daemon.socket) as client:
        for _ in range(10):
            groups = [gw.join([client])[0] for _ in range(3)]
            for group in groups:
                bucket = group.bucket("b", collective=gw.BARRIER)
                for _ in range(64):
                    group.submit(bucket, ready=False)
            time.sleep(0.01)
            for n in (1, 2, 0):  # the lane looks at a part of their operations at a time
                groups[n].leave()
                time.sleep(0.01)


def a_client_that_never_reads_its_answers():
    with Daemon() as daemon:
        client = gw.Client(daemon.socket)
        client.socket.setblocking(False)
        sent = 0
        try:
            for sent in range(200000):
                client.raw(gw.header(gw.TYPES["BufferRelease"], sent + 2, 2) + gw.pack("BufferRelease", buffer=99))
        except BlockingIOError:
            pass
        check(sent < 199999, "the daemon took everything, and kept the answers")
        before = daemon.memory()
        daemon.check_bystanders()
        time.sleep(0.3)
        check(daemon.memory() - before < 4 * MB, "memory grows for a client that does not read")
        client.close()


def an_operator_who_never_reads_the_answers():
    with Daemon() as daemon:
        client = gw.Client(daemon.admin)
        for n in range(50):
            try:
                client.socket.setblocking(False)
                client.raw(gw.header(22, n + 2, len(b"\n\x05trace")) + b"\n\x05trace")
            except BlockingIOError:
                break
        daemon.check_bystanders()
        equal(daemon.admin_json("status")["state"], "serving", "the state that another operator sees")
        client.close()


def completes_that_nobody_reads():
    with Daemon() as daemon, _Pair(daemon, 4096) as pair:
        pair.rank.send("loop g k 2000")
        for _ in range(2000):
            op = pair.group.submit(pair.bucket, notify=True)
            equal(pair.group.wait(op, 20 * SLOW), "GW_OK", "an operation")
        pair.rank.answer("GW_OK", "2000")
        check(daemon.stat("completes_dropped") > 0, "no Complete was dropped")


def connections_that_say_nothing():
    with Daemon("--deadline.hello_ms=300") as daemon:
        clients = [gw.Client(daemon.socket, hello=False) for _ in range(50)]
        for client in clients:
            packets = client.recv_all(5)
            equal([gw.STATUS_NAMES[p.fields.status] for p in packets], ["GW_ERR_TIMEOUT"], "the last word")
            client.close()


def a_client_that_stops_reading_does_not_hold_up_a_group():
    """One rank's session is full of unread answers; its group's operations go over the channel."""
    with Daemon() as daemon, _Pair(daemon, 4096) as pair:
        pair.client.socket.setblocking(False)
        try:
            for n in range(200000):
                pair.client.raw(gw.header(gw.TYPES["BufferRelease"], n + 100, 2) + gw.pack("BufferRelease", buffer=99))
        except BlockingIOError:
            pass
        equal(pair.run(50), ({"GW_OK"}, "GW_OK"), "the operations")


def a_rank_that_leaves_while_it_splits_and_hangs_up():
    """The answer to the split finds nobody, and that ends the session in the middle of its leaving."""
    with Daemon() as daemon:
        client = gw.Client(daemon.socket)
        id_ = client.unique_id()
        requests = [client.post_join(id_, 2, rank) for rank in range(2)]
        group, other = (gw.Group(client, client.answer(request)) for request in requests)
        os.kill(daemon.pid, signal.SIGSTOP)  # so that it finds all of it at once
        try:
            group.post_split(0, 0)
            client.post("GroupLeave", group=group.handle)
            client.close()
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        until(lambda: daemon.admin_json("status")["groups"] == 1, "only the bystanders' group is left")
        for left in (group, other):
            left.channel.close()


def noise_instead_of_messages():
    rng = random.Random(4711)
    with Daemon("--deadline.bootstrap_s=1") as daemon:  # some of it asks for a group's id
        for n in range(600):
            client = gw.Client(daemon.socket if n % 3 else daemon.admin, hello=n % 2 == 0)
            fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(rng.choice((0, 0, 1, 3, 8, 9, 40)))]
            try:
                for _ in range(rng.randrange(1, 6)):
                    body = rng.randbytes(rng.choice((0, 1, 7, 64, 500, 20000)))
                    kind = rng.randrange(4)
                    if kind == 0:
                        client.raw(body or b"x", fds)
                    elif kind == 1:
                        client.send(rng.randrange(0, 26), rng.randrange(0, 3), fds, body)
                    elif kind == 2:
                        client.send(rng.randrange(0, 26), 7, fds, body, n_fds=rng.randrange(0, 256))
                    else:
                        client.send(rng.randrange(0, 26), 7, (), body, body_bytes=rng.randrange(0, 1 << 32))
            except (gw.Closed, OSError):
                pass
            for fd in fds:
                os.close(fd)
            client.close()
        until(lambda: daemon.fd_count() <= daemon.base_fds + 6 + 2, "descriptors of the dead are closed")


def noise_on_a_channel():
    rng = random.Random(815)
    with Daemon() as daemon:
        for n in range(40):
            with _Pair(daemon, 4096) as pair:
                pair.rank.send("loop g k 1000000")
                fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(rng.choice((0, 1, 8)))]
                try:
                    pair.group.channel.send(rng.randrange(0, 26), rng.randrange(0, 2), fds if n % 2 else (),
                                            rng.randbytes(rng.randrange(0, 40)))
                except (gw.Closed, OSError):
                    pass
                for fd in fds:
                    os.close(fd)
                reply = pair.rank.recv()
                equal(reply.status, "GW_ERR_PROTOCOL_RANK", "how the other's loop ended")
                contains(reply.text, "rank 0", f"pid {os.getpid()}")


def a_bucket_table_of_huge_layouts_is_charged():
    with Daemon("--limits.buckets_per_uid=2000") as daemon, _Pair(daemon, 4096) as pair:
        matrices = [{"offset": 0, "rows": 0, "columns": 1, "stride": 1}] * 65000
        taken = 0
        try:
            for taken in range(10):
                pair.group.bucket(f"big{taken}", pair.buffer, count=1, matrices=matrices)
        except gw.Refused as refusal:
            equal(refusal.status, "GW_ERR_QUOTA", "the refusal")
        check(taken == 1, f"{taken} buckets of 65000 matrices were taken")


if __name__ == "__main__":
    main(globals())

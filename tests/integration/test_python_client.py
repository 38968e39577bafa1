#!/usr/bin/env python3
"""A client written from proto/PROTOCOL.md alone, against the daemon: what the page promises.

usage: BUILD=<build folder> python3 tests/integration/test_python_client.py
"""
import fcntl
import json
import os
import re
import signal
import struct
import sys
import termios
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import gwclient as gw  # noqa: E402
from gwtest import ROOT, Checks, Daemon, program, reap, spawn, wait_until  # noqa: E402

CREDITS = 64


class Ranks:
    """Clients that are the ranks of one group, each with one buffer and one all-reduce bucket in it."""

    def __init__(self, daemon, nranks, count=1024, parts=1):
        self.clients = [gw.Client(daemon.socket, f"rank {rank}") for rank in range(nranks)]
        self.groups = gw.join(self.clients)
        self.count = count
        self.buffers = [client.buffer(4 * count, parts=parts) for client in self.clients]
        self.buckets = self.declare("x", count=count)

    def declare(self, name, **fields):
        return [group.bucket(name, buffer, **fields) for group, buffer in zip(self.groups, self.buffers)]

    def fill(self):
        for rank, buffer in enumerate(self.buffers):
            buffer.write([rank + 1 + i % 7 for i in range(self.count)])

    def submit(self, buckets=None, **options):
        return [group.submit(bucket, **options) for group, bucket in zip(self.groups, buckets or self.buckets)]

    def wait(self, ops):
        return [group.wait(op) for group, op in zip(self.groups, ops)]

    def run(self, buckets=None, **options):
        return self.wait(self.submit(buckets, **options))

    def sums(self):
        n = len(self.groups)
        return [n * (n + 1) / 2 + n * (i % 7) for i in range(self.count)]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for client in self.clients:
            client.close()


def _is_read(channel):
    """Whether the daemon has taken all packets out of it."""
    return struct.unpack("i", fcntl.ioctl(channel.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0] == 0


def all_equal(values, expected):
    assert all(value == expected for value in values), f"got {values}, expected {expected} each"


def refused(status, call, *arguments, **options):
    """Asserts that a call is answered with an Error of that status; returns its text."""
    try:
        result = call(*arguments, **options)
    except gw.Refused as error:
        assert error.status == status, f"{error.status} in place of {status}: {error.text}"
        return error.text
    raise AssertionError(f"not refused with {status}, but {result}")


# ---- sessions ------------------------------------------------------------------------------------------


def test_sessions(checks, daemon):
    with checks("hello is answered with what the page says"), gw.Client(daemon.socket) as client:
        welcome = client.welcome
        assert (welcome.minor, welcome.features, len(welcome.node)) == (gw.MINOR, 0, 16), welcome
        assert welcome.host and welcome.version and welcome.max_ranks == 1024 and welcome.max_buffer_bytes == 64 << 30
        assert welcome.stream_bytes == 256 << 10

    with checks("a newer minor version gets ours"), gw.Client(daemon.socket, hello=False) as client:
        assert client.hello(minor=7, features=0xff).minor == gw.MINOR
    with checks("an older minor version gets its own"), gw.Client(daemon.socket, hello=False) as client:
        assert client.hello(minor=0).minor == 0

    with checks("answers come as requests finish, and by number"), gw.Client(daemon.socket) as client:
        join = client.post_join(client.unique_id(), 2, 0)
        buffer = client.buffer(4096)  # is answered while the join waits
        assert join not in client.answers
        with gw.Client(daemon.socket) as other:
            refused("GW_ERR_INVALID_ARGUMENT", other.joined, other.post_join(b"short", 2, 1))
        buffer.release()

    with checks("unknown fields are ignored"), gw.Client(daemon.socket) as client:
        client.send("GetUniqueId", 900, (), gw.varint(99 << 3) + gw.varint(5) + gw.varint(98 << 3 | 2) + b"\3abc")
        assert len(client.answer(900).fields.id) == 128

    with checks("a name that is no UTF-8 is shown escaped"), gw.Client(daemon.socket, hello=False) as client:
        client.request("Hello", client_name=b"\xff\x1b[31m")
        assert r"\xff\x1b[31m" in [item["name"] for item in daemon.admin_json("clients")]


# ---- what must not be done: section 12 of the page -----------------------------------------------------


def fatal(daemon, name, status, request, send, hello=True):
    """Sends something, and asserts the last word of the daemon and the end of the connection."""
    with gw.Client(daemon.socket, hello=hello) as client:
        send(client)
        packets = client.recv_all()
        assert packets, f"{name}: no last word"
        last = packets[-1]
        got = (last.name, last.request, gw.STATUS_NAMES.get(getattr(last.fields, "status", 0)))
        assert got == ("Error", request, status), f"{name}: {got}: {last}"


def test_breaches(checks, daemon):
    bad, hello = "GW_ERR_PROTOCOL", gw.pack("Hello", client_name="x")
    null = os.open("/dev/null", os.O_RDONLY)
    breaches = [
        ("a wrong magic number", 0, lambda c: c.send("GetUniqueId", 5, magic=0x4757)),
        ("a reserved field that is not 0", 0, lambda c: c.send("GetUniqueId", 5, reserved=1)),
        ("a body longer than the header says", 0, lambda c: c.send("GetUniqueId", 5, body=b"xx", body_bytes=1)),
        ("a body shorter than the header says", 0, lambda c: c.send("GetUniqueId", 5, body_bytes=4)),
        ("a packet shorter than a header", 0, lambda c: c.raw(b"\x47\x57")),
        ("a packet that is too long", 0, lambda c: c.send("Hello", 5, body=bytes(gw.BODY_MAX + 1))),
        ("more descriptors than announced", 0, lambda c: c.send("BufferPart", 5, [null, null], n_fds=1)),
        ("fewer descriptors than announced", 0, lambda c: c.send("BufferPart", 5, [null], n_fds=2)),
        ("nine descriptors", 0, lambda c: c.send("BufferPart", 5, [null] * 9)),
        ("request 0", 0, lambda c: c.send("GetUniqueId", 0)),
        ("a second Hello", 5, lambda c: c.send("Hello", 5, body=hello)),
        ("a descriptor with a message that takes none", 5, lambda c: c.send("GetUniqueId", 5, [null])),
        ("a body that is none", 5, lambda c: c.send("GroupJoin", 5, body=b"\x0a\x7f")),
        ("a BufferCreate amid another's parts", 6, lambda c: [
            c.send("BufferCreate", r, body=gw.pack("BufferCreate", bytes=8192, parts=2)) for r in (5, 6)]),
        ("a BucketCreate amid another's layout", 6, lambda c: [
            c.send("BucketCreate", r, body=gw.pack("BucketCreate", name="x", matrices=2)) for r in (5, 6)]),
    ]
    for name, request, send in breaches:
        with checks(f"ends the session: {name}"):
            fatal(daemon, name, bad, request, send)
    with checks("ends the session: anything before Hello"):
        fatal(daemon, "before Hello", bad, 5, lambda c: c.send("GetUniqueId", 5), hello=False)
    with checks("ends the session: another major version, with a header of this one"):
        with gw.Client(daemon.socket, hello=False) as client:
            client.send("Hello", 1, body=hello, major=2)
            assert client.recv().major == 1 and not client.recv_all()
    with checks("ends the session: an empty packet"), gw.Client(daemon.socket) as client:
        client.raw(b"")
        assert client.recv_all() == []
    with checks("costs the request alone: unknown types, other sockets, lost parts"):
        with gw.Client(daemon.socket) as client:
            for type_, status in ((99, "GW_ERR_UNKNOWN_REQUEST"), ("Welcome", "GW_ERR_UNKNOWN_REQUEST"),
                                  ("Submit", "GW_ERR_UNKNOWN_REQUEST"), ("AdminRequest", "GW_ERR_PERMISSION"),
                                  ("BufferPart", "GW_ERR_INVALID_ARGUMENT"),
                                  ("BucketLayout", "GW_ERR_INVALID_ARGUMENT")):
                client.last_request += 1
                client.send(type_, client.last_request)
                refused(status, client.answer, client.last_request)
            client.unique_id()
    os.close(null)


# ---- buffers -------------------------------------------------------------------------------------------


def test_buffers(checks, daemon):
    def offer(client, memory, n_bytes=8192, kind=1, **part):
        request = client.post("BufferCreate", bytes=n_bytes, parts=1)
        client.post("BufferPart", [memory.fd] if memory else [], request, kind=kind, **{"bytes": n_bytes, **part})
        return client.answer(request)

    page = gw.mmap.PAGESIZE
    with gw.Client(daemon.socket) as client:
        fine = gw.Memory(2 * page)
        for name, status, arguments in (
                ("not sealed", "GW_ERR_BUFFER_SEAL", [gw.Memory(2 * page, seals=0)]),
                ("with holes", "GW_ERR_BUFFER_HOLES", [gw.Memory(2 * page, allocate=False)]),
                ("too short", "GW_ERR_BUFFER_SHORT", [gw.Memory(page), 2 * page]),
                ("no descriptor", "GW_ERR_BUFFER_KIND", [None]),
                ("of a kind this daemon has no backend for", "GW_ERR_UNSUPPORTED", [fine, 2 * page, 2])):
            with checks(f"a memfd {name} is refused with {status}"):
                refused(status, offer, client, *arguments)
        with checks("a part at an odd offset, or of the wrong length, is refused"):
            refused("GW_ERR_INVALID_ARGUMENT", offer, client, fine, page, offset=512)
            refused("GW_ERR_INVALID_ARGUMENT", offer, client, fine, 2 * page, bytes=page)
        with checks("a device whose name is too long is refused"):
            refused("GW_ERR_INVALID_ARGUMENT", client.request, "BufferCreate", bytes=1, parts=1, device="GPU-" + 70 * "1")
        with checks("parts that follow a refused one get no answer of their own"):
            request = client.post("BufferCreate", bytes=3 * page, parts=3)
            for index in (0, 2, 2):
                client.post("BufferPart", [fine.fd], request, index=index, kind=1, bytes=page)
            refused("GW_ERR_INVALID_ARGUMENT", client.answer, request)
            client.unique_id()
            assert not client.answers, client.answers
        with checks("a released buffer is gone"):
            buffer = client.buffer(100)
            buffer.release()
            refused("GW_ERR_NOT_FOUND", buffer.release)


# ---- operations ----------------------------------------------------------------------------------------


def test_all_reduce(checks, daemon):
    with Ranks(daemon, 2) as ranks:
        with checks("an all-reduce of two Python ranks"):
            ranks.fill()
            all_equal(ranks.run(), "GW_OK")
            all_equal([buffer.read(1024) for buffer in ranks.buffers], ranks.sums())
            all_equal([(g.slots.last_completed, g.slots.failed_ops, g.slots.status) for g in ranks.groups], (1, 0, 0))
        with checks("Complete comes for those who asked, with its times"):
            ops = [ranks.groups[0].submit(ranks.buckets[0], notify=True)]
            time.sleep(0.05)  # two channels that are ready at once are read in any order
            ops.append(ranks.groups[1].submit(ranks.buckets[1]))
            all_equal(ranks.wait(ops), "GW_OK")
            complete = ranks.groups[0].channel.recv()
            assert (complete.name, complete.request, complete.fields.sequence, complete.fields.status) == \
                ("Complete", 0, ops[0], 0) and complete.fields.last_rank == 1, complete
            assert complete.fields.reduce_ns > 0
            try:
                raise AssertionError(f"rank 1 did not ask for {ranks.groups[1].channel.recv(0.1)}")
            except TimeoutError:
                pass
        with checks("ready may be written after Submit: the lane looks for it"):
            ranks.fill()
            ops = ranks.submit(ready=False)
            ranks.groups[0].slots.ready(ops[0])
            try:
                raise AssertionError(f"ended without rank 1's ready: {ranks.groups[0].wait(ops[0], 0.2)}")
            except TimeoutError:
                pass
            timer = threading.Timer(0.05, ranks.groups[1].slots.ready, [ops[1]])
            timer.start()
            all_equal(ranks.wait(ops), "GW_OK")
            timer.join()
            all_equal([buffer.read(1024) for buffer in ranks.buffers], ranks.sums())
        with checks("ready may be written, and Submit follow later"):
            for group in ranks.groups:
                group.slots.ready(group.sequence + 1)
            all_equal(ranks.run(ready=False), "GW_OK")
        with checks("300 operations, slots used again and again"):
            for _ in range(300):
                all_equal(ranks.run(), "GW_OK")
        with checks("ranks leave in order, and their memory comes back"):
            for group in ranks.groups:
                group.leave()
            assert all(group.client is not None for group in ranks.groups)
            for buffer in ranks.buffers:
                buffer.release()
            all_equal([item["buffers"] for item in daemon.admin_json("clients") if item["role"] == "client"], 0)

    with checks("a Python rank and a rank of libgradwire"), gw.Client(daemon.socket) as client:
        count, path = 1 << 20, os.path.join(daemon.dir, "id")
        with open(path, "wb") as file:
            file.write(client.unique_id())
        request = client.post_join(open(path, "rb").read(), 2, 0)
        other = spawn([program("examples/allreduce"), "1", "2", path], stdout=-1, text=True,
                      env={**os.environ, "GRADWIRE_SOCKET": daemon.socket})
        group, buffer = client.joined(request), client.buffer(4 * count)
        buffer.write([0.0] * count)
        assert group.run(group.bucket("all_reduce", buffer, redop=gw.AVG, count=count,
                                      no_error_feedback=1)) == "GW_OK"  # as gw_all_reduce has it
        assert set(buffer.read(count)) == {0.5}
        output = other.stdout.read()
        assert reap(other) == 0 and "the average is 0.5" in output, output


def test_collectives(checks, daemon):
    n = 3
    with Ranks(daemon, n, count=64) as ranks:
        def run(name, data, expected, read=4, **fields):
            with checks(name):
                for rank, buffer in enumerate(ranks.buffers):
                    buffer.write(data(rank))
                buckets = [group.bucket(name, buffer, **{k: v(rank) if callable(v) else v for k, v in fields.items()})
                           for rank, (group, buffer) in enumerate(zip(ranks.groups, ranks.buffers))]
                all_equal(ranks.run(buckets), "GW_OK")
                for rank, buffer in enumerate(ranks.buffers):
                    got = buffer.read(read, offset=fields["recv_offset"](rank) if "recv_offset" in fields else 0)
                    assert got == expected(rank), f"rank {rank}: {got}, expected {expected(rank)}"

        same = lambda value: lambda rank: value  # noqa: E731
        own = lambda rank: [10 * rank + i for i in range(12)]  # noqa: E731
        for redop, expected in ((gw.SUM, 33), (gw.AVG, 11), (gw.MIN, 1), (gw.MAX, 21), (gw.PROD, 231)):
            run(f"all_reduce, operation {redop}", lambda rank: [10 * rank + 1], same([expected]), 1,
                collective=gw.ALL_REDUCE, redop=redop, count=1)
        run("reduce_scatter in place", own, lambda rank: [3 * i + 30 for i in range(4 * rank, 4 * rank + 4)],
            collective=gw.REDUCE_SCATTER, count=4, recv_offset=lambda rank: 16 * rank)
        run("all_gather", own, same([0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]), 12, collective=gw.ALL_GATHER,
            count=4, recv_offset=same(128))
        run("broadcast from rank 2", own, same([20, 21, 22, 23]), collective=gw.BROADCAST, count=4, root=2)
        run("reduce to rank 1", own, lambda rank: [30, 33, 36, 39] if rank == 1 else own(rank)[:4],
            collective=gw.REDUCE, count=4, root=1)
        with checks("barrier"):
            barriers = [group.bucket("end", collective=gw.BARRIER) for group in ranks.groups]
            first = [ranks.groups[r].submit(barriers[r]) for r in (0, 1)]
            try:
                raise AssertionError(f"it did not wait for rank 2: {ranks.groups[0].wait(first[0], 0.2)}")
            except TimeoutError:
                pass
            all_equal(ranks.wait(first + [ranks.groups[2].submit(barriers[2])]), "GW_OK")
        with checks("an operation of no elements"):
            all_equal(ranks.run(ranks.declare("nothing", count=0)), "GW_OK")
        for type_, value in ((gw.F64, 3.5), (gw.I8, -3), (gw.U8, 7), (gw.I32, -70000), (gw.I64, 1 << 40)):
            with checks(f"type {type_}"):
                for buffer in ranks.buffers:
                    buffer.write([value] * 5, type_)
                all_equal(ranks.run(ranks.declare(f"type {type_}", count=5, type=type_)), "GW_OK")
                all_equal([buffer.read(5, type_) for buffer in ranks.buffers], [3 * value] * 5)


def test_parts(checks, daemon):
    with checks("buffers of several memfds are one range"), Ranks(daemon, 2, count=5000, parts=5) as ranks:
        ranks.fill()
        all_equal(ranks.run(), "GW_OK")
        all_equal([buffer.read(5000) for buffer in ranks.buffers], ranks.sums())
    with Ranks(daemon, 2) as ranks:
        layout = [{"offset": 4 * (1 << 33) + 4 * i, "rows": 1, "columns": 1 << 28, "stride": 1 << 28} for i in range(2)]
        with checks("a layout that does not fit is refused"):
            refused("GW_ERR_SPAN", ranks.declare, "no", count=1024, matrices=layout)
        layout = [{"offset": i // 4, "rows": 1, "columns": i % 4 == 3, "stride": 1 << 40} for i in range(4000)]
        assert len(gw.pack("BucketLayout", matrix=layout)) < gw.BODY_MAX
        layout = (layout + [{"offset": 1000, "rows": 24, "columns": 1, "stride": 1}]
                  + [{"offset": 1 << 40, "rows": 0, "columns": 1 << 40, "stride": 1 << 41}] * 4000)
        with checks("a layout of more than 64 KiB comes in several messages"):
            assert len(gw.pack("BucketLayout", matrix=layout)) > gw.BODY_MAX
            all_equal(ranks.run(ranks.declare("layout", count=1024, matrices=layout)), "GW_OK")
            all_equal([item["matrices"] for item in daemon.admin_json("buckets") if item["name"] == "layout"], 8001)
        with checks("ranks with other layouts do not match"):
            buckets = [group.bucket("l", buffer, count=1024, matrices=layout[4000 + rank:4001 + rank])
                       for rank, (group, buffer) in enumerate(zip(ranks.groups, ranks.buffers))]
            all_equal(ranks.run(buckets), "GW_ERR_MISMATCH")
        with checks("more matrices than announced are refused"):
            group = ranks.groups[0]
            request = group.client.post("BucketCreate", group=group.handle, name="m", matrices=1)
            group.client.post("BucketLayout", (), request, matrix=layout[:2])
            refused("GW_ERR_INVALID_ARGUMENT", group.client.answer, request)
        with checks("spans are checked"):
            for status, fields in (("GW_ERR_SPAN", {"count": 1025}), ("GW_ERR_SPAN", {"count": 1 << 62}),
                                   ("GW_ERR_SPAN", {"count": 1, "send_offset": 2}),
                                   ("GW_ERR_SPAN", {"count": 8, "recv_offset": 4}),
                                   ("GW_ERR_NOT_FOUND", {"count": 1, "recv": gw.Buffer(None, 77, [])}),
                                   ("GW_ERR_INVALID_ARGUMENT", {"count": 1, "type": 9}),
                                   ("GW_ERR_INVALID_ARGUMENT", {"count": 1, "priority": 128}),
                                   ("GW_ERR_UNSUPPORTED", {"count": 1, "codec": 99})):
                refused(status, ranks.groups[0].bucket, "s", ranks.buffers[0], **fields)


# ---- groups --------------------------------------------------------------------------------------------


def test_split(checks, daemon):
    with Ranks(daemon, 5) as ranks:
        with checks("split by color, ordered by key, a negative color is in none"):
            parts = gw.split(ranks.groups, [0, 1, 0, 1, -1], [5, 0, -5, 0, 0])
            got = [part and (part.rank, part.nranks) for part in parts]
            assert got == [(1, 2), (0, 2), (0, 2), (1, 2), None], got
            assert len({part.handle for part in parts[:1]} | {ranks.groups[0].handle}) == 2
        with checks("the parts work, and so does the whole"):
            ranks.fill()
            pair = [(parts[r], ranks.buffers[r]) for r in (0, 2)]
            ops = [(part, part.submit(part.bucket("p", buffer, count=1))) for part, buffer in pair]
            all_equal([part.wait(op) for part, op in ops], "GW_OK")
            all_equal([buffer.read(1) for _, buffer in pair], [4.0])
            all_equal(ranks.run(), "GW_OK")
        with checks("a part fails alone"):
            parts[1].abort("enough")
            wait_until(lambda: parts[3].slots.status, what="the failure")
            all_equal(ranks.run(), "GW_OK")
            assert parts[0].slots.status == 0


def test_window(checks, daemon):
    with Ranks(daemon, 2) as ranks, checks("submits beyond the credits stall, and go on"):
        ahead, behind = ranks.groups
        assert ahead.credits == CREDITS
        extra = 40
        ops = [ahead.submit(ranks.buckets[0]) for _ in range(CREDITS + extra)]
        try:
            raise AssertionError(f"ended without rank 1: {ahead.wait(ops[0], 0.2)}")
        except TimeoutError:
            pass
        assert ahead.slots.status == 0 and daemon.admin_json("groups")[0]["ranks"][0]["submitted"] == CREDITS
        for _ in ops:
            last = behind.submit(ranks.buckets[1])
        assert ahead.wait(ops[-1]) == behind.wait(last) == "GW_OK"
        wait_until(lambda: ahead.slots.last_completed == len(ops), what="last_completed")
        assert ahead.wait(ops[0]) == "GW_OK"  # its slot was used again: the header tells
    with Ranks(daemon, 2) as ranks, checks("a rank that stalls is freed when its group fails"):
        ops = [ranks.groups[0].submit(ranks.buckets[0]) for _ in range(CREDITS + 10)]
        ranks.groups[1].abort()
        all_equal([ranks.groups[0].wait(op) for op in ops], "GW_ERR_ABORTED")


def test_failures(checks, daemon):
    with checks("abort fails the group on every rank, with the reason"), Ranks(daemon, 3) as ranks:
        all_equal(ranks.run(), "GW_OK")
        op = ranks.groups[0].submit(ranks.buckets[0])
        ranks.groups[2].abort("loss is \x1b NaN")
        assert ranks.groups[0].wait(op) == "GW_ERR_ABORTED"
        all_equal([g.slots.status for g in ranks.groups], gw.STATUS["GW_ERR_ABORTED"])
        all_equal([g.slots.last_completed for g in ranks.groups], 1)
        message = ranks.groups[1].slots.message
        assert re.match(r"rank 2 \(host .+, pid \d+\) aborted the group: loss is \\x1b NaN$", message), message
        ranks.groups[0].abort("again")  # changes nothing
        ranks.groups[0].leave()
        assert ranks.groups[1].slots.message == message

    with Ranks(daemon, 2) as ranks:
        with checks("a mismatch fails one operation, and shows both versions"):
            others = ranks.declare("y", count=1024)
            all_equal(ranks.run([ranks.buckets[0], others[1]]), "GW_ERR_MISMATCH")
            all_equal([(g.slots.failed_ops, g.slots.status) for g in ranks.groups], (1, 0))
            message = ranks.groups[0].slots.message
            assert "operation 1 " in message and "'x'" in message and "'y'" in message, message
            all_equal(ranks.run(), "GW_OK")
            all_equal([g.slots.last_completed for g in ranks.groups], 2)

    breaches = {
        "a gap in the sequence": lambda group, bucket: group.submit(bucket, sequence=2),
        "sequence 0": lambda group, bucket: group.submit(bucket, sequence=0, ready=False),
        "another epoch": lambda group, bucket: group.submit(bucket, epoch=2),
        "an unknown bucket": lambda group, bucket: group.submit(bucket + 1),
        "another message": lambda group, bucket: group.channel.send("Hello"),
        "a body that is none": lambda group, bucket: group.channel.send("Submit", body=b"\x08"),
        "descriptors": lambda group, bucket: group.channel.send("Submit", 0, [0], gw.pack("Submit", bucket=bucket)),
        "bytes": lambda group, bucket: group.channel.raw(b"hello"),
    }
    for name, breach in breaches.items():
        with checks(f"fails the group, not the session: {name} on the channel"), Ranks(daemon, 2) as ranks:
            op = ranks.groups[0].submit(ranks.buckets[0])
            breach(ranks.groups[1], ranks.buckets[1])
            assert ranks.groups[0].wait(op) == "GW_ERR_PROTOCOL_RANK"
            assert ranks.groups[0].slots.message.startswith("rank 1 (host "), ranks.groups[0].slots.message
            assert ranks.groups[1].wait(1) == "GW_ERR_PROTOCOL_RANK"
            ranks.groups[1].leave()
            groups = gw.join(ranks.clients)  # the sessions and buffers go on
            buckets = [g.bucket("x", b, count=1) for g, b in zip(groups, ranks.buffers)]
            all_equal([g.wait(op) for g, op in [(g, g.submit(b)) for g, b in zip(groups, buckets)]], "GW_OK")

    with checks("a rank that dies is named"), Ranks(daemon, 3) as ranks:
        all_equal(ranks.run(), "GW_OK")
        op = ranks.groups[0].submit(ranks.buckets[0])
        wait_until(lambda: _is_read(ranks.groups[0].channel), what="the submission is read before the death is seen")
        ranks.clients[1].close()
        assert ranks.groups[0].wait(op) == "GW_ERR_RANK_DIED"
        message = ranks.groups[0].slots.message
        assert re.match(r"rank 1 \(host .+, pid \d+\) died or disconnected; operation 2, all_reduce 'x' f32 sum x1024, "
                        r"waited for it$", message), message
        wait_until(lambda: ranks.groups[2].slots.status, what="the failure at rank 2")
        all_equal([ranks.groups[r].slots.last_completed for r in (0, 2)], 1)
        assert ranks.groups[2].slots.message == message

    with checks("a rank that leaves is missed by the next operation only"), Ranks(daemon, 2) as ranks:
        all_equal(ranks.run(), "GW_OK")
        ranks.clients[1].request("GroupLeave", group=ranks.groups[1].handle)
        assert ranks.groups[1].channel.is_closed() and ranks.groups[0].slots.status == 0
        assert ranks.groups[0].run(ranks.buckets[0]) == "GW_ERR_RANK_LEFT"

    with checks("who waits for a join hears that another has died"):
        with gw.Client(daemon.socket) as client, gw.Client(daemon.socket) as other:
            id_ = client.unique_id()
            request = client.post_join(id_, 3, 0)
            other.post_join(id_, 3, 1)
            other.request("GetUniqueId")
            other.close()
            assert "while the group was forming" in refused("GW_ERR_RANK_DIED", client.joined, request)
            refused("GW_ERR_RANK_DIED", client.joined, client.post_join(id_, 3, 0))

    with checks("a bucket that is freed, and one whose buffer is released, are gone"), Ranks(daemon, 1) as ranks:
        group, client = ranks.groups[0], ranks.clients[0]
        group.free_bucket(ranks.buckets[0])
        refused("GW_ERR_NOT_FOUND", group.free_bucket, ranks.buckets[0])
        bucket = group.bucket("z", ranks.buffers[0], count=1)
        assert group.run(bucket) == "GW_OK"
        ranks.buffers[0].release()
        refused("GW_ERR_NOT_FOUND", client.request, "BucketFree", group=group.handle, bucket=bucket)


# ---- admin ---------------------------------------------------------------------------------------------


def documented_fields(command):
    """The names in the row of a command in section 14 of the page."""
    with open(os.path.join(ROOT, "proto/PROTOCOL.md"), encoding="utf-8") as file:
        row = re.search(rf"^\| {command} \|.*?\| (?:object|array of): (.*) \|$", file.read(), re.M).group(1)
    row = re.sub(r"; (?:while|over) .*", "", re.sub(r"\([^)]*\)", "", row)).replace("; once it has come together also", ",")
    return [word.strip() for word in row.split(",")]


def test_admin(checks, daemon):
    with Ranks(daemon, 2) as ranks, gw.Client(daemon.admin) as admin:
        all_equal(ranks.run(), "GW_OK")
        ranks.clients[0].unique_id()
        for command in ("status", "clients", "groups", "buffers", "buckets", "config", "trace"):
            with checks(f"admin: {command} has the documented fields"):
                document = json.loads(admin.admin(command))
                if isinstance(document, list):
                    assert document
                    document = max(document, key=len)
                assert list(document) == documented_fields(command) or \
                    sorted(document) == sorted(documented_fields(command)), (list(document), documented_fields(command))
        with checks("admin: stats and trace"):
            stats = json.loads(admin.admin("stats"))
            assert {"name", "kind", "unit", "help", "value"} == set(stats["stats"][0]) and len(stats["groups"]) == 2
            kinds = {event["kind"] for event in json.loads(admin.admin("trace"))["events"]}
            assert {"submit", "done"} <= kinds, kinds
        with checks("admin: what does not exist is refused"):
            refused("GW_ERR_UNKNOWN_REQUEST", admin.admin, "frobnicate")
            refused("GW_ERR_INVALID_ARGUMENT", admin.admin, "kick")
            refused("GW_ERR_NOT_FOUND", admin.admin, "kick", "77777")
            refused("GW_ERR_PERMISSION", admin.unique_id)
        with checks("admin: kick ends a session, its group hears why"):
            victim = [c for c in json.loads(admin.admin("clients")) if c["name"] == "rank 1"][-1]
            admin.admin("kick", str(victim["id"]))
            assert ranks.groups[0].run(ranks.buckets[0]) == "GW_ERR_KICKED"


def test_ends(checks):
    with checks("beyond the limit a client hears why"), Daemon("--limits.clients_per_uid=2") as daemon:
        with gw.Client(daemon.socket), gw.Client(daemon.socket):
            assert "limits.clients_per_uid" in refused("GW_ERR_QUOTA", gw.Client, daemon.socket)
        daemon.stop()
    with checks("no Hello in time"), Daemon("--deadline.hello_ms=100") as daemon:
        with gw.Client(daemon.socket, hello=False) as client:
            refused("GW_ERR_TIMEOUT", client.answer, 1)
            assert not client.recv_all()
    with checks("draining: no new session, no new id; groups go on"), Daemon("--drain.timeout_s=20") as daemon:
        with Ranks(daemon, 2) as ranks:
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait_log("draining")
            refused("GW_ERR_DRAINING", gw.Client, daemon.socket)
            refused("GW_ERR_DRAINING", ranks.clients[0].unique_id)
            all_equal(ranks.run(), "GW_OK")
            for group in ranks.groups:
                group.leave()
            assert ranks.clients[0].recv_all() == []
        assert reap(daemon.process) == 0
    with checks("the daemon's death frees who waits"), Daemon() as daemon, Ranks(daemon, 2) as ranks:
        op = ranks.groups[0].submit(ranks.buckets[0])
        daemon.process.kill()
        assert ranks.groups[0].wait(op) == "GW_ERR_DAEMON_GONE"


def main():
    checks = Checks()
    with Daemon() as daemon:
        before = daemon.fd_count()
        for test in (test_sessions, test_breaches, test_buffers, test_all_reduce, test_collectives, test_parts,
                     test_split, test_window, test_failures, test_admin):
            test(checks, daemon)
            daemon.assert_alive()
        with checks("no descriptor is left behind"):
            daemon.wait_fd_count(before)
        with checks("the daemon ends in good order"):
            daemon.stop()
    test_ends(checks)
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())

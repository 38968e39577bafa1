"""test_abuse.py - handles of device memory as no library would send them, and devices that fail under others

The memory is real: lend.c allocates it and hands out its handles. What is told about them is not. Ends within 20 s.
"""

import os
import random
import socket
import threading
import time

from gpu import SIMULATED, SLOW, Daemon, Skip, check, device_states, equal, main, program, reap, spawn, until
from ranks import gw

MB = 1 << 20
IPC, VMM, POOL = 2, 3, 4


class Memory:
    """One allocation, and what it takes to open it."""

    def __init__(self, lender, kind, answer, fds):
        words = answer.split(" ")
        self.lender, self.kind, self.number, self.bytes = lender, kind, int(words[0]), int(words[1])
        self.data, self.fds = bytes.fromhex(words[2]), fds

    def part(self, **lies):
        truth = {"index": 0, "kind": self.kind, "offset": 0, "bytes": self.bytes, "data": self.data,
                 "handle_bytes": self.bytes if self.kind == VMM else 0}
        return {**truth, **lies}

    def fill(self, value):
        self.lender.do(f"fill {self.number} {value}")

    def wrong(self, value, count):
        return int(self.lender.do(f"wrong {self.number} {value} {count}")[0])

    def free(self):
        self.lender.do(f"free {self.number}")
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Lender:
    def __init__(self, device=0):
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30 * SLOW)
        self.process = spawn([program("tests/gpu/lend"), str(device)], stdin=other)
        other.close()
        digits = self.receive()[0][4:]
        self.uuid = "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))

    def receive(self):
        text, fds, _, _ = socket.recv_fds(self.socket, 4096, 1)
        check(text, f"pid {self.process.pid}, which lends memory, has ended with status {self.process.poll()}")
        return text.decode(), list(fds)

    def do(self, command):
        self.socket.send(command.encode())
        return self.receive()

    def memory(self, kind, n_bytes):
        return Memory(self, kind, *self.do(f"{ {IPC: 'ipc', VMM: 'vmm', POOL: 'pool'}[kind]} {n_bytes}"))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.socket.close()
        reap(self.process)


def _offer(client, device, parts):
    """Registers parts, (fields, descriptors) each; returns a buffer, or the name of the refusal."""
    n_bytes = sum(fields["bytes"] for fields, _ in parts)
    request = client.post("BufferCreate", bytes=n_bytes, parts=len(parts), device=device)
    for fields, fds in parts:
        client.post("BufferPart", fds, request, **fields)
    try:
        return gw.Buffer(client, client.answer(request, 30 * SLOW).fields.buffer, [])
    except gw.Refused as refusal:
        return refusal.status


def _own(client, lender, memory):
    buffer = _offer(client, lender.uuid, [(memory.part(), memory.fds)])
    check(isinstance(buffer, gw.Buffer), f"kind {memory.kind} was refused: {buffer}")
    return buffer


# ---- what is told of memory --------------------------------------------------------------------------------


def lies_about_memory_are_refused_and_the_truth_is_not():
    far = (1 << 64) - 4096
    lies = {IPC: [{"bytes": 4 * MB + 1}, {"offset": 4}, {"offset": far}, {"data": b""}, {"data": bytes(63)},
                  {"data": bytes(64)}, {"kind": VMM}, {"kind": POOL}, {"kind": 1}, {"kind": 0}, {"kind": 2**32 - 1},
                  {"index": 1}],
            VMM: [{"bytes": 4 * MB + 1}, {"offset": 4}, {"offset": far}, {"handle_bytes": 0}, {"handle_bytes": far},
                  {"handle_bytes": 64 * MB, "bytes": 64 * MB}, {"handle_bytes": 4 * MB + 1}, {"kind": IPC},
                  {"kind": POOL}],
            POOL: [{"bytes": 4 * MB + 1}, {"offset": 4}, {"offset": far}, {"data": b"x"}, {"data": bytes(64)},
                   {"kind": IPC}, {"kind": VMM}]}
    statuses = ("GW_ERR_INVALID_ARGUMENT", "GW_ERR_UNSUPPORTED", "GW_ERR_BUFFER_IMPORT", "GW_ERR_BUFFER_SHORT",
                "GW_ERR_NO_MEMORY", "GW_ERR_QUOTA")
    with Daemon() as daemon, Lender() as lender, gw.Client(daemon.socket, timeout=20 * SLOW) as client:
        for kind, all_lies in lies.items():
            memory = lender.memory(kind, 4 * MB)
            for lie in all_lies:
                got = _offer(client, lender.uuid, [(memory.part(**lie), memory.fds)])
                check(got in statuses, f"kind {kind}, {lie}: {got}")
            if kind != IPC:
                equal(_offer(client, lender.uuid, [(memory.part(), ())]), "GW_ERR_INVALID_ARGUMENT", "no descriptor")
            for name in (lender.uuid[:-1], lender.uuid + "0", lender.uuid.upper(), "GPU-", "-", "x" * 63, "x" * 60000,
                         "\x1b[31m%s%n" + lender.uuid[14:]):
                got = _offer(client, name, [(memory.part(), memory.fds)])
                check(got in statuses, f"device {name[:70]!r}: {got}")
            _own(client, lender, memory)


def one_handle_in_thousands_of_parts():
    """As many as there may be; and once with a last one that is none, so that all before it must be unmapped again."""
    with Daemon() as daemon, Lender() as lender, gw.Client(daemon.socket, timeout=50 * SLOW) as client:
        memory = lender.memory(VMM, 2 * MB)
        parts = [(memory.part(index=i), memory.fds) for i in range(4096 if SIMULATED else 1024)]
        for _ in range(2):
            got = _offer(client, lender.uuid, parts)
            check(isinstance(got, gw.Buffer) or got in ("GW_ERR_BUFFER_IMPORT", "GW_ERR_NO_MEMORY"), f"{got}")
            with open("/dev/null", "rb") as null:
                got = _offer(client, lender.uuid, parts[:-1] + [(parts[-1][0], [null.fileno()])])
            check(got in ("GW_ERR_BUFFER_IMPORT", "GW_ERR_NO_MEMORY"), f"the last part is /dev/null: {got}")


# ---- what is done with it ----------------------------------------------------------------------------------


def nobody_waits_for_all_that_another_has_asked_for():
    """Others keep the device busy with as many urgent operations as they can. It is one user here: its groups take
    turns, and users do so in the same way."""
    env = {"FAKE_CUDA_COPY_GBPS": "1"} if SIMULATED else {}
    with Daemon(env=env) as daemon, Lender() as lender:
        memory, going, errors = lender.memory(IPC, 4 * MB), threading.Event(), []
        going.set()

        def press(client):
            try:
                groups = gw.join([client] * 2)
                buffer = _own(client, lender, memory)
                buckets = [g.bucket("k", buffer, count=MB, type=gw.I32, priority=127) for g in groups]
                while going.is_set():
                    for group, bucket in zip(groups, buckets):
                        group.submit(bucket)
                    if groups[0].sequence > 12:
                        groups[0].wait(groups[0].sequence - 12)
            except Exception as error:  # pylint: disable=broad-exception-caught
                errors.append(error)

        clients = [gw.Client(daemon.socket, timeout=20 * SLOW) for _ in range(3)]
        threads = [threading.Thread(target=press, args=(client,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        try:
            with gw.Client(daemon.socket, timeout=5 * SLOW) as client:
                groups = gw.join([client] * 4)
                buffer = _own(client, lender, lender.memory(IPC, 4 * MB))
                buckets = [group.bucket("k", buffer, count=MB, type=gw.I32) for group in groups]
                begin = time.monotonic()
                for _ in range(5):
                    ops = [group.submit(bucket) for group, bucket in zip(groups, buckets)]
                    equal(groups[0].wait(ops[0]), "GW_OK", "an operation beside those of others")
                print(f"# {(time.monotonic() - begin) / 5 * 1e3:.0f} ms for one of four ranks", flush=True)
        finally:
            going.clear()
            for thread, client in zip(threads, clients):
                thread.join()
                client.close()
        equal(errors, [], "what went wrong for the others")


def _mischief(client, rng, memories):
    """One session's worth of it; wherever it stops, the session ends."""
    memory = rng.choice(memories)
    kind = rng.randrange(5)
    if kind == 0:  # goes before the import has come to its end, or before it has begun
        request = client.post("BufferCreate", bytes=memory.bytes, parts=1, device=memory.lender.uuid)
        if rng.random() < 0.8:
            client.post("BufferPart", memory.fds, request, **memory.part())
        return
    if kind == 1:  # the context comes and goes
        for _ in range(5):
            _own(client, memory.lender, memory).release()
        return
    groups = gw.join([client] * rng.choice((1, 2, 5)))
    buffers = [client.buffer(4 * MB) if rng.random() < 0.2 else
               _own(client, (m := rng.choice(memories)).lender, m) for _ in groups]
    collective = rng.choice((gw.ALL_REDUCE, gw.BROADCAST, gw.REDUCE))
    buckets = [group.bucket("k", buffer, count=rng.choice((1000, MB)) if kind == 2 else MB, collective=collective,
                            type=gw.I32, priority=rng.choice((-128, 127))) for group, buffer in zip(groups, buffers)]
    for n in range(rng.randrange(1, 20)):
        for group, bucket in zip(groups, buckets):
            sequence = group.submit(bucket, ready=kind != 3)
            if kind == 3:
                group.slots.words[group.slots._at(sequence)] = rng.choice((sequence, sequence - 1, 0, 1 << 31))
    end = rng.randrange(6)
    if end == 0:
        groups[0].wait(1, 0.1)
    elif end == 1:
        buffers[0].release()
    elif end == 2:
        groups[0].leave()
    elif end == 3:
        groups[-1].abort("mischief")
    elif end == 4:
        groups[0].free_bucket(buckets[0])


def sessions_that_end_at_every_stage():
    """The bystanders, an honest pair on the devices, and what is left at the end are looked at. See ranks.py."""
    env = {"FAKE_CUDA_COPY_GBPS": "0.5"} if SIMULATED else {}
    rng = random.Random(20250611)
    with Daemon("--deadline.bucket_s=2", "--device.arena_bytes=8M", env=env) as daemon, Lender() as lender:
        memories = [lender.memory(kind, 4 * MB) for kind in (IPC, VMM, POOL)]
        n, stop = 0, time.monotonic() + 5
        while time.monotonic() < stop:
            with gw.Client(daemon.socket, timeout=2 * SLOW) as client:
                try:
                    _mischief(client, rng, memories)
                except (gw.Refused, TimeoutError):
                    pass
            n += 1
            if n % 20 == 0:
                daemon.check_bystanders()
        check("failed" not in device_states(daemon).values(), f"a device has failed: {device_states(daemon)}")
        print(f"# {n} sessions", flush=True)


def an_operation_on_a_device_that_fails_is_lost_and_not_done():
    """Its copies in were under way, and nothing of it goes out to that device: the other's memory would be told to hold
    the sum of what never came. Afterwards the device opens anew, and nothing of the old copies is left."""
    if not SIMULATED:
        raise Skip("no GPU fails when it is told to")
    env = {"FAKE_CUDA_COPY_GBPS": "0.02", "FAKE_CUDA_FAIL": "cuMemcpyAsync:9:sticky"}
    with Daemon(env=env, checks=False, bystanders=False) as daemon, Lender(0) as lender:
        clients = [gw.Client(daemon.socket, timeout=20 * SLOW) for _ in range(2)]
        memories = [lender.memory(IPC, 8 * MB) for _ in range(2)]
        for memory in memories:
            memory.fill(0)
        count = 2 * MB
        groups = gw.join(clients)
        on_device, host = _own(clients[0], lender, memories[0]), clients[1].buffer(8 * MB)
        host.write([1] * count, gw.I32)
        result = clients[1].buffer(8 * MB)
        buckets = [groups[0].bucket("k", on_device, collective=gw.REDUCE, type=gw.I32, root=1, count=count),
                   groups[1].bucket("k", host, result, collective=gw.REDUCE, type=gw.I32, root=1, count=count)]
        victim = gw.join([clients[0]])[0]
        other = victim.bucket("o", _own(clients[0], lender, memories[1]), type=gw.I32, count=count)
        ops = [group.submit(bucket) for group, bucket in zip(groups, buckets)]  # eight chunks, all on their way in
        time.sleep(0.02)
        op = victim.submit(other)
        equal(victim.wait(op), "GW_ERR_DEVICE", "the operation whose copy fails")
        equal([group.wait(op) for group, op in zip(groups, ops)], ["GW_ERR_DEVICE"] * 2, "that of the others")
        for group in (*groups, victim):
            group.leave()
        for client in clients:
            client.close()
        until(lambda: set(device_states(daemon).values()) <= {"closed"}, "the device is closed")
        with gw.Client(daemon.socket, timeout=20 * SLOW) as client:
            group = gw.join([client])[0]
            memories[1].fill(7)
            equal(group.run(group.bucket("n", _own(client, lender, memories[1]), type=gw.I32, count=1000)), "GW_OK",
                  "an operation on the device that was opened anew")
            equal(memories[1].wrong(7, 1000), 0, "wrong elements")
        daemon.stop()


if __name__ == "__main__":
    main(globals())

"""test_soak.py - what must stay flat: memory over many lifetimes and buckets, processor time while nothing happens

GW_SOAK=full runs the long form: 10000 client lifetimes, 100000 buckets, 60 s of idling.
"""

import os
import time

from ranks import PATIENCE_S, SLOW, Daemon, Rank, check, equal, gw, join, main, prepare, until

FULL = os.environ.get("GW_SOAK") == "full"
LIFETIMES = 10000 if FULL else 400 if SLOW > 1 else 1000
BUCKETS = 100000 if FULL else 2000 if SLOW > 1 else 20000
IDLE_S = 60 if FULL else 10
CLIENTS = 256
KB = 1024
# A sanitizer keeps freed memory for a while, and has a thread of its own that wakes up.
SANITIZED = SLOW > 1
QUIET = ("--log.level=warning", "--trace.events=64")  # a ring for events takes memory until it is full


def _lifetime(daemon, number):
    """A client that does a bit of everything, and ends in one of several ways."""
    client = gw.Client(daemon.socket, name=f"life {number}")
    group = client.joined(client.post_join(client.unique_id(), 1, 0))
    buffer = client.buffer(8192)
    bucket = group.bucket(f"bucket of {number}", buffer, count=2048)
    equal(group.run(bucket), "GW_OK", "an operation")
    if number % 3 == 0:
        group.leave()
        buffer.release()
    elif number % 3 == 1:
        group.submit(bucket)
    client.close()


def memory_is_flat_over_client_lifetimes():
    with Daemon(*QUIET) as daemon:
        for number in range(200):  # until allocator and thread pools have what they want
            _lifetime(daemon, number)
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the clients have gone")
        before = daemon.memory()
        begin = time.monotonic()
        for number in range(LIFETIMES):
            _lifetime(daemon, number)
            if FULL and number % 1000 == 999:
                print(f"# {number + 1} lifetimes, {daemon.memory() // KB} KiB, {time.monotonic() - begin:.0f} s", flush=True)
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the clients have gone")
        grown = daemon.memory() - before
        print(f"# {LIFETIMES} lifetimes: {before // KB} KiB before, {grown // KB:+d} KiB", flush=True)
        check(SANITIZED or grown <= 256 * KB, f"memory grew by {grown} bytes over {LIFETIMES} lifetimes")


def memory_is_flat_over_buckets():
    with Daemon(*QUIET) as daemon:
        ranks = daemon.ready(2)
        for rank in ranks:
            rank.send("loop g k 1000")
        for rank in ranks:
            rank.answer("GW_OK", "1000")
        before = daemon.memory()
        for rank in ranks:
            rank.send(f"loop g k {BUCKETS}")
        for rank in ranks:
            equal(rank.recv(600 * SLOW).text, str(BUCKETS), "operations that went well")
        grown = daemon.memory() - before
        print(f"# {BUCKETS} buckets: {before // KB} KiB before, {grown // KB:+d} KiB", flush=True)
        check(SANITIZED or grown <= 128 * KB, f"memory grew by {grown} bytes over {BUCKETS} buckets")


def memory_is_flat_over_declared_buckets_and_buffers():
    with Daemon(*QUIET) as daemon, gw.Client(daemon.socket) as client:
        group = client.joined(client.post_join(client.unique_id(), 1, 0))
        before = 0
        for number in range(BUCKETS // 20):
            buffer = client.buffer(4096)
            group.free_bucket(group.bucket(f"b{number}", buffer, count=1024))
            buffer.release()
            if number == BUCKETS // 200:
                before = daemon.memory()
        grown = daemon.memory() - before
        check(SANITIZED or grown <= 128 * KB, f"memory grew by {grown} bytes over {BUCKETS // 20} buckets and buffers")


def _wakeups(pid):
    """Voluntary context switches of all threads."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as status:
            total += next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
    return total


def _ticks(pid):
    """User and system time of the whole process, in ticks of the clock."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        words = stat.read().rsplit(")", 1)[1].split()
    return int(words[11]) + int(words[12])


def an_idle_daemon_sleeps_and_is_small():
    with Daemon(*QUIET, bystanders=False, checks=not SANITIZED) as daemon:
        ranks = [Rank(daemon.socket) for _ in range(CLIENTS)]
        daemon.ranks += ranks
        for pair in zip(ranks[::2], ranks[1::2]):
            join(pair)
            prepare(pair)
        for rank in ranks:
            rank.ok("submit k")
        for rank in ranks:
            rank.ok(f"wait g 1 {PATIENCE_S * 1000}")
        equal(daemon.admin_json("status")["clients"], CLIENTS + 1, "clients")
        time.sleep(6)  # the last look for late ranks is over
        wakeups, ticks = _wakeups(daemon.pid), _ticks(daemon.pid)
        time.sleep(IDLE_S)
        wakeups, ticks = _wakeups(daemon.pid) - wakeups, _ticks(daemon.pid) - ticks
        memory = daemon.memory()
        print(f"# {CLIENTS} clients, {IDLE_S} s idle: {ticks} ticks, {wakeups} wake-ups, {memory / 2**20:.1f} MiB resident "
              "without what is shared", flush=True)
        check(SANITIZED or ticks == 0, f"{ticks} ticks of processor time while idle")
        check(SANITIZED or wakeups <= IDLE_S, f"{wakeups} wake-ups in {IDLE_S} s")
        check(SANITIZED or memory <= 16 * 2**20, f"{memory} bytes are resident")


if __name__ == "__main__":
    main(globals(), 2400 if FULL else 100)

"""ranks.py - rank processes, and what must hold after every fault, for the integration tests

Rank drives one tests/integration/rank process. Daemon is gwtest's with a group of two bystanders in it; at its end it
checks what must hold after every fault: the bystanders' group still works, a new one does, nothing of the clients is
left, and the daemon ends in good order. A test file is functions, whose names say what must hold, and a call of main.
"""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import gwclient as gw  # noqa: F401
import gwtest
from gwtest import MEMORY, SIMULATED, SLOW, Checks, Skip, kill, program, reap, spawn, wait_until  # noqa: F401

PATIENCE_S = 20 * SLOW  # until a process must have answered
SILENCE_MS = 1000 * SLOW  # after which a node is dead, in groups over several
ON_DEVICE = MEMORY != "host"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def equal(got, wanted, what):
    check(got == wanted, f"{what}: {got!r} instead of {wanted!r}")


def contains(text, *parts):
    for part in parts:
        check(part in text, f"{part!r} is not in {text!r}")


def until(condition, what, seconds=5):
    """Waits for something that another process does soon."""
    return wait_until(condition, seconds, what)


class Reply:
    def __init__(self, line):
        words = line.rstrip("\n").split(" ", 2)
        self.status, self.ms, self.text = words[0], float(words[1]), words[2] if len(words) > 2 else ""

    def __repr__(self):
        return f"{self.status} after {self.ms} ms: {self.text}"


class Rank:
    """A trainer that does what it is told; see rank.c for what it understands. `memory`: see memory.h."""

    def __init__(self, socket, user=None, connect=True, memory=MEMORY, **variables):
        environment = dict(os.environ, GRADWIRE_SOCKET=socket, **variables)
        self.process = spawn([program("tests/integration/rank"), f"--memory={memory}"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env=environment, user=user, group=user,
                             extra_groups=None if user is None else [])
        self.pid = self.process.pid
        self.rest = b""
        if connect:
            self.ok("connect")

    def send(self, command):
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def recv(self, seconds=None):
        deadline = time.monotonic() + (PATIENCE_S if seconds is None else seconds)
        while b"\n" not in self.rest:
            ready = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]
            check(ready, f"pid {self.pid} has not answered")
            data = os.read(self.process.stdout.fileno(), 65536)
            check(data, f"pid {self.pid} has ended with status {self.process.poll()}")
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return Reply(line.decode(errors="replace"))

    def silent(self, seconds):
        """Whether no answer comes for some time."""
        return b"\n" not in self.rest and not select.select([self.process.stdout], [], [], seconds)[0]

    def do(self, command):
        self.send(command)
        return self.recv()

    def ok(self, command):
        return self.expect("GW_OK", command)

    def expect(self, status, command, *parts):
        reply = self.do(command)
        check(reply.status == status, f"'{command[:60]}' gave {reply} instead of {status}")
        contains(reply.text, *parts)
        return reply.text

    def answer(self, status, *parts):
        """The same for a command that was sent before."""
        reply = self.recv()
        check(reply.status == status, f"{reply} came instead of {status}")
        contains(reply.text, *parts)
        return reply

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()

    def stop(self):
        self.kill(signal.SIGSTOP)

    def go_on(self):
        self.kill(signal.SIGCONT)

    def end(self):
        """Ends in good order."""
        self.process.stdin.close()
        equal(self.process.wait(PATIENCE_S), 0, f"exit status of pid {self.pid}")
        self.process.stdout.close()

    def close(self):
        """Ends in any way."""
        kill(self.process)
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()


def join(ranks, name="g", order=None):
    """Makes the ranks a group; they join at once, or one after the other in an order of ranks."""
    unique_id = ranks[0].ok("id")
    for r in order or range(len(ranks)):
        ranks[r].send(f"join {name} {unique_id} {len(ranks)} {r}")
    for rank in ranks:
        rank.answer("GW_OK")


def prepare(ranks, group="g", bucket="k", buffer="b", count=1024, what="all_reduce f32 sum", more=""):
    """Gives each rank a buffer (unless it has it) and a bucket on it, in place, filled with rank + 1."""
    for number, rank in enumerate(ranks):
        rank.ok(f"alloc {buffer} {max(count * 8, 4096)}")
        rank.ok(f"fill {buffer} f32 {count} {number + 1}")
        rank.ok(f"bucket {bucket} {group} {what} {count} {buffer}:0 {buffer}:0 {more}")


def submit(ranks, bucket="k"):
    return [rank.ok(f"submit {bucket}") for rank in ranks]


def exchange(ranks, group="g", bucket="k"):
    """One operation from submit to its end on every rank."""
    for rank, op in zip(ranks, submit(ranks, bucket)):
        rank.ok(f"wait {group} {op} {PATIENCE_S * 1000}")


_driver_fds = None  # how many descriptors a driver keeps in the daemon once it has been used


class Daemon(gwtest.Daemon):
    """A captive daemon with bystanders. `with Daemon("--limits.clients=4") as daemon:`

    With MEMORY "device" the ranks take the devices by turns, and the bystanders stay in the host's memory."""

    def __init__(self, *flags, bystanders=True, checks=True, **options):
        self.ranks, self.bystanders, self.checks, self.n_ranks = [], [], checks, 0
        super().__init__("--socket.client_mode=0666", *(["--device.linger_s=0"] if ON_DEVICE else []), *flags, **options)
        os.chmod(self.dir, 0o755)  # ranks of other users come in, too
        self.wait_idle()
        self.base_fds = self.fd_count()
        if ON_DEVICE and checks:
            self.learn_driver_fds()
        if bystanders:
            self.bystanders = [Rank(self.socket, memory="host") for _ in range(2)]
            join(self.bystanders)
            prepare(self.bystanders)
            self.check_bystanders()

    def rank(self, **options):
        if MEMORY == "device":
            options.setdefault("memory", f"device:{self.n_ranks}")
        self.ranks.append(Rank(self.socket, **options))
        self.n_ranks += 1
        return self.ranks[-1]

    def group(self, n, **options):
        ranks = [self.rank(connect=False, **options) for _ in range(n)]
        for rank in ranks:  # all at once: a device's context takes a while
            rank.send("connect")
        for rank in ranks:
            rank.answer("GW_OK")
        join(ranks)
        return ranks

    def ready(self, n, **options):
        """n ranks in a group with a bucket."""
        ranks = self.group(n)
        prepare(ranks, **options)
        return ranks

    def fd_count(self):
        """A driver leaves event descriptors behind, one or two for each context that it has ended. The daemon has a
        fixed number of its own, so none of them are counted."""
        if not ON_DEVICE or SIMULATED:
            return super().fd_count()
        return sum(link != "anon_inode:[eventfd]" for link in self.fds().values())

    def learn_driver_fds(self):
        global _driver_fds
        if _driver_fds is None:
            self.check_new_group()
            until(self.is_closed, "the devices are closed")
            self.wait_idle()
            _driver_fds = self.fd_count() - self.base_fds
        self.base_fds += _driver_fds

    def is_closed(self):
        """Whether no context is open on a device."""
        return all(device["state"] == "closed" for device in self.admin_json("status")["devices"])

    def memory(self):
        """Resident bytes without what is shared with clients."""
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as status:
            sizes = {w[0]: int(w[1]) for w in (line.replace(":", "").split() for line in status) if w[-1] == "kB"}
        return (sizes["VmRSS"] - sizes["RssShmem"]) * 1024

    def spare_fds(self, spare):
        """Lets the daemon open that many descriptors and no more; None: as many as it likes."""
        limit, used = 0, {int(fd) for fd in os.listdir(f"/proc/{self.pid}/fd")}
        while spare is not None and (limit in used or spare > 0):
            spare -= limit not in used
            limit += 1
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (4096 if spare is None else limit, 4096))

    def die(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        with open(self.log_path, "ab") as log:
            self.process = spawn(self.process.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self.process.pid
        until(self._is_ready, "the daemon serves again")
        self.wait_idle()
        self.base_fds = self.fd_count() + (_driver_fds or 0)

    # ---- after a fault ---------------------------------------------------------------------------

    def check_bystanders(self):
        if not self.bystanders:
            return
        for number, rank in enumerate(self.bystanders):
            rank.ok(f"fill b f32 1024 {number + 1}")
        exchange(self.bystanders)
        for rank in self.bystanders:
            equal(rank.ok("expect b f32 1024 3"), "0", "wrong elements of the bystanders' sum")
            contains(rank.ok("check g"), "GW_OK", "failed=0")

    def check_new_group(self):
        ranks = self.ready(2)
        exchange(ranks)
        for rank in ranks:
            equal(rank.ok("expect b f32 1024 3"), "0", "wrong elements of a new group's sum")
            rank.end()

    def check_clean(self):
        """Nothing of the clients is left."""
        def left():
            status = self.admin_json("status")
            return [status[what] for what in ("groups", "buffers", "buffer_bytes", "buckets")] + [status["clients"] - 1]
        until(lambda: left() == [0] * 5, "no group, buffer, byte, bucket and client is left")
        until(self.is_closed, "the devices are closed")
        self.wait_fd_count(self.base_fds, 5)

    def close_ranks(self):
        for rank in self.ranks + self.bystanders:
            rank.close()
        self.ranks, self.bystanders = [], []

    def __exit__(self, kind, value, traceback):
        try:
            if kind is None and self.checks:
                self.assert_alive()
                self.check_bystanders()
                self.close_ranks()
                self.check_new_group()
                self.check_clean()
                self.stop()
        except AssertionError:
            kind = AssertionError
            raise
        finally:
            if kind is not None:
                lines = [line for line in self.log().splitlines() if "(gwctl," not in line]
                print("---- log of the daemon", *lines[-60:], "----", sep="\n", flush=True)
            self.close_ranks()
            self.discard()


WIRE = ("--wire.port=0", "--wire.transports=tcp", "--wire.devices=lo")  # of a daemon that others reach on loopback


@contextlib.contextmanager
def loopback(n, *flags, each=(), **options):
    """n daemons that reach each other, without bystanders; `each`: more flags, those of one daemon after the other."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Daemon(f"--wire.listen=127.0.0.{2 + i}", *WIRE, *flags,
                                          *[flag for own in each[i:i + 1] for flag in own], bystanders=False, **options))
               for i in range(n)]


@contextlib.contextmanager
def nodes(n, *flags, silence_ms=SILENCE_MS, **options):
    """The same with a short silence; what their wires keep open is known."""
    with loopback(n, f"--deadline.silence_ms={silence_ms}", *flags, **options) as daemons:
        _learn_wire_fds(daemons)
        yield daemons


def _learn_wire_fds(daemons):
    """What a lane's wire has open once it is there stays open; what each group adds must go with it."""
    ranks = ready(daemons, range(len(daemons)))
    exchange(ranks)
    for rank in ranks:
        rank.end()
    for daemon in daemons:
        daemon.ranks = []
        until(lambda d=daemon: d.admin_json("status")["clients"] == 1, "the first ranks have gone")
        daemon.base_fds = fds_at_rest(daemon)


def fds_at_rest(daemon):
    """How many descriptors it has once none comes or goes. Connections between nodes come with the first operation."""
    counts = [-1, daemon.fd_count()]
    while counts[-1] != counts[-2]:
        time.sleep(0.1)
        counts.append(daemon.fd_count())
    return counts[-1]


def listening(daemon):
    """Its TCP ports that listen."""
    inodes = {link[8:-1] for link in daemon.fds().values() if link.startswith("socket:[")}
    with open(f"/proc/{daemon.pid}/net/tcp", encoding="utf-8") as file:
        rows = [line.split() for line in file][1:]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def ready(daemons, places, **options):
    """A group with a bucket; places: the daemon of each rank."""
    ranks = [daemons[place].rank() for place in places]
    join(ranks)
    prepare(ranks, **options)
    return ranks


def main(namespace, seconds=60):
    """Runs the tests of a module in the order they are written in, or those named on the command line."""
    checks = Checks()
    for name, function in namespace.items():
        if name.startswith("_") or getattr(function, "__module__", "") != "__main__" or not hasattr(function, "__code__"):
            continue
        name = name.replace("_", " ")
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        begin = time.monotonic()
        with checks(name, seconds):
            function()
        if time.monotonic() - begin > 5:
            print(f"# that took {time.monotonic() - begin:.1f} s", flush=True)
    sys.exit(checks.finish())

"""ranks.py - rank processes and captive daemons for the integration tests

Rank drives one tests/integration/rank process. Daemon runs a gradwired of its own in a folder of its own, with a
group of two bystanders in it; at its end it checks what must hold after every fault: the bystanders' group still
works, a new one does, nothing of the clients is left, and the daemon ends in good order.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("BUILD", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build"))
SLOW = 8 if os.environ.get("GW_TEST_SLOW", "0") != "0" else 1
PATIENCE_S = 20 * SLOW


class Failed(Exception):
    """A check did not hold."""


def check(condition, what):
    if not condition:
        raise Failed(what)


def equal(got, wanted, what):
    check(got == wanted, f"{what}: {got!r} instead of {wanted!r}")


def contains(text, *parts):
    for part in parts:
        check(part in text, f"{part!r} is not in {text!r}")


def until(condition, what, seconds=5):
    """Waits for something that another process does soon."""
    deadline = time.monotonic() + seconds * SLOW
    while not condition():
        check(time.monotonic() < deadline, f"not so after {seconds * SLOW} s: {what}")
        time.sleep(0.01)


class Reply:
    def __init__(self, line):
        words = line.rstrip("\n").split(" ", 2)
        self.status, self.ms, self.text = words[0], float(words[1]), words[2] if len(words) > 2 else ""

    def __repr__(self):
        return f"{self.status} after {self.ms} ms: {self.text}"


class Rank:
    """A trainer that does what it is told; see rank.c for what it understands."""

    def __init__(self, socket, user=None, connect=True, **variables):
        environment = dict(os.environ, GRADWIRE_SOCKET=socket, **variables)
        self.process = subprocess.Popen([os.path.join(BUILD, "tests", "integration", "rank")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=environment, user=user, group=user,
                                        extra_groups=[] if user is not None else None)
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
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
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


class Daemon:
    """A captive gradwired. `with Daemon("--limits.clients=4") as daemon:`"""

    def __init__(self, *flags, bystanders=True, folder=None, environment=None, prefix=(), check_fds=True, **popen):
        self.flags = list(flags)
        self.own_folder = folder is None
        self.folder = folder or tempfile.mkdtemp(prefix="gwt-")
        if self.own_folder:
            os.chmod(self.folder, 0o755)
        self.socket = os.path.join(self.folder, "client.sock")
        self.admin = os.path.join(self.folder, "admin.sock")
        self.log_path = os.path.join(self.folder, "log")
        self.want_bystanders = bystanders
        self.check_fds = check_fds
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
        self.environment.update(environment or {})
        self.prefix, self.popen = list(prefix), popen
        self.ranks, self.bystanders, self.process = [], [], None

    def start(self, ready=True):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.prefix + [os.path.join(BUILD, "gradwired"), f"--socket-dir={self.folder}",
                               "--socket.client_mode=0666", *self.flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, **self.popen)
        self.pid = self.process.pid
        if ready:
            until(lambda: self.process.poll() is not None or "serves clients" in self.log(), "the daemon serves", 10)
            check(self.process.poll() is None, f"the daemon did not start: {self.log()}")
            self.base_fds = self.fds()
        return self

    def rank(self, **options):
        self.ranks.append(Rank(self.socket, **options))
        return self.ranks[-1]

    def group(self, n, **options):
        ranks = [self.rank(**options) for _ in range(n)]
        join(ranks)
        return ranks

    def ready(self, n, **options):
        """n ranks in a group with a bucket."""
        ranks = self.group(n)
        prepare(ranks, **options)
        return ranks

    # ---- looking at it ---------------------------------------------------------------------------

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self):
        """Resident bytes without what is shared with clients."""
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as status:
            sizes = {w[0]: int(w[1]) for w in (line.replace(":", "").split() for line in status) if w[-1] == "kB"}
        return (sizes["VmRSS"] - sizes["RssShmem"]) * 1024

    def gwctl(self, *words):
        return subprocess.run([os.path.join(BUILD, "gwctl"), "--socket", self.admin, *words], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)

    def ask(self, *words):
        result = self.gwctl("--json", *words)
        equal(result.returncode, 0, f"gwctl {' '.join(words)} ({result.stderr.strip()})")
        return json.loads(result.stdout)

    def stat(self, name):
        for entry in self.ask("stats")["stats"]:
            if entry["name"] == name:
                return entry["value"]
        raise Failed(f"there is no statistic {name}")

    # ---- after a fault ---------------------------------------------------------------------------

    def check_bystanders(self):
        for number, rank in enumerate(self.bystanders):
            rank.ok(f"fill b f32 1024 {number + 1}")
        exchange(self.bystanders)
        for rank in self.bystanders:
            equal(rank.ok("expect b f32 1024 3"), "0", "wrong elements of the bystanders' sum")
            contains(rank.ok("check g"), "GW_OK", "failed=0")

    def check_clean(self):
        """Nothing of the clients is left."""
        def left():
            status = self.ask("status")
            return [status[what] for what in ("groups", "buffers", "buffer_bytes", "buckets")] + [status["clients"] - 1]
        until(lambda: left() == [0] * 5, f"no groups, buffers, bytes, buckets, clients are left, but {left()}")
        if self.check_fds:
            until(lambda: self.fds() == self.base_fds, f"{self.base_fds} descriptors are open again")

    def terminate(self):
        self.process.terminate()
        equal(self.process.wait(PATIENCE_S), 0, "exit status of the daemon")

    def __enter__(self):
        self.start()
        if self.want_bystanders:
            self.bystanders = [Rank(self.socket) for _ in range(2)]
            join(self.bystanders)
            prepare(self.bystanders)
            self.check_bystanders()
        return self

    def __exit__(self, kind, value, traceback):
        try:
            if kind is None and self.process and self.process.poll() is None:
                self.check_bystanders()
                for rank in self.ranks + self.bystanders:
                    rank.close()
                ranks = [Rank(self.socket) for _ in range(2)]
                self.ranks += ranks
                join(ranks)
                prepare(ranks)
                exchange(ranks)
                for rank in ranks:
                    equal(rank.ok("expect b f32 1024 3"), "0", "wrong elements of a new group's sum")
                    rank.end()
                self.check_clean()
                self.terminate()
                check("Sanitizer" not in self.log() and "runtime error" not in self.log(), "a sanitizer has a report")
        except (Failed, subprocess.TimeoutExpired):
            kind = Failed
            raise
        finally:
            for rank in self.ranks + self.bystanders:
                rank.close()
            if self.process and self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if kind is not None:
                print(f"---- log of the daemon\n{self.log()}----", flush=True)
            if self.own_folder:
                shutil.rmtree(self.folder, ignore_errors=True)


class Skip(Exception):
    """This machine cannot run the test."""


def main(tests):
    """Runs functions, whose names say what must hold, and counts."""
    wanted = sys.argv[1:]
    counts = {"ok": 0, "FAIL": 0, "skipped": 0}
    for function in tests:
        name = function.__name__.replace("_", " ")
        if wanted and not any(word in name for word in wanted):
            continue
        begin = time.monotonic()
        try:
            function()
            result, why = "ok", ""
        except Skip as reason:
            result, why = "skipped", f": {reason}"
        except Exception as error:  # a test that breaks has failed, and the others go on
            import traceback
            if not isinstance(error, Failed):
                traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[1]
            result, why = "FAIL", f": line {where.lineno}: {type(error).__name__}: {error}"
        counts[result] += 1
        print(f"{result} {name}{why}".replace("\n", " "), flush=True)
        if time.monotonic() - begin > 5:
            print(f"# took {time.monotonic() - begin:.1f} s", flush=True)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skipped']} skipped")
    sys.exit(1 if counts["FAIL"] else 0)


def collect(namespace):
    """The tests of a module, in the order they are written in: functions whose names have no leading _ ."""
    module = namespace["__name__"]
    return [f for n, f in namespace.items() if callable(f) and getattr(f, "__module__", "") == module
            and not isinstance(f, type) and not n.startswith("_")]

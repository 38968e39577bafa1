"""gwtest - what the test scripts share: a captive daemon, processes that never outlive the test, and checks.

    from gwtest import Checks, Daemon, Skip

    checks = Checks()
    with Daemon("--limits.clients=4") as daemon:
        with checks("a check"):                  # ok, FAIL with the exception's text, or skipped
            assert daemon.admin_json("status")["clients"] == 1
        checks.equal("no descriptor leaked", daemon.fd_count(), before)
    sys.exit(checks.finish())                    # "N passed, N failed, N skipped"

Every script prints one line a check, and is run with BUILD set to the build folder. Python 3.11, standard
library only.
"""
import atexit
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(ROOT, "build")))
# Sanitizers make everything slow; tests/run says so. Every time limit here is multiplied.
SLOW = 6 if os.environ.get("GW_TEST_SLOW", "0") != "0" else 1
# Where buckets lie: "host", or "device", which is a GPU's memory; tests/run says so. See tests/lib/memory.h.
MEMORY = os.environ.get("GW_TEST_MEMORY", "host")
# The simulated driver is on the library path: it shows what the code does, and nothing of a GPU.
SIMULATED = os.environ.get("GW_TEST_SIMULATED", "0") != "0"
os.environ.setdefault("GRADWIRE_PLUGIN_DIR", os.path.join(BUILD, "gradwire"))  # test programs lie elsewhere

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_running = set()


def program(name):
    """The path of a built program, such as "examples/allreduce"."""
    return os.path.join(BUILD, name)


# ---- processes ---------------------------------------------------------------------------------------


def _die_with_parent():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def spawn(argv, **options):
    """subprocess.Popen for a process that is killed when this one ends, however it ends."""
    process = subprocess.Popen(argv, preexec_fn=_die_with_parent, **options)
    _running.add(process)
    return process


def reap(process, seconds=30):
    """Waits for a process to end by itself, and kills it if it does not. Returns its exit code."""
    try:
        return process.wait(seconds * SLOW)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{process.args[0]} did not end within {seconds} s") from None
    finally:
        kill(process)


def kill(process):
    if process.poll() is None:
        process.kill()
        process.wait()
    _running.discard(process)


@atexit.register
def _kill_all():
    for process in list(_running):
        kill(process)


def wait_until(condition, seconds=10, what="the condition"):
    """Returns the first true value of condition(); AssertionError if there is none in time."""
    end = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.01)


# ---- the daemon --------------------------------------------------------------------------------------

_REPORT = re.compile(r"(ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|: runtime error: |Assertion .* failed)")


class Daemon:
    """A gradwired of its own, on sockets in a folder of its own. `flags` come after the defaults below. `user`: a number,
    to run as somebody else."""

    def __init__(self, *flags, env=None, wrapper=(), user=None):
        self.dir = tempfile.mkdtemp(prefix="gw-test-")
        self.socket = os.path.join(self.dir, "client.sock")
        self.admin = os.path.join(self.dir, "admin.sock")
        self.log_path = os.path.join(self.dir, "log")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
        argv = [*wrapper, program("gradwired"), "--config=/dev/null", f"--socket-dir={self.dir}",
                "--log.level=info", "--drain.timeout_s=2", *flags]
        identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        if identity:
            os.chown(self.dir, user, user)
        try:
            with open(self.log_path, "wb") as log:
                self.process = spawn(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                     env={**clean, **(env or {})}, **identity)
        except OSError:
            shutil.rmtree(self.dir)
            raise
        self.pid = self.process.pid
        try:
            wait_until(self._is_ready, 20, "the daemon's readiness")
        except AssertionError as error:
            log = self.log()
            self.discard()
            raise AssertionError(f"{error}; its log:\n{log}") from None

    def _sockets(self):
        """Who listens by the names of its two sockets, and who is connected to them: (name, whether it listens)."""
        with open(f"/proc/{self.pid}/net/unix", encoding="utf-8", errors="replace") as table:
            rows = [line.split() for line in table]
        return [(row[-1], row[3] == "00010000") for row in rows if row[-1] in (self.socket, self.admin)]

    def _is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}")
        return {name for name, listens in self._sockets() if listens} == {self.socket, self.admin}

    def wait_idle(self, seconds=10):
        """Waits until it has started, which an answer tells, and has let go of all who were connected: what is open
        then stays open."""
        self.admin_json("status")
        wait_until(lambda: len(self._sockets()) == 2, seconds, "that nobody is connected")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.discard()

    def discard(self):
        """Ends it in any case, and removes its folder."""
        kill(self.process)
        shutil.rmtree(self.dir, ignore_errors=True)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def wait_log(self, text, seconds=10):
        wait_until(lambda: text in self.log(), seconds, f"'{text}' in the daemon's log")

    def gwctl(self, *arguments):
        """Runs gwctl; returns the finished process with its output as text."""
        return subprocess.run([program("gwctl"), f"--socket={self.admin}", *arguments], capture_output=True, text=True,
                              timeout=60, check=False)

    def admin_json(self, *command):
        """The document that an admin command answers with."""
        result = self.gwctl("--json", *command)
        assert result.returncode == 0, f"gwctl {' '.join(command)}: {result.returncode}: {result.stderr.strip()}"
        return json.loads(result.stdout)

    def stat(self, name):
        """A counter's or gauge's value, or a histogram's count, from `gwctl stats`."""
        for item in self.admin_json("stats")["stats"]:
            if item["name"] == name:
                return item["value"] if "value" in item else item["count"]
        raise AssertionError(f"there is no statistic {name}")

    def is_alive(self):
        return self.process.poll() is None

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def fds(self):
        """Its open descriptors, as number -> what /proc says, for messages about leaks."""
        links = {}
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                links[int(fd)] = os.readlink(f"/proc/{self.pid}/fd/{fd}")
            except FileNotFoundError:
                pass
        return links

    def wait_fd_count(self, expected, seconds=10):
        """Waits until the daemon has let go of all but `expected` descriptors."""
        try:
            wait_until(lambda: self.fd_count() <= expected, seconds)
        except AssertionError:
            raise AssertionError(f"{self.fd_count()} descriptors are open, {expected} expected: {self.fds()}") from None

    def rss_kib(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1))

    def reports(self):
        """Lines of the log that a sanitizer or assert wrote."""
        return [line for line in self.log().splitlines() if _REPORT.search(line)]

    def assert_alive(self):
        assert self.is_alive(), f"the daemon has ended with {self.process.returncode}:\n{self.log()[-4000:]}"

    def stop(self, seconds=30):
        """SIGTERM, and asserts that it drains, exits with 0, leaves no socket file and no report."""
        self.assert_alive()
        self.process.terminate()
        code = reap(self.process, seconds)
        reports = self.reports()
        assert code == 0 and not reports, f"exit code {code}:\n{self.log()[-4000:]}"
        left = [name for name in ("client.sock", "admin.sock") if os.path.exists(os.path.join(self.dir, name))]
        assert not left, f"{left} left behind"


# ---- checks ------------------------------------------------------------------------------------------


class Skip(Exception):
    """Raised inside a check: this host lacks what it takes. The text says what."""


class _Check:
    def __init__(self, checks, name, seconds):
        self.checks, self.name, self.seconds = checks, name, seconds * SLOW

    def _late(self, *_):
        raise AssertionError(f"did not end within {self.seconds} s")

    def __enter__(self):
        self.old = signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(self, kind, error, trace):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.old)
        if kind is None:
            self.checks.ok(self.name)
        elif issubclass(kind, Skip):
            self.checks.skip(self.name, str(error))
        elif issubclass(kind, Exception):
            while trace.tb_next and trace.tb_next.tb_frame.f_code.co_filename == trace.tb_frame.f_code.co_filename:
                trace = trace.tb_next
            place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
            self.checks.fail(self.name, f"{kind.__name__} at {place}: {error}")
        else:
            return False
        return True


class Checks:
    """Counts checks and prints a line for each. Calling it gives a context; see the top of this file."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def __call__(self, name, seconds=60):
        return _Check(self, name, seconds)

    def ok(self, name):
        self.passed += 1
        print(f"ok {name}", flush=True)

    def fail(self, name, why):
        self.failed += 1
        print(f"FAIL {name}: {why}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped {name}: {why}", flush=True)

    def that(self, name, condition, why="it does not hold"):
        if condition:
            self.ok(name)
        else:
            self.fail(name, why)

    def equal(self, name, got, expected):
        self.that(name, got == expected, f"got {got!r}, expected {expected!r}")

    def finish(self):
        """Prints the last line; returns the exit code."""
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed or self.passed + self.skipped == 0 else 0


if __name__ == "__main__":
    sys.exit("gwtest is a library; run a script of tests/integration")

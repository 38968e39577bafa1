"""gpu.py - what the tests of this folder share: trainers with kernels, and how much of a GPU a process holds

With the simulated driver there are no kernels. Tests that want some are not run with it; see tests/run.
"""

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import ranks  # noqa: E402, F401
from ranks import (SIMULATED, SLOW, Daemon, Rank, Skip, check, contains, equal, exchange, fds_at_rest, gwtest, join,  # noqa: F401
                   kill, main, prepare, program, reap, spawn, submit, until)

QUICK = os.environ.get("GW_TEST_QUICK", "0") != "0" or SLOW > 1
SOON_S = 2 * SLOW  # "within 2 s"


def count_devices():
    result = subprocess.run([program("tests/integration/rank"), "--memory=device:0"], input="devices\n", text=True,
                            capture_output=True, timeout=60 * SLOW, check=False)
    check(result.returncode == 0, f"there is no device: {result.stderr}")
    return int(result.stdout.split()[2])


def held_mib(pid):
    """What a process holds of GPUs, in MiB, as the driver counts it; None: it does not say."""
    if SIMULATED:
        return None
    tool = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, timeout=60, check=False)
    check(tool.returncode == 0, f"nvidia-smi: {tool.stdout} {tool.stderr}")
    rows = [line.split(", ") for line in tool.stdout.splitlines()]
    if any(not word.strip().isdigit() for row in rows for word in row):
        return None
    return sum(int(row[1]) for row in rows if int(row[0]) == pid)


def device_states(daemon):
    return {device["uuid"]: device["state"] for device in daemon.admin_json("status")["devices"]}


def check_given_back(daemon):
    """All that it held of devices is free again, and no device has failed."""
    try:
        until(lambda: set(device_states(daemon).values()) <= {"closed"}, "every device is closed")
    except AssertionError as late:
        raise AssertionError(f"{late}: {device_states(daemon)}; {daemon.admin_json('status')}") from None
    held = held_mib(daemon.pid)
    check(held in (None, 0), f"the daemon still holds {held} MiB of GPU memory")


class Trainer:
    """A process of trainer.cu. Its lines are read as they come: (word, time, rest)."""

    def __init__(self, daemon, rank, nranks, folder, *words, **variables):
        self.rank, self.lines, self.rest = rank, [], b""
        environment = dict(os.environ, GRADWIRE_SOCKET=daemon.socket, **variables)
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.process = spawn([program("tests/gpu/trainer"), str(rank), str(nranks), os.path.join(folder, "id"),
                              *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors,
                             env=environment)
        self.pid = self.process.pid

    def said(self):
        self.errors.seek(0)
        return f"trainer {self.rank} (pid {self.pid}, status {self.process.poll()}) said {self.lines[-5:]}; " \
               f"{self.errors.read()[-500:]}"

    def read(self, seconds):
        """Takes one more line; False at the end."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]
            check(ready, f"nothing came for {seconds} s: {self.said()}")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                self.process.wait(10)
                return False
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        word, when, text = (line.decode(errors="replace") + "  ").split(" ", 2)
        self.lines.append((word, float(when), text.strip()))
        return True

    def wait_word(self, word, seconds):
        """(time, rest) of the first line with this word."""
        while True:
            for line in self.lines:
                if line[0] == word:
                    return line[1:]
            check(self.read(seconds), f"'{word}' did not come: {self.said()}")

    def ends_well(self, seconds=30):
        try:
            equal(self.process.wait(seconds), 0, "exit status")
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds} s: {self.said()}") from None
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.said()}") from None

    def close(self):
        kill(self.process)
        self.process.stdout.close()
        self.errors.close()


class Trainers:
    """`with Trainers(daemon, 2, "load", 30) as (a, b):`"""

    def __init__(self, daemon, n, *words, **variables):
        self.folder = tempfile.mkdtemp(prefix="gw-test-")
        self.all = [Trainer(daemon, rank, n, self.folder, *words, **variables) for rank in range(n)]

    def __enter__(self):
        return self.all

    def __exit__(self, *exception):
        for trainer in self.all:
            if exception[0] is not None:
                print("#", trainer.said().replace("\n", " | "), flush=True)
            trainer.close()
        shutil.rmtree(self.folder, ignore_errors=True)

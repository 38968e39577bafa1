"""test_client.py - device memory and streams through the library, each time against a daemon of its own

The programs beside this file are linked to the driver: this host's, or the simulated one where there is none.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from gwtest import SIMULATED, Checks, Daemon, Skip, kill, program, reap, spawn, wait_until

LIMIT_S = 60  # of a program
FOLDER = tempfile.mkdtemp(prefix="gw-test-gpu-client-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

checks = Checks()


def drivers():
    """The environment by which daemon and trainers find the same driver."""
    if not os.path.exists(program("gradwire/libgradwire-cuda.so")):
        raise Skip("it was built without a CUDA toolkit")
    if SIMULATED or os.path.exists("/dev/nvidiactl"):
        return {"FAKE_CUDA_DIR": FOLDER}
    return {"LD_LIBRARY_PATH": program("tests/fake"), "FAKE_CUDA_DIR": FOLDER}


def start(words, daemon, env, log, **options):
    name, *devices = words.split()
    return spawn([program(f"tests/gpu/{name}"), *devices], stdout=log, stderr=subprocess.STDOUT,
                 env={**os.environ, **env, "GRADWIRE_SOCKET": daemon.socket}, **options)


def run(words, *flags, daemon_env=None, **env):
    """A program, with the devices of its ranks, against a daemon with these flags."""
    env = {**drivers(), **env}
    with Daemon(*flags, env={**env, **(daemon_env or {})}) as daemon:
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                code = reap(start(words, daemon, env, log), LIMIT_S)
            except AssertionError as late:
                code = late
            log.seek(0)
            assert code == 0, f"{code}\n{log.read()}\n--- the daemon's log:\n{daemon.log()[-2000:]}"
        left = daemon.admin_json("status")
        assert left["buffers"] == 0 and left["groups"] == 0, f"something is left: {left}"
        daemon.stop()


with checks("memory of every kind", 2 * LIMIT_S):
    run("memory")

with checks("streams in every order", 2 * LIMIT_S):
    run("streams")

with checks("streams under capture", 2 * LIMIT_S):
    run("capture")

with checks("all that can be is read and written by the daemon", 4 * LIMIT_S):
    run("memory", "--device.stream_bytes=0")
    run("streams", "--device.stream_bytes=0")
    run("capture", "--device.stream_bytes=0")

with checks("all is copied by streams", 4 * LIMIT_S):
    run("memory", "--device.stream_bytes=1G")
    run("streams", "--device.stream_bytes=1G", "--group.credits=1024")
    run("capture", "--device.stream_bytes=1G")

with checks("one queue of the device for all streams", 2 * LIMIT_S):
    run("streams", CUDA_DEVICE_MAX_CONNECTIONS="1")
    run("capture", CUDA_DEVICE_MAX_CONNECTIONS="1")

with checks("both ranks on one device", 4 * LIMIT_S):
    run("memory 0 0")
    run("streams 0 0")

with checks("a daemon that cannot open device memory", 4 * LIMIT_S):
    for name in ("memory", "streams", "capture"):
        run(name, daemon_env={"GRADWIRE_PLUGIN_DIR": FOLDER}, GW_TEST_IMPORT="0")

with checks("a process without the plugin", 2 * LIMIT_S):
    run("unplugged", GRADWIRE_PLUGIN_DIR=FOLDER)

with checks("streams come free when the daemon is killed", 2 * LIMIT_S):
    env = drivers()
    with Daemon(env=env) as daemon, open(os.path.join(FOLDER, "orphan"), "w+", errors="replace") as log:
        orphan = start("orphan", daemon, env, log, stdin=subprocess.PIPE)

        def says(word):
            log.seek(0)
            return word in log.read()
        try:
            wait_until(lambda: says("waiting") or orphan.poll() is not None, 30, "the orphan's streams wait")
            kill(daemon.process)
            orphan.stdin.write(b"x")
            orphan.stdin.close()
        except (AssertionError, BrokenPipeError) as trouble:
            print(trouble)
        code = reap(orphan, 30)
        log.seek(0)
        text = log.read()
        assert code == 0, f"{code}\n{text}"
        print(next(line for line in text.splitlines() if line.startswith("freed after")), flush=True)

sys.exit(checks.finish())

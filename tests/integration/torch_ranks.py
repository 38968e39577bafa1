"""torch_ranks.py - processes with torch, for test_torch.py, test_backend.py and their like in tests/gpu

Each runs a worker file with names of scenarios, and says "SCENARIO same", or what is wrong. They need a Python with
torch: this one's, or the system's.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import ranks
from ranks import SLOW, Skip, check, equal, gwtest

TIMEOUT_S = 60 * SLOW
FOLDER = os.path.dirname(os.path.abspath(__file__))
_python = None
_port = 20000 + os.getpid() % 600 * 20  # programs that run at once have different ones


def find_python():
    global _python
    if SLOW > 1:
        raise Skip("a sanitizer's runtime comes first in a program, not in Python")
    for path in (sys.executable, "/usr/bin/python3"):
        if _python is None and subprocess.run([path, "-c", "import torch.distributed as d; assert d.is_available()"],
                                              capture_output=True, timeout=60, check=False).returncode == 0:
            _python = path
    if _python is None:
        raise Skip("no torch")
    return _python


def need_cuda():
    question = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 1)"
    if subprocess.run([find_python(), "-c", question], capture_output=True, timeout=120, check=False).returncode != 0:
        raise Skip("no torch")


def start(worker, daemons, *scenarios, stdin=subprocess.DEVNULL, n_devices=0, **variables):
    """One rank on the daemon of each. They take the devices by turns, if any."""
    port, size = _next_port(), str(len(daemons))
    return [_spawn([os.path.join(FOLDER, worker), *scenarios], daemon, stdin, RANK=str(rank), WORLD_SIZE=size,
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=port, DEVICE=f"cuda:{rank % n_devices}" if n_devices else "cpu", **variables)
            for rank, daemon in enumerate(daemons)]


def _next_port():
    global _port
    _port += 1
    return str(_port)


def _spawn(arguments, daemon, stdin=subprocess.DEVNULL, **variables):
    environment = dict(os.environ, GRADWIRE_SOCKET=daemon.socket, GLOO_SOCKET_IFNAME="lo", PYTHONDONTWRITEBYTECODE="1",
                       GRADWIRE_LIBRARY=os.path.join(gwtest.BUILD, "libgradwire.so.0"), **variables)
    return ranks.spawn([find_python(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=stdin, text=True,
                       env=environment)


def check_torchrun(worker, daemons, n_local, scenario):
    """A node for each daemon, with its own torchrun, which starts its ranks and ends well when they do."""
    port, log = _next_port(), tempfile.mkdtemp(prefix="gw-torchrun-")
    options = ["--nnodes", str(len(daemons)), "--nproc_per_node", str(n_local), "--master_addr", "127.0.0.1", "--master_port", port,
               "--log_dir", log, "-r", "1", "-t", "1"]  # without these two Debian 12's fails
    try:
        started = [_spawn(["-m", "torch.distributed.run", "--node_rank", str(node), *options, os.path.join(FOLDER, worker), scenario],
                          daemon, DEVICE="cpu") for node, daemon in enumerate(daemons)]
        for process in started:
            output, errors = _end(process, time.monotonic() + TIMEOUT_S)
            equal((process.returncode, output.count(f"{scenario} same\n")), (0, n_local), f"how a torchrun ended ({output} {errors})")
    finally:
        shutil.rmtree(log)


def when_told(processes, word):
    for process in processes:
        equal(process.stdout.readline(), word + "\n", "what a rank says")


def interrupt_all(processes, scenario):
    """Ctrl-C, when they have said so; each says what came of it."""
    when_told(processes, "interrupt now")
    time.sleep(0.5)  # then they wait, and are not on their way there
    for process in processes:
        process.send_signal(signal.SIGINT)
    _all_say_same(processes, scenario)


def restart_under(daemon, worker, scenario, **options):
    """The daemon is killed, and started anew, when its two ranks have said so."""
    processes = start(worker, [daemon] * 2, scenario, stdin=subprocess.PIPE, **options)
    when_told(processes, "restart now")
    daemon.die()
    daemon.restart()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    _all_say_same(processes, scenario)


def _all_say_same(processes, scenario):
    for rank, (said, errors) in enumerate(finish(processes)):
        equal(said.get(scenario), "same", f"rank {rank} ({errors})")


def finish(processes):
    """What each said of each scenario, and the end of what it wrote to stderr."""
    said, end = [], time.monotonic() + TIMEOUT_S
    for process in processes:
        output, errors = _end(process, end)
        said.append((dict(line.split(" ", 1) for line in output.splitlines() if " " in line), errors))
    return said


def _end(process, end):
    """All of its stdout, and the end of its stderr."""
    try:
        output, errors = process.communicate(timeout=max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:  # another one may have said why
        process.kill()
        output, errors = process.communicate()
        errors += "\nIt did not end."
    return output, errors[-1500:]


def run(worker, daemons, *scenarios, **options):
    return finish(start(worker, daemons, *scenarios, **options))


def check_survivors(daemon, every, scenario):
    """`every`: what all said. All but the last rank, which was killed, and the daemon are well."""
    equal([said.get(scenario) for said, _ in every[:-1]], ["same"] * (len(every) - 1), f"what they say ({every[:-1]})")
    check(daemon.process.poll() is None, "the daemon has ended")


def check_same(worker, daemons, *scenarios, **options):
    every = run(worker, daemons, *scenarios, **options)
    for scenario in scenarios:
        equal([said.get(scenario) for said, _ in every], ["same"] * len(every),
              f"what the ranks say of {scenario} ({[errors for _, errors in every]})")

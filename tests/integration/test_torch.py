"""test_torch.py - the hook for DistributedDataParallel on the CPU: the same parameters as without it, bit for bit

See ddp_rank.py for what each scenario does. Needs a Python with torch: this one's, or the system's.
"""

import os
import subprocess
import sys

import ranks
from ranks import SLOW, Daemon, Skip, check, equal, main

TIMEOUT_S = 100 * SLOW
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_rank.py")
_python = None
_port = 29400 + os.getpid() % 500


def _find_python():
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


def _run(daemons, *scenarios):
    """Runs ranks, on the daemon of each; returns what each said of each scenario."""
    global _port
    _port += 1
    python = _find_python()
    library = os.path.join(os.environ["BUILD"], "libgradwire.so.0")
    processes = []
    for rank, daemon in enumerate(daemons):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(daemons)), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(_port), GRADWIRE_SOCKET=daemon.socket, GRADWIRE_LIBRARY=library,
                           GLOO_SOCKET_IFNAME="lo", PYTHONDONTWRITEBYTECODE="1")
        processes.append(ranks.spawn([python, WORKER, *scenarios], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     env=environment))
    said = []
    for process in processes:
        output, errors = process.communicate(timeout=TIMEOUT_S)
        said.append((dict(line.split(" ", 1) for line in output.splitlines() if " " in line), errors[-1500:]))
    return said


def _check(daemons, *scenarios):
    for rank, (said, errors) in enumerate(_run(daemons, *scenarios)):
        for scenario in scenarios:
            equal(said.get(scenario), "same", f"{scenario} on rank {rank} ({errors})")


def _all_same(*scenarios):
    with Daemon(bystanders=False) as daemon:
        _check([daemon, daemon], *scenarios)


def codecs_and_states_between_nodes():
    with ranks.nodes(2) as daemons:
        _check(daemons, "coded", "continued")


def kinds_of_ddp():
    _all_same("plain", "bucket_views", "static_graph", "small_buckets", "unused_parameters", "accumulation",
              "checkpointing", "uneven_inputs", "several_models")


def gradients_in_shared_memory():
    _all_same("shared_gradients", "views_in_all_ways")


def kinds_of_numbers():
    _all_same("double", "bfloat16", "channels_last", "mixed_precision")


def without_an_exchange_ranks_differ():
    """The negative control."""
    _all_same("gradients_of_the_other_rank")


def failures_have_names():
    _all_same("failing_backward", "no_daemon", "profiled")


def a_rank_that_is_killed_is_named():
    with Daemon(bystanders=False) as daemon:
        (said, errors), _ = _run([daemon, daemon], "killed_rank")
        equal(said.get("killed_rank"), "same", f"what rank 0 heard ({errors})")
        check(daemon.process.poll() is None, "the daemon has ended")


if __name__ == "__main__":
    main(globals(), 110)

"""test_torch.py - the hook for DistributedDataParallel on the CPU: the same parameters as without it, bit for bit

See ddp_rank.py, ddp_faults.py and ddp_as_device.py for what each scenario does. Needs a Python with torch: this one's, or the
system's.
"""

import os
import subprocess

import ranks
from ranks import Daemon, check, equal, main
from torch_ranks import check_same, find_python, interrupt_all, restart_under, run, start

WORKER, CODECS, FAULTS = "ddp_rank.py", "ddp_codecs.py", "ddp_faults.py"


def _all_same(*scenarios, worker=WORKER):
    with Daemon(bystanders=False) as daemon:
        check_same(worker, [daemon, daemon], *scenarios)


def codecs_and_states_between_nodes():
    with ranks.nodes(2) as daemons:
        check_same(CODECS, daemons, "coded", "continued", "coded_in_other_ways", "overflows")


def kinds_of_ddp():
    _all_same("plain", "bucket_views", "there_after_backward", "static_graph", "small_buckets", "unused_parameters",
              "accumulation", "checkpointing", "uneven_inputs", "several_models", "guarded", "many_buckets")


def buckets_where_they_lie():
    _all_same("in_place", "kept_in_flight", "one_future", "shapes", "there_after_backward", "static_graph", "small_buckets",
              "unused_parameters", "uneven_inputs", "several_models", "reduce_dtypes", "many_buckets", "views_in_all_ways", worker="ddp_as_device.py")


def models_of_several_groups():
    with Daemon(bystanders=False) as daemon:
        check_same(WORKER, [daemon] * 4, "models_of_groups")


def gradients_in_shared_memory():
    _all_same("shared_gradients", "memory_of_the_first_cut", "views_in_all_ways")


def kinds_of_numbers():
    _all_same("double", "bfloat16", "sixteen_bits", "channels_last", "mixed_precision", "reduce_dtypes")


def without_an_exchange_ranks_differ():
    """The negative control."""
    _all_same("gradients_of_the_other_rank")


def failures_have_names():
    _all_same("failing_backward", "sparse_gradients", "no_daemon", "registered_twice", "forgotten_models",
              "other_buckets", "refused_ways", "after_a_failure", "alone", worker=FAULTS)


def a_rank_that_is_killed_is_named():
    with Daemon(bystanders=False) as daemon:
        (said, errors), _ = run(FAULTS, [daemon, daemon], "killed_rank")
        equal(said.get("killed_rank"), "same", f"what rank 0 heard ({errors})")
        check(daemon.process.poll() is None, "the daemon has ended")


def a_daemon_that_is_killed():
    with Daemon(bystanders=False) as daemon:
        check_same(FAULTS, [daemon] * 2, "killed_daemon", DAEMON_PID=str(daemon.pid))
        daemon.die()
        daemon.restart()


def ctrl_c_ends_a_backward():
    with Daemon(bystanders=False) as daemon:
        interrupt_all(start(FAULTS, [daemon] * 2, "interrupted"), "interrupted")


def a_daemon_that_is_restarted():
    with Daemon(bystanders=False) as daemon:
        restart_under(daemon, FAULTS, "restarted_daemon")


def python_ends_while_a_future_is_being_completed():
    """The callback is still running in torch's C++ then; a thread that Python stops there aborts the process."""
    program = """
import time, torch
from gradwire._waiter import Waiter
future, began = torch.futures.Future(), []
future.add_done_callback(lambda _: (began.append(True), time.sleep(0.3), print("completed", flush=True)))
waiter = Waiter(None)
waiter.add(lambda: 1, future)
while not began:
    time.sleep(0.01)
"""
    python = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")
    result = subprocess.run([find_python(), "-Bc", program], capture_output=True, text=True, timeout=60, check=False,
                            env=dict(os.environ, PYTHONPATH=python))
    equal((result.returncode, result.stdout), (0, "completed\n"), f"how it ended ({result.stderr})")


if __name__ == "__main__":
    main(globals(), 110)

"""test_torch.py - the hook for DistributedDataParallel on the CPU: the same parameters as without it, bit for bit

See ddp_rank.py for what each scenario does. Needs a Python with torch: this one's, or the system's.
"""

import ranks
from ranks import Daemon, check, equal, main
from torch_ranks import check_same, run

WORKER = "ddp_rank.py"


def _all_same(*scenarios):
    with Daemon(bystanders=False) as daemon:
        check_same(WORKER, [daemon, daemon], *scenarios)


def codecs_and_states_between_nodes():
    with ranks.nodes(2) as daemons:
        check_same(WORKER, daemons, "coded", "continued")


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
        (said, errors), _ = run(WORKER, [daemon, daemon], "killed_rank")
        equal(said.get("killed_rank"), "same", f"what rank 0 heard ({errors})")
        check(daemon.process.poll() is None, "the daemon has ended")


if __name__ == "__main__":
    main(globals(), 110)

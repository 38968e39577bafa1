"""test_ddp.py - the hook for DistributedDataParallel on GPUs: the same parameters as over Gloo, bit for bit

See ddp_rank.py, ddp_codecs.py and ddp_faults.py in tests/integration, and ddp_memory.py, for what each scenario does. Two ranks
share a GPU where there is one only. Ends within 4 minutes.
"""

import os

from gpu import Daemon, check_given_back, count_devices, main, ranks
from torch_ranks import check_same, need_cuda, restart_under

MEMORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_memory.py")
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def _all_same(*scenarios, worker="ddp_rank.py", **variables):
    need_cuda()
    with Daemon() as daemon:
        check_same(worker, [daemon, daemon], *scenarios, n_devices=count_devices(), **variables)
        check_given_back(daemon)


def kinds_of_ddp():
    _all_same("plain", "bucket_views", "there_after_backward", "static_graph", "small_buckets", "unused_parameters",
              "accumulation", "checkpointing", "uneven_inputs", "several_models", "guarded", "double", "bfloat16",
              "sixteen_bits", "channels_last", "mixed_precision", "reduce_dtypes", "many_buckets")


def views_in_all_ways():
    _all_same("views_in_all_ways")


def expandable_segments():
    _all_same("plain", "bucket_views", "small_buckets", "reduce_dtypes", **SEGMENTS)
    _all_same("emptied_caches", worker=MEMORY, **SEGMENTS)


def memory_of_buckets():
    _all_same("emptied_caches", "allocations_tried_again", "first_cut", "given_back", "bucket_of_a_failed_backward", worker=MEMORY)
    _all_same("addresses_used_again", worker=MEMORY)


def codecs_between_nodes():
    need_cuda()
    with ranks.nodes(2) as daemons:
        check_same("ddp_codecs.py", daemons, "coded", "continued", "coded_in_other_ways", "overflows", n_devices=count_devices())


def a_daemon_that_is_restarted():
    need_cuda()
    with Daemon(bystanders=False) as daemon:
        restart_under(daemon, "ddp_faults.py", "restarted_daemon", n_devices=count_devices())


def without_an_exchange_ranks_differ():
    """The negative control."""
    _all_same("gradients_of_the_other_rank")


if __name__ == "__main__":
    main(globals(), 240)

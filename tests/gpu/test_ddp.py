"""test_ddp.py - the hook for DistributedDataParallel on GPUs: the same parameters as over Gloo, bit for bit

See tests/integration/ddp_rank.py for what each scenario does. Two ranks share a GPU where there is one only. Ends within
3 minutes.
"""

from gpu import Daemon, check_given_back, count_devices, main
from torch_ranks import check_same, need_cuda

SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def _all_same(*scenarios, **variables):
    need_cuda()
    with Daemon() as daemon:
        check_same("ddp_rank.py", [daemon, daemon], *scenarios, n_devices=count_devices(), **variables)
        check_given_back(daemon)


def kinds_of_ddp():
    _all_same("plain", "bucket_views", "there_after_backward", "static_graph", "small_buckets", "unused_parameters",
              "accumulation", "checkpointing", "uneven_inputs", "several_models", "guarded", "double", "bfloat16",
              "channels_last", "mixed_precision", "reduce_dtypes", "many_buckets", "emptied_caches",
              "addresses_used_again")


def views_in_all_ways():
    _all_same("views_in_all_ways")


def expandable_segments():
    _all_same("plain", "bucket_views", "small_buckets", "reduce_dtypes", "emptied_caches", **SEGMENTS)


def without_an_exchange_ranks_differ():
    """The negative control."""
    _all_same("gradients_of_the_other_rank")


if __name__ == "__main__":
    main(globals(), 180)

"""test_backend.py - torch.distributed over gradwire on GPUs: what Gloo gives, bit for bit, and no NCCL in the trainers

See tests/integration/backend_rank.py and backend_faults.py for what each scenario does. Ranks share a GPU where there
are fewer. Ends within 5 minutes.
"""

from gpu import Daemon, check_given_back, count_devices, main
from torch_ranks import check_same, check_survivors, need_cuda, run

WORKER, FAULTS = "backend_rank.py", "backend_faults.py"


def _all_same(n, *scenarios, worker=WORKER, **variables):
    need_cuda()
    with Daemon() as daemon:
        check_same(worker, [daemon] * n, *scenarios, n_devices=count_devices(), **variables)
        check_given_back(daemon)


def collectives():
    _all_same(3, "reductions", "reduced_otherwise", "copies", "asynchronous", "unwaited", "strange_strides", "objects",
              "subgroups", "regrouped", "refusals")


def trainings():
    _all_same(2, "plain", "buffers", "small_buckets", "unused_parameters", "static_graph", "uneven_inputs",
              "uneven_inputs_and_unused_parameters", "complex_numbers", "with_the_hook", "sync_batch_norm", "begun_anew")


def trainings_in_expandable_segments():
    _all_same(2, "plain", "buffers", "sync_batch_norm", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def sharded_training():
    _all_same(2, "sharded")


def no_communicator_of_nccl_is_made():
    _all_same(2, "without_nccl")


def an_exception_in_one_backward():
    _all_same(2, "failing_backward", worker=FAULTS)


def _survivors_are_well(n, scenario):
    need_cuda()
    with Daemon() as daemon:
        check_survivors(daemon, run(FAULTS, [daemon] * n, scenario, n_devices=count_devices()), scenario)


def who_is_left_goes_on_without_the_killed_rank():
    _survivors_are_well(3, "killed_rank")


def all_agree_on_a_step_in_which_something_failed():
    _all_same(3, "mismatch_in_a_step", worker=FAULTS)


def who_is_left_agrees_on_the_last_step():
    for scenario in ("death_after_backward", "death_with_a_metric_in_flight", "death_after_a_mismatch", "mismatch_after_a_step"):
        _survivors_are_well(3, scenario)


def without_the_hook_a_killed_rank_is_heard_of_too():
    _survivors_are_well(2, "killed_rank")


def forked_loaders_hide_no_death():
    _survivors_are_well(2, "loaders")


if __name__ == "__main__":
    main(globals(), 300)

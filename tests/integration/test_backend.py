"""test_backend.py - torch.distributed over gradwire on the CPU: what Gloo gives, bit for bit, and what faults do

See backend_rank.py and backend_faults.py for what each scenario does.
"""

from ranks import Daemon, Skip, equal, main
from torch_ranks import TIMEOUT_S, check_same, check_survivors, interrupt_all, restart_under, run, start

WORKER, FAULTS = "backend_rank.py", "backend_faults.py"


def _all_same(n, *scenarios):
    with Daemon(bystanders=False) as daemon:
        check_same(WORKER, [daemon] * n, *scenarios)


def collectives():
    _all_same(3, "reductions", "reduced_otherwise", "copies", "asynchronous", "unwaited",
              "strange_strides", "objects", "subgroups", "regrouped", "refusals")


def trainings():
    _all_same(2, "plain", "buffers", "small_buckets", "unused_parameters", "static_graph", "uneven_inputs",
              "uneven_inputs_and_unused_parameters", "complex_numbers", "with_the_hook", "begun_anew")


def sharded_training():
    with Daemon(bystanders=False) as daemon:
        for rank, (said, errors) in enumerate(run(WORKER, [daemon] * 2, "sharded")):
            if said.get("sharded") == "missing":
                raise Skip("this torch has no FSDP2")
            equal(said.get("sharded"), "same", f"rank {rank} ({errors})")


def an_exception_in_one_backward():
    with Daemon(bystanders=False) as daemon:
        check_same(FAULTS, [daemon] * 2, "failing_backward")


def _survivors_are_well(n, scenario):
    with Daemon(bystanders=False) as daemon:
        check_survivors(daemon, run(FAULTS, [daemon] * n, scenario), scenario)


def who_is_left_goes_on_without_the_killed_rank():
    _survivors_are_well(3, "killed_rank")


def all_agree_on_a_step_in_which_something_failed():
    with Daemon(bystanders=False) as daemon:
        check_same(FAULTS, [daemon] * 3, "mismatch_in_a_step")


def who_is_left_agrees_on_the_last_step():
    for scenario in ("death_after_backward", "death_with_a_metric_in_flight", "death_after_a_mismatch", "mismatch_after_a_step"):
        _survivors_are_well(3, scenario)


def without_the_hook_a_killed_rank_is_heard_of_too():
    _survivors_are_well(2, "killed_rank")


def forked_loaders_hide_no_death():
    _survivors_are_well(2, "loaders")


def a_daemon_that_is_restarted():
    with Daemon(bystanders=False) as daemon:
        restart_under(daemon, FAULTS, "restarted_daemon")


def ctrl_c_ends_a_wait():
    with Daemon(bystanders=False) as daemon:
        interrupt_all(start(FAULTS, [daemon] * 2, "interrupted"), "interrupted")


if __name__ == "__main__":
    main(globals(), TIMEOUT_S + 10)

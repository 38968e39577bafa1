"""test_ddp.py - the hook for DistributedDataParallel on GPUs: the same parameters as over Gloo, bit for bit

See tests/integration/ddp_rank.py for what each scenario does. Two ranks share a GPU where there is one only. Ends within
3 minutes.
"""

import os
import subprocess
import sys

from gpu import Daemon, Skip, check_given_back, count_devices, equal, gwtest, main, spawn

LIMIT_S = 150
WORKER = os.path.join(gwtest.ROOT, "tests", "integration", "ddp_rank.py")
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def _need_torch():
    question = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 1)"
    if subprocess.run([sys.executable, "-c", question], capture_output=True, timeout=120, check=False).returncode != 0:
        raise Skip("no torch")


def _all_same(*scenarios, **variables):
    _need_torch()
    n_devices = count_devices()
    with Daemon() as daemon:
        processes = []
        for rank in range(2):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29655",
                               DEVICE=f"cuda:{rank % n_devices}", GRADWIRE_SOCKET=daemon.socket, GLOO_SOCKET_IFNAME="lo",
                               GRADWIRE_LIBRARY=os.path.join(gwtest.BUILD, "libgradwire.so.0"), **variables)
            processes.append(spawn([sys.executable, "-B", WORKER, *scenarios], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment))
        for rank, process in enumerate(processes):
            output, errors = process.communicate(timeout=LIMIT_S)
            said = dict(line.split(" ", 1) for line in output.splitlines() if " " in line)
            for scenario in scenarios:
                equal(said.get(scenario), "same", f"{scenario} on rank {rank} ({errors[-1500:]})")
        check_given_back(daemon)


def kinds_of_ddp():
    _all_same("plain", "bucket_views", "static_graph", "small_buckets", "unused_parameters", "accumulation",
              "checkpointing", "several_models", "double", "bfloat16", "channels_last", "mixed_precision", "emptied_caches")


def expandable_segments():
    _all_same("plain", "bucket_views", "small_buckets", "emptied_caches", **SEGMENTS)


def without_an_exchange_ranks_differ():
    """The negative control."""
    _all_same("gradients_of_the_other_rank")


if __name__ == "__main__":
    main(globals(), 180)

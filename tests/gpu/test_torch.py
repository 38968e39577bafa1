"""test_torch.py - PyTorch's tensors, with its default allocator and with expandable segments; see torch_worker.py

Ends within 4 minutes.
"""

import os
import shutil
import subprocess
import sys
import tempfile

from gpu import Daemon, Skip, check, check_given_back, equal, gwtest, kill, main, reap, spawn, until

LIMIT_S = 100
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_worker.py")


def _need_torch():
    question = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 1)"
    if subprocess.run([sys.executable, "-c", question], capture_output=True, timeout=120, check=False).returncode != 0:
        raise Skip(f"no torch with CUDA for {sys.executable}")


def _run(what, nranks, **variables):
    _need_torch()
    folder = tempfile.mkdtemp(prefix="gw-test-")
    with Daemon() as daemon:
        environment = dict(os.environ, BUILD=gwtest.BUILD, GRADWIRE_SOCKET=daemon.socket, **variables)
        logs = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(nranks)]
        workers = [spawn([sys.executable, "-B", WORKER, what, str(rank), str(nranks), os.path.join(folder, "id")],
                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment) for rank, log in enumerate(logs)]
        try:
            codes = [reap(worker, LIMIT_S) for worker in workers]
        except AssertionError as error:
            codes = [str(error)]
        finally:
            for worker in workers:
                kill(worker)
            shutil.rmtree(folder, ignore_errors=True)
        for rank, log in enumerate(logs):
            log.seek(0)
            text = log.read()
            log.close()
            for line in text.splitlines():
                if line.startswith("# "):
                    print(f"# rank {rank}: {line[2:]}", flush=True)
            check(text.endswith("ok\n"), f"rank {rank} of {what}: {text[-1500:]}")
        equal(codes, [0] * nranks, "exit codes")
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the trainers have gone")
        check_given_back(daemon)


def tensors_are_averaged_in_place_by_two_processes():
    _run("tensors_are_averaged_in_place", 2)


def tensors_of_expandable_segments_are_averaged_in_place():
    _run("tensors_are_averaged_in_place", 2, **SEGMENTS)


def gradients_of_a_network_on_several_streams():
    _run("gradients_of_a_network_on_several_streams", 2)


def gradients_in_expandable_segments_with_one_connection():
    _run("gradients_of_a_network_on_several_streams", 2, CUDA_DEVICE_MAX_CONNECTIONS="1", **SEGMENTS)


def release_gives_the_memory_back():
    _run("release_gives_the_memory_back", 1)


def release_gives_expandable_segments_back():
    _run("release_gives_the_memory_back", 1, **SEGMENTS)


def memory_at_the_same_address_is_refused_as_stale():
    _run("memory_at_the_same_address_is_refused_as_stale", 1)


def expandable_segments_at_the_same_address_are_refused_as_stale():
    _run("memory_at_the_same_address_is_refused_as_stale", 1, **SEGMENTS)


def an_allocation_works_after_the_release_that_it_needs():
    _run("an_allocation_works_after_the_release_that_it_needs", 1)


def an_allocation_of_expandable_segments_works_after_the_release_that_it_needs():
    _run("an_allocation_works_after_the_release_that_it_needs", 1, **SEGMENTS)


if __name__ == "__main__":
    main(globals(), LIMIT_S + 20)

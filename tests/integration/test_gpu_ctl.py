"""test_gpu_ctl.py - gwctl topo, and what gwctl doctor says of GPUs: with none, and with the simulated driver

The simulated driver (tests/fake_cuda) is a libcuda.so.1 on the CPU. Faults that it does not have itself come from small
libraries that are loaded before it and answer some of its calls in its place.
"""

import atexit
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile

from ranks import PATIENCE_S, Daemon, Skip, check, contains, equal, gwtest, main, program

NOWHERE = "/no/such/socket"
FOLDER = tempfile.mkdtemp(prefix="gw-test-gpu-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def _gwctl(*words, env=None, socket=NOWHERE):
    """Runs gwctl on a host whose driver, if any, is named by env."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GRADWIRE_", "FAKE_CUDA_", "CUDA_", "LD_"))}
    return subprocess.run([program("gwctl"), "--socket", socket, *words], capture_output=True, text=True,
                          timeout=PATIENCE_S, env={**clean, **(env or {})}, check=False)


def _no_driver():
    """Passes if this host has no driver of its own."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    raise Skip("this host has a GPU driver")


def _simulated(**more):
    """The environment that has the simulated driver."""
    if not os.path.exists(program("gradwire/gwctl-cuda.so")):
        raise Skip("it was built without a CUDA toolkit")
    return {"LD_LIBRARY_PATH": program("tests/fake"), "FAKE_CUDA_DIR": FOLDER, **more}


def _topo(*words, env):
    result = _gwctl("--json", "topo", *words, env=env)
    return result, json.loads(result.stdout)


def _doctor(env, socket=NOWHERE):
    """The checks about GPUs, by name."""
    result = _gwctl("--json", "doctor", env=env, socket=socket)
    checks = {c["check"]: c for c in json.loads(result.stdout)}
    return {name: c for name, c in checks.items() if "GPU" in name or name == "MPS"}


def _verdicts(checks):
    # NVML and the kernel's part of a driver are this host's, not simulated.
    hosts = ("GPU management", "GPU devices", "daemon: GPU devices")
    return {name: c["verdict"] for name, c in checks.items() if name not in hosts}


def _instead(name, source):
    """The environment in which some calls of the driver are answered by this C text."""
    path = os.path.join(FOLDER, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        compiler = shutil.which("cc")
        check(compiler, "there is no cc")
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", path, "-x", "c", "-"], input=source, text=True,
                       timeout=PATIENCE_S, check=True)
    options = os.environ.get("ASAN_OPTIONS", "")
    return {"LD_PRELOAD": path, "ASAN_OPTIONS": f"{options}:verify_asan_link_order=0".lstrip(":")}


# ---- without GPUs ------------------------------------------------------------------------------------


def without_a_driver_topo_says_so():
    _no_driver()
    result = _gwctl("topo")
    equal((result.returncode, result.stdout), (1, ""), "exit code and output")
    contains(result.stderr, "no GPU", "no NVIDIA driver", "libcuda.so.1")
    result, document = _topo(env={})
    equal((result.returncode, document["gpus"]), (1, []), "exit code and GPUs")
    contains(document["reason"], "libcuda.so.1")


def without_a_driver_the_doctor_passes_over_GPUs():
    _no_driver()
    checks = _doctor({})
    check(all(c["verdict"] != "failed" for c in checks.values()), f"a check failed: {checks}")
    contains(checks["GPU"]["detail"], "no GPU", "libcuda.so.1")
    equal(len(checks), 1, "checks about GPUs")


def simulated_driver_without_the_plugin():
    env = _simulated(GRADWIRE_PLUGIN_DIR="/no/such/folder")
    result, document = _topo(env=env)
    equal((result.returncode, document["gpus"]), (1, []), "exit code and GPUs")
    contains(document["reason"], "gwctl-cuda.so", "/no/such/folder")
    equal(_verdicts(_doctor(env)), {"GPU plugin": "warning"}, "the doctor")


def simulated_driver_without_a_device():
    for env in (_simulated(FAKE_CUDA_DEVICES="0"), _simulated(CUDA_VISIBLE_DEVICES="7")):
        result, document = _topo(env=env)
        equal((result.returncode, document["gpus"]), (1, []), "exit code and GPUs")
        contains(document["reason"], "driver, but no device")
        equal(_verdicts(_doctor(env)), {"GPU": "ok"}, "the doctor")
    contains(document["reason"], "CUDA_VISIBLE_DEVICES=7")


def simulated_driver_that_does_not_start():
    env = _simulated(FAKE_CUDA_FAIL="cuInit:1")
    contains(_gwctl("topo", env=env).stderr, "cuInit", "CUDA_ERROR_UNKNOWN")
    equal(_verdicts(_doctor(env)), {"GPU driver": "failed"}, "the doctor")


# ---- topo --------------------------------------------------------------------------------------------


def simulated_GPUs_are_listed():
    result, document = _topo("--no-measure", env=_simulated())
    equal((result.returncode, result.stderr), (0, ""), "gwctl topo")
    equal([(g["index"], g["name"]) for g in document["gpus"]], [(0, "Simulated GPU"), (1, "Simulated GPU")], "the GPUs")
    equal(len({g["uuid"] for g in document["gpus"]} | {g["bus_id"] for g in document["gpus"]}), 4, "names")
    check(all(g["uuid"].startswith("GPU-") and g["memory_bytes"] > 0 for g in document["gpus"]), f"{document['gpus']}")
    equal([row[i] for i, row in enumerate(document["links"])], ["X", "X"], "the diagonal")
    check("copies" not in document and "reason" not in document, f"{document.keys()}")
    text = _gwctl("topo", "--no-measure", env=_simulated()).stdout
    contains(text, "Simulated GPU", *(g["uuid"] for g in document["gpus"]), "GPU0  GPU1")


def simulated_copies_are_as_fast_as_they_are():
    """Copies that take at least their time at 1 GB/s are measured as no faster."""
    result, document = _topo(env=_simulated(FAKE_CUDA_COPY_GBPS="1"))
    equal((result.returncode, result.stderr), (0, ""), "gwctl topo")
    copies = document["copies"]
    rates = [g[what] for g in copies["gpus"] for what in ("to_host", "from_host", "both_ways")]
    rates += [copies["all_both_ways"]] + [p[what] for p in copies["pairs"] for what in ("alone", "both_ways")]
    equal(len(rates), 11, "rates")
    check(all(0 < rate < 1.1 for rate in rates), f"rates {rates}")
    check(max(rates) > 0.5 / gwtest.SLOW, f"rates {rates}")
    equal(sorted((p["from"], p["to"], p["direct"]) for p in copies["pairs"]), [(0, 1, True), (1, 0, True)], "pairs")
    text = _gwctl("topo", env=_simulated()).stdout
    contains(text, "TO HOST", "all 2 GPUs both ways at once", "from row to column")


def simulated_GPUs_can_be_picked():
    env = _simulated(FAKE_CUDA_DEVICES="3")
    everything = _topo("--no-measure", env=env)[1]["gpus"]
    uuid = everything[2]["uuid"]
    for words, wanted in ((("--device=1",), [1]), (("--device", uuid), [2]), (("--device", uuid, "--device=0"), [0, 2])):
        document = _topo("--no-measure", *words, env=env)[1]
        equal([g["index"] for g in document["gpus"]], wanted, f"topo {words}")
        equal([len(row) for row in document["links"]], [len(wanted)] * len(wanted), "the links")
    for which in ("3", "GPU-7369", "GPU-x", ""):
        result = _gwctl("topo", "--device", which, env=env)
        equal((result.returncode, result.stdout), (1, ""), f"--device {which!r}")
    for words in (("status", "--device=0"), ("doctor", "--no-measure"), ("topo", "--device")):
        equal(_gwctl(*words, env=env).returncode, 2, f"gwctl {words}")


def simulated_copies_that_fail_are_said():
    env = _simulated(FAKE_CUDA_FAIL="cuMemcpyPeerAsync:1")
    result, document = _topo(env=env)
    equal((result.returncode, len(document["gpus"])), (1, 2), "exit code and GPUs")
    contains(document["copies_failed"], "cuMemcpyPeerAsync")
    check("copies" not in document, "copies that were not measured")
    result = _gwctl("topo", env=env)
    contains(result.stderr, "cuMemcpyPeerAsync")
    contains(result.stdout, "Simulated GPU")


NVML = """
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned bytes) { strncpy(text, "1.2.3", bytes); return 0; }
static char devices[4];
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strncmp(uuid, "GPU-", 4) != 0) return 6;
    *device = &devices[uuid[strlen(uuid) - 1] - '0'];
    return 0;
}
static int place(void *device) { return (char *)device - devices; }
/* GPUs 0 to 2 have four links each to a switch, which keeps 2 apart; 0 and 3 have two of their own. */
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    if (link >= 6) return 2;
    *active = place(device) < 3 && link < 4 || link >= 4 && place(device) % 3 == 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *type) {
    *type = link < 4 ? 2 : 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_t *pci) {
    memset(pci, 0, sizeof(*pci));
    pci->bus = link < 4 ? 0x99 : 0x10 + 3 - place(device);
    return 0;
}
int nvmlDeviceGetP2PStatus(void *left, void *right, int what, int *status) {
    *status = what == 2 && place(left) != 2 && place(right) != 2 ? 0 : 4;
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void *left, void *right, int *level) {
    *level = place(left) + place(right) == 3 ? 30 : 50;
    return 0;
}
"""


def simulated_links_are_named_as_nvidia_smi_names_them():
    env = _simulated(FAKE_CUDA_DEVICES="4")
    folder = os.path.dirname(_instead("nvml/libnvidia-ml.so.1", NVML)["LD_PRELOAD"])
    document = _topo("--no-measure", env={**env, "LD_LIBRARY_PATH": f"{folder}:{env['LD_LIBRARY_PATH']}"})[1]
    equal(document["driver"], "1.2.3", "the driver's version")
    equal(document["links"], [["X", "NV4", "SYS", "NV2"], ["NV4", "X", "PHB", "SYS"], ["SYS", "PHB", "X", "SYS"],
                              ["NV2", "SYS", "SYS", "X"]], "the links")


# ---- the doctor --------------------------------------------------------------------------------------

GOOD = {name: "ok" for name in ("GPU driver", "GPU pinned memory", "GPU stream words", "GPU sharing", "GPU peer copies",
                                "MPS")}


def simulated_GPUs_pass_all_checks():
    with Daemon(bystanders=False, checks=False) as daemon:
        checks = _doctor(_simulated(CUDA_MPS_PIPE_DIRECTORY="/no/such/folder"), daemon.admin)
        equal(_verdicts(checks), {**GOOD, "daemon: GPU memory": "ok"}, "the checks")
        contains(checks["GPU driver"]["detail"], "2 Simulated GPU")
        contains(checks["GPU sharing"]["detail"], "GPU 0, 1")
        contains(checks["GPU peer copies"]["detail"], "1 pair")


def _expect_bad(env, name, *parts, verdict="failed"):
    checks = _doctor(_simulated(**env))
    check(name in checks, f"{name!r} is not among {_verdicts(checks)}")
    equal(checks[name]["verdict"], verdict, name)
    contains(checks[name]["detail"], *parts)
    check(checks[name]["remedy"], f"{name} has no remedy")
    return checks


def simulated_calls_that_fail_fail_their_check():
    _expect_bad({"FAKE_CUDA_FAIL": "cuDevicePrimaryCtxRetain:2"}, "GPU 1: context", "CUDA_ERROR_UNKNOWN")
    _expect_bad({"FAKE_CUDA_FAIL": "cuMemHostRegister:1"}, "GPU 0: pinned memory", "CUDA_ERROR_UNKNOWN")
    _expect_bad({"FAKE_CUDA_FAIL": "cuStreamWaitValue32:2"}, "GPU 1: stream words", "CUDA_ERROR_UNKNOWN")
    _expect_bad({"FAKE_CUDA_FAIL": "cuMemcpyPeerAsync:3"}, "GPU 0 and 1: copies", "CUDA_ERROR_UNKNOWN")


def simulated_memory_that_cannot_be_opened():
    """One way to open it is enough to go on with; none is a failure."""
    _expect_bad({"FAKE_CUDA_FAIL": "cuIpcOpenMemHandle:1"}, "GPU 0: sharing", "by IPC handle: cuIpcOpenMemHandle",
                "by file descriptor: works", verdict="warning")
    _expect_bad({"FAKE_CUDA_NO_IPC": "1"}, "GPU 1: sharing", "by file descriptor: works", verdict="warning")
    _expect_bad({"FAKE_CUDA_NO_IPC": "1", "FAKE_CUDA_FAIL": "cuMemImportFromShareableHandle:1"}, "GPU 0: sharing",
                "by file descriptor: cuMemImportFromShareableHandle")


def simulated_copies_that_lose_bytes():
    """Every call says that all went well, as on hosts whose PCIe bridges lose what GPUs send each other."""
    lost = _instead("lost.so", "int cuMemcpyPeerAsync() { return 0; }")
    checks = _expect_bad(lost, "GPU 0 and 1: copies", "bytes are wrong")
    equal(checks["GPU sharing"]["verdict"], "ok", "sharing, which copies between no GPUs")


def simulated_memory_of_somebody_else():
    other = _instead("other.so", """
        int cuMemAlloc_v2(unsigned long long *at, unsigned long bytes);
        int cuMemFree_v2(unsigned long long at);
        int cuIpcOpenMemHandle_v2(unsigned long long *at, ...) { return cuMemAlloc_v2(at, 2 << 20); }
        int cuIpcCloseMemHandle(unsigned long long at) { return cuMemFree_v2(at); }""")
    _expect_bad({**other, "LD_PRELOAD": f"{other['LD_PRELOAD']} {program('tests/fake/libcuda.so.1')}"}, "GPU 0: sharing",
                "by IPC handle", "bytes are wrong", "by file descriptor: works")


def simulated_streams_that_do_not_wait():
    hasty = _instead("hasty.so", "int cuStreamWaitValue32_v2() { return 0; }")
    _expect_bad(hasty, "GPU 0: stream words", "did not wait")


def simulated_driver_that_crashes():
    """The doctor itself goes on, and shows what was found until then."""
    crash = _instead("crash.so", "void abort(void); int cuMemcpyPeerAsync() { abort(); }")
    checks = _expect_bad(crash, "GPU checks", "signal 6", "after GPU sharing")
    equal(checks["GPU sharing"]["verdict"], "ok", "an earlier check")


def simulated_MPS_is_noticed():
    pipes = os.path.join(FOLDER, "mps")
    os.makedirs(pipes)
    with open(os.path.join(pipes, "control"), "w", encoding="ascii"):
        pass
    _expect_bad({"CUDA_MPS_PIPE_DIRECTORY": pipes}, "MPS", pipes, verdict="warning")
    named = "open('/proc/self/comm', 'w').write('nvidia-cuda-mps-control'); print('ready', flush=True); input()"
    control = gwtest.spawn([sys.executable, "-c", named], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        equal(control.stdout.readline(), b"ready\n", "the process that looks like MPS")
        _expect_bad({}, "MPS", f"process {control.pid}", "killed", verdict="warning")
    finally:
        gwtest.kill(control)
        control.stdin.close()
        control.stdout.close()


if __name__ == "__main__":
    main(globals())

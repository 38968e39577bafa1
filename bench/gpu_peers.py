"""The processes and the counters of `make bench-gpu`; gpu_rank.cu and gpu_limit.cu say what they are told."""
import ctypes
import json
import os
import re
import subprocess

import peers

ANSWER_SECONDS = 60.0  # a rank ends itself before that


class Processes(peers.Peer):
    """A peer whose answers are JSON objects, one a process, in the order of ranks."""

    run_seconds = ANSWER_SECONDS

    def ask(self, line):
        self.send(line + "\n")
        return [json.loads(self.read(stream).partition(" ")[2]) for stream in self.streams]

    def kill(self):
        """For processes that may hang: nothing is waited for but their end."""
        for process in self.processes:
            process.kill()
        self.stop()


class Limit(Processes):
    """The process that copies on all GPUs at once. It knows which GPUs there are."""

    def __init__(self, build, folder):
        super().__init__("limit", 1, folder)
        program = os.path.join(build, "bench", "gpu_limit")
        self.start([[program, self.control]], 1, peers.library_environment(build))
        self.devices = json.loads(self.hello[0])

    def copy(self, ms):
        return self.ask(f"copy {ms}")[0]


class Ranks(Processes):
    """The ranks of gradwire or of NCCL, one process each."""

    def __init__(self, name, kind, build, folder, devices, capacity_bytes, **environment):
        super().__init__(name, len(devices), folder)
        meeting = os.path.join(folder, name.replace(" ", "-") + ".meet")
        with open(meeting, "wb") as page:
            page.write(bytes(4096))
        program = os.path.join(build, "bench", "gpu_rank")
        environment["GRADWIRE_PLUGIN_DIR"] = os.path.join(os.path.abspath(build), "gradwire")
        commands = [[program, kind, self.control, meeting, str(len(devices)), str(rank), str(device),
                     str(capacity_bytes)] for rank, device in enumerate(devices)]
        self.start(commands, len(devices), peers.library_environment(build, **environment))
        try:
            self.about = self.ask(f"id {self.hello[0]}")[0]
        except BaseException:
            self.kill()
            raise

    def time(self, size, count):
        """Rank 0's times of one operation, in us."""
        return [ns / 1e3 for ns in self.ask(f"time {size} {count}")[0]["ns"]]

    def flow(self, size, n_buckets, ms, bytes_per_s=0.0):
        """Returns GB/s as rank 0 saw them, the ranks' kernels a second, and all bytes that were exchanged."""
        answers = self.ask(f"flow {size} {n_buckets} {ms} {bytes_per_s:.0f}")
        gbps = answers[0]["ops"] * size / max(answers[0]["ns"], 1)
        return gbps, [a["kernels_per_s"] for a in answers], answers[0]["all"] * size

    def rest(self, ms):
        """The ranks' kernels a second while nothing is exchanged."""
        return self.flow(0, 0, ms)[1]

    def check(self, size, seed):
        """How many results are wrong. Where ranks differ in a bit, all are."""
        answers = self.ask(f"check {size} {seed}")
        differ = len({a["digest"] for a in answers}) > 1
        return size // 4 if differ else sum(a["wrong"] for a in answers)

    def load(self, kind):
        self.ask(f"load {kind}")


def start_daemon(build, folder, arguments):
    """A gradwired whose deadlines end what hangs before the benchmark's own time is over."""
    return peers.Daemon(build, folder, ["--deadline.bootstrap_s=30", "--deadline.bucket_s=10", *arguments])


def daemon_text(build, daemon):
    """What the daemon knows and wrote: for whoever looks for the reason of a failure."""
    text = ""
    for command in ("groups", "buckets", "buffers"):
        try:
            admin = os.path.join(os.path.dirname(daemon.socket), "admin.sock")
            text += subprocess.run([os.path.join(build, "gwctl"), "--socket", admin, command], capture_output=True, text=True,
                                   timeout=5, check=False, env=peers.library_environment(build)).stdout
        except (OSError, subprocess.TimeoutExpired) as why:
            text += f"gwctl {command}: {why}\n"
    with open(daemon.log_path, encoding="utf-8", errors="replace") as log:
        return text + log.read()[-3000:]


def cpu_seconds(pid):
    """Of all threads of a process, in user and kernel mode."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        words = stat.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# ---- counters of the links ------------------------------------------------------------------------

class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t"""

    _fields_ = [("field", ctypes.c_uint32), ("scope", ctypes.c_uint32), ("timestamp", ctypes.c_int64),
                ("latency_us", ctypes.c_int64), ("type", ctypes.c_int), ("result", ctypes.c_int),
                ("value", ctypes.c_uint64)]


class Counters:
    """NVML's byte counters of the links of all GPUs, where this machine lets them be read.

    NVLink: data sent, in KiB, over all links of a GPU. PCIe: bytes sent and received. A counter that any GPU does not
    have is None.
    """

    NVLINK_DATA_TX_KIB, PCIE_TX, PCIE_RX = 138, 197, 198
    ALL_LINKS = 0xFFFFFFFF

    def __init__(self, buses):
        self.nvml, self.handles, self.asks_tool = None, [], True
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            if nvml.nvmlInit_v2() != 0:
                return
            for bus in buses:
                handle = ctypes.c_void_p()
                if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle)) != 0:
                    return
                self.handles.append(handle)
            self.nvml = nvml
        except (OSError, AttributeError):
            pass

    def field(self, field, scope=0):
        total = 0
        if self.nvml is None:
            return None
        for handle in self.handles:
            value = FieldValue(field=field, scope=scope)
            try:
                failed = self.nvml.nvmlDeviceGetFieldValues(handle, 1, ctypes.byref(value)) != 0 or value.result != 0
            except AttributeError:
                return None
            if failed:
                return None
            total += value.value
        return total

    def nvlink_kib(self):
        value = self.field(self.NVLINK_DATA_TX_KIB, self.ALL_LINKS)
        if value is None and self.nvml is not None and self.asks_tool:
            value = nvlink_of_tool()
            self.asks_tool = value is not None
        return value

    def read(self):
        return {"nvlink_kib": self.nvlink_kib(), "pcie_tx": self.field(self.PCIE_TX), "pcie_rx": self.field(self.PCIE_RX)}

    def since(self, before):
        """What was counted since `before`; None where it cannot be read."""
        now = self.read()
        return {key: None if None in (now[key], before[key]) else now[key] - before[key] for key in now}


def nvlink_of_tool():
    """The sum that nvidia-smi shows of data sent, in KiB; None where it shows none."""
    try:
        text = subprocess.run(["nvidia-smi", "nvlink", "-gt", "d"], capture_output=True, text=True, timeout=10,
                              check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    values = re.findall(r"Data Tx: *(\d+) *KiB", text)
    return sum(map(int, values)) if values else None

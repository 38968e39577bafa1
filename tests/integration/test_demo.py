"""test_demo.py - the demonstration on two nodes, in short: a few steps of the training"""

import contextlib
import copy
import io
import os
import re
import signal
import subprocess
import sys
import tempfile

from ranks import SLOW, Skip, check, contains, equal, gwtest, main, program, wait_until

EXAMPLE = os.path.join(gwtest.ROOT, "examples", "fashion_mnist")
PATIENCE_S = 100 * SLOW
IMAGES = "/usr/share/datasets/fashion-mnist"
sys.path.insert(0, EXAMPLE)

import nodes as demo  # noqa: E402


def _command(*options):
    if not os.path.exists(program("examples/fashion_mnist")) or not os.path.isdir(IMAGES):
        raise Skip("there are no images and no OpenBLAS")
    return [sys.executable, os.path.join(EXAMPLE, "nodes.py"), "--build", os.environ["BUILD"], *options]


def training_on_two_nodes():
    """In namespaces where they can be made."""
    result = subprocess.run(_command("--epoch-steps=6", "--limited-steps=3"), capture_output=True, text=True,
                            timeout=PATIENCE_S, check=False)
    check(result.returncode == 0, f"it ended with {result.returncode}: {result.stdout[-2000:]} {result.stderr[-2000:]}")
    check("FAIL" not in result.stdout, result.stdout)
    contains(result.stdout, "equal bit for bit", "int8", "not judged", "The picture")
    apart = "joined by veth" in result.stdout
    contains(result.stdout, "at the interfaces" if apart else "not two hosts")
    saved = re.search(r"^int8 +\S+ +\S+ +\S+ +(\S+) ", result.stdout, re.M)
    check(saved and 74 < float(saved[1]) < 75.5, f"int8 saves {saved and saved[1]} %, 74.6 are expected")


def an_interrupted_one_leaves_nothing():
    with tempfile.TemporaryFile() as out:
        running = subprocess.Popen(_command("--epoch-steps=100"), stdout=subprocess.PIPE, stderr=out, text=True)
        for line in running.stdout:
            if "codec none" in line:
                break
        paths = set(re.findall(r"/tmp/gw-nodes-\w+", _commands_of(running.pid)))
        equal(len(paths), 1, f"folders of its daemons, {paths}")
        running.send_signal(signal.SIGINT)
        running.stdout.close()
        equal(running.wait(timeout=PATIENCE_S), 130, "exit code")
    path = paths.pop()
    check(not os.path.exists(path), f"{path} is left")
    wait_until(lambda: path not in _commands_of(), PATIENCE_S, "its daemons and trainers have ended")


def _commands_of(parent=None):
    """Command lines of all processes, or of the children of one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                if parent and int(file.read().rsplit(")", 1)[1].split()[1]) != parent:
                    continue
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                found.append(file.read().replace("\0", " "))
    return "\n".join(found)


def _figures(codec):
    """As of a training that went well."""
    return {"codec": codec, "ranks": 4, "nodes": 2, "bucket_elements": [1000000, 100], "test_images": 10000, "correct": 8500,
            "flipped_hash": "bb", "hashes": [["aa" + codec] * 4], "loss": [2.0, 1.0 + 0.001 * (codec != "none")] * 150,
            "step_us": [1000] * 300, "wire_bytes": 2 * 1000100 * demo.two_nodes.BYTES[codec] * 300}


class _Links:
    apart = True


def _failures(change=None, codec="int8"):
    """How many judgements fail when the figures of one training have been changed."""
    runs = {name: _figures(name) for name in ("none", "int8")}
    alone = copy.deepcopy(runs["none"])
    if change:
        runs[codec].update(change)
    with contextlib.redirect_stdout(io.StringIO()):
        judge = demo.Judge()
        demo.judge_training(judge, alone, runs)
        demo.judge_accuracy(judge, runs)
        demo.judge_wire(judge, _Links(), runs)
    return judge.failures


def what_is_wrong_fails():
    equal(_failures(), 0, "failures of a good training")
    none = _figures("none")
    for what, change, codec in (("a replica that differs", {"hashes": [["aa", "aa", "aa", "ab"]]}, "int8"),
                                ("a flipped bit that is not seen", {"flipped_hash": "aaint8"}, "int8"),
                                ("accuracy that is lost", {"correct": 8449}, "int8"),
                                ("accuracy that nobody has", {"correct": 8551}, "int8"),
                                ("too many bytes", {"wire_bytes": 1.06 * _figures("int8")["wire_bytes"]}, "int8"),
                                ("a codec that does nothing", {"hashes": none["hashes"], "loss": none["loss"]}, "int8"),
                                ("a codec that the curve does not show", {"loss": [2.0, 1.000001] * 150}, "int8"),
                                ("a loss curve of its own", {"loss": [2.0, 1.01] * 150}, "none")):
        check(_failures(change, codec) > 0, f"{what} goes unnoticed")


if __name__ == "__main__":
    main(globals(), 110)

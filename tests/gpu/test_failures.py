"""test_failures.py - a device that fails, and memory that cannot be opened: who hears of it, and what goes on

The simulated driver fails when FAKE_CUDA_FAIL says so, in the daemon alone. Ends within 2 minutes.
"""

from gpu import SIMULATED, SLOW, Daemon, Skip, contains, device_states, equal, exchange, join, main, prepare, \
    submit, until
from ranks import gw

PATIENCE_MS = 20000 * SLOW
ONE_CHUNK = 1000  # elements: two copies in, two out
CHUNKS = (1 << 20) + 13
IPC = 2


def _daemon(fail, *flags, **options):
    if not SIMULATED:
        raise Skip("no GPU fails when it is told to")
    return Daemon("--device.stream_bytes=0", *flags, env={"FAKE_CUDA_FAIL": fail} if fail else {}, **options)


def _group(daemon, count, *devices, **options):
    ranks = [daemon.rank(memory=device) for device in devices]
    join(ranks)
    prepare(ranks, count=count, **options)
    return ranks


def _check_sum(ranks, count):
    exchange(ranks)
    for rank in ranks:
        equal(rank.ok(f"expect b f32 {count} 3"), "0", "wrong elements")


def _fail(fail, count, what="all_reduce f32 sum", first="device:0"):
    """An operation that the failure hits must end with the device's name, and nothing else may suffer."""
    print(f"# {fail}, {count} elements, {what}", flush=True)
    with _daemon(fail, checks=False) as daemon:
        others = _group(daemon, 100, "host", "host")
        ranks = _group(daemon, count, first, "device:0", what=what)
        uuid = daemon.admin_json("status")["devices"][0]["uuid"]
        for rank, op in zip(ranks, submit(ranks)):
            rank.expect("GW_ERR_DEVICE", f"wait g {op} {PATIENCE_MS}")
            rank.expect("GW_ERR_DEVICE", "check g", uuid, "last=0")
        equal(device_states(daemon), {uuid: "failed"}, "devices")
        equal(ranks[1].ok("alloc c 4096"), "stream", "how the daemon gets at memory of the failed device")
        _check_sum(others, 100)
        elsewhere = _group(daemon, CHUNKS, "device:1", "device:1")
        _check_sum(elsewhere, CHUNKS)
        for rank in ranks:
            for command in ("drop k", "release b", "leave g"):
                rank.ok(command)
        until(lambda: uuid not in device_states(daemon), "the failed device is closed")
        join(ranks)
        prepare(ranks, count=CHUNKS)
        _check_sum(ranks, CHUNKS)
        equal(device_states(daemon)[uuid], "open", "the device that had failed")
        daemon.check_bystanders()
        daemon.close_ranks()
        daemon.check_new_group()
        until(lambda: daemon.admin_json("status")["buffers"] == 0 and daemon.is_closed(), "nothing is left")
        daemon.stop()


def a_copy_that_cannot_be_started_fails_its_group():
    for n in (1, 2, 3, 4):  # the last of them is the last copy of all
        _fail(f"cuMemcpyAsync:{n}", ONE_CHUNK)
    _fail("cuMemcpyAsync:7", CHUNKS)


def a_copy_that_breaks_the_device_fails_its_group():
    for n in (1, 2, 3, 4):
        _fail(f"cuMemcpyAsync:{n}:sticky", ONE_CHUNK)
    for n in (7, 20):
        _fail(f"cuMemcpyAsync:{n}:sticky", CHUNKS)


def a_copy_that_is_lost_on_its_way_fails_its_group():
    for count in (ONE_CHUNK, CHUNKS):
        for kind in ("", ":sticky"):
            _fail(f"cuEventQuery:1{kind}", count)


def a_result_that_is_lost_on_its_way_fails_its_group():
    """Nothing is copied in: the host's memory goes out to the device."""
    for fail in ("cuMemcpyAsync:1", "cuMemcpyAsync:1:sticky", "cuEventQuery:1:sticky"):
        _fail(fail, ONE_CHUNK, what="broadcast f32 sum", first="host")


def without_a_failure_nothing_fails():
    """The negative control: the same daemon, told nothing."""
    with _daemon(None) as daemon:
        for count in (ONE_CHUNK, CHUNKS):
            ranks = _group(daemon, count, "device:0", "device:0")
            _check_sum(ranks, count)


def memory_that_cannot_be_opened_goes_by_the_stream():
    with _daemon("cuIpcOpenMemHandle:5") as daemon:  # what a daemon opens before is not always the same
        ranks = [daemon.rank(memory="device:0") for _ in range(2)]
        join(ranks)
        paths = []
        for number in range(3):
            for rank in ranks:
                paths.append(rank.ok(f"alloc b{number} {CHUNKS * 4}"))
        equal(sorted(paths), ["ipc"] * 5 + ["stream"], "how the daemon gets at the memory")
        for number in range(3):
            for value, rank in enumerate(ranks):
                rank.ok(f"fill b{number} f32 {CHUNKS} {value + 1}")
                rank.ok(f"bucket k{number} g all_reduce f32 sum {CHUNKS} b{number}:0 b{number}:0")
            exchange(ranks, bucket=f"k{number}")
            for rank in ranks:
                equal(rank.ok(f"expect b{number} f32 {CHUNKS} 3"), "0", "wrong elements")
        shown = [buffer for buffer in daemon.admin_json("buffers") if buffer["copied"]]
        equal([buffer["path"] for buffer in shown], ["copied by the client's stream"], "what gwctl shows")
        contains(shown[0]["why"], "cuIpcOpenMemHandle")


def a_context_that_an_import_finds_broken_is_not_kept():
    with _daemon("cuIpcOpenMemHandle:1:sticky", "--device.linger_s=600", checks=False) as daemon:
        rank = daemon.rank(memory="device:0")
        equal(rank.ok("alloc a 4096"), "stream", "memory that broke the context")
        until(lambda: daemon.is_closed() and not device_states(daemon), "the context is closed")
        equal(rank.ok("alloc b 4096"), "ipc", "memory in the new context")
        daemon.close_ranks()
        daemon.stop()


def a_device_has_one_name():
    """Each name would have an arena of its own."""
    with _daemon(None) as daemon:
        daemon.rank(memory="device:0").ok("alloc b 4096")
        uuid = daemon.admin_json("status")["devices"][0]["uuid"]
        answers = {}
        with gw.Client(daemon.socket, timeout=20 * SLOW) as client:
            for name in (uuid, "gpu-" + uuid[4:], "x\n-" + uuid[4:], uuid[4:], "-" + uuid[4:], uuid + "0"):
                request = client.post("BufferCreate", bytes=4096, parts=1, device=name)
                client.post("BufferPart", [], request, index=0, kind=IPC, offset=0, bytes=4096, data=bytes(64))
                try:
                    client.answer(request, 30 * SLOW)
                except gw.Refused as refusal:
                    answers[name] = refusal.status
        equal(answers.pop(uuid), "GW_ERR_BUFFER_IMPORT", "the right name with a wrong handle")
        equal(list(answers.values()), ["GW_ERR_UNSUPPORTED"] * 5, "wrong names")


if __name__ == "__main__":
    main(globals(), 110)

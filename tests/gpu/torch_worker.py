"""torch_worker.py - a process that averages PyTorch's tensors through libgradwire, started by test_torch.py

  torch_worker.py WHAT RANK NRANKS ID_FILE     WHAT: a function below

Prints "ok" as its last line, or the exception that ended it.
"""

import ctypes
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from gradwire._library import BucketDesc  # noqa: E402

LIBRARY = ctypes.CDLL(os.path.join(os.environ["BUILD"], "libgradwire.so"), mode=ctypes.RTLD_GLOBAL)
GW_OK, STALE = 0, "GW_ERR_BUFFER_STALE"
ALL_REDUCE, SUM, AVG = 1, 1, 2
TYPES = {torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.bfloat16: 4, torch.int8: 5, torch.uint8: 6,
         torch.int32: 7, torch.int64: 8}
MB = 1 << 20


for _name in ("gw_status_name", "gw_last_error", "gw_buffer_path"):
    getattr(LIBRARY, _name).restype = ctypes.c_char_p


def call(name, *arguments):
    """The status' name."""
    return LIBRARY.gw_status_name(getattr(LIBRARY, name)(*arguments)).decode()


def must(name, *arguments):
    status = call(name, *arguments)
    if status != "GW_OK":
        raise AssertionError(f"{name}: {status}: {LIBRARY.gw_last_error().decode()}")


def check(condition, what):
    if not condition:
        raise AssertionError(what)


class Group:
    def __init__(self, rank, nranks, path):
        self.context, self.group, unique_id = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(128)
        self.rank, self.nranks = rank, nranks
        must("gw_connect", None, ctypes.byref(self.context))
        if rank == 0:
            must("gw_get_unique_id", self.context, unique_id)
            with open(path + ".new", "wb") as file:
                file.write(unique_id.raw)
            os.rename(path + ".new", path)
        end = time.monotonic() + 60
        while not os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.01)
        with open(path, "rb") as file:
            unique_id.raw = file.read()
        must("gw_group_init", self.context, unique_id, nranks, rank, ctypes.byref(self.group))

    def register(self, tensor):
        buffer = ctypes.c_void_p()
        must("gw_buffer_register", self.context, ctypes.c_void_p(tensor.data_ptr()),
             ctypes.c_uint64(tensor.numel() * tensor.element_size()), ctypes.byref(buffer))
        return buffer

    def path(self, buffer):
        return LIBRARY.gw_buffer_path(buffer).decode()

    def bucket(self, tensor, redop=AVG, name=b"gradient"):
        bucket, at = ctypes.c_void_p(), tensor.data_ptr()
        desc = BucketDesc(ctypes.sizeof(BucketDesc), name, ALL_REDUCE, TYPES[tensor.dtype], redop, 0, tensor.numel(), at, at)
        must("gw_bucket_create", self.group, ctypes.byref(desc), ctypes.byref(bucket))
        return bucket

    def submit(self, bucket, op=None):
        op = ctypes.c_uint64() if op is None else op
        return call("gw_submit", bucket, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), ctypes.byref(op))

    def reduce(self, bucket):
        """On the current stream, as torch's own collectives."""
        op = ctypes.c_uint64()
        status = self.submit(bucket, op)
        check(status == "GW_OK", f"gw_submit: {status}: {LIBRARY.gw_last_error().decode()}")
        must("gw_stream_wait", self.group, op, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def check(self):
        torch.cuda.synchronize()
        must("gw_group_check", self.group, None)

    def barrier(self):
        must("gw_barrier", self.group, None)


def expected_path():
    return "vmm" if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") else "ipc"


def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def gradient(count, dtype, rank):
    return ((torch.arange(count, device="cuda", dtype=torch.int64) * 7 + 3) % 100 + rank).to(dtype)


# ---- what is tested --------------------------------------------------------------------------------------


def tensors_are_averaged_in_place(group):
    total = group.nranks * (group.nranks - 1) // 2
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64):
        for count in (1, 1000, 300001, 25 * MB // 4):
            redop = SUM if dtype in (torch.int32, torch.int64) else AVG
            tensor = gradient(count, dtype, group.rank)
            buffer = group.register(tensor)
            check(group.path(buffer) == expected_path(), f"{dtype} x{count} goes by '{group.path(buffer)}'")
            bucket = group.bucket(tensor, redop)
            group.reduce(bucket)
            exact = gradient(count, torch.float64, 0) * group.nranks + total
            wanted = (exact if redop == SUM else exact / group.nranks).to(dtype)
            group.check()
            check(torch.equal(tensor, wanted), f"{dtype} x{count}: {(tensor != wanted).sum().item()} wrong elements")
            tensor[0] += 1  # the control: the comparison sees one element
            check(not torch.equal(tensor, wanted), "the comparison sees nothing")
            must("gw_bucket_free", bucket)
            must("gw_buffer_release", buffer)


def gradients_of_a_network_on_several_streams(group):
    torch.manual_seed(group.rank)
    layers = torch.nn.Sequential(*[torch.nn.Linear(700, 700, bias=True) for _ in range(6)]).cuda()
    for parameter in layers.parameters():
        parameter.grad = torch.zeros_like(parameter)
    flat = [p.grad for p in layers.parameters()]
    buffers = [group.register(grad) for grad in flat]
    buckets = [group.bucket(grad, AVG, f"layer{n}".encode()) for n, grad in enumerate(flat)]
    side, op = torch.cuda.Stream(), ctypes.c_uint64()
    for step in range(20):
        for grad in flat:
            grad.zero_()
        inputs = torch.full((32, 700), float(group.rank + 1 + step), device="cuda")
        layers(inputs).sum().backward()
        copies = [grad.clone() for grad in flat]
        side.wait_stream(torch.cuda.current_stream())
        for bucket in reversed(buckets):  # as backward gives them; reduced on another stream than they were made on
            check(call("gw_submit", bucket, ctypes.c_void_p(side.cuda_stream), ctypes.byref(op)) == "GW_OK", "gw_submit")
            must("gw_stream_wait", group.group, op, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        group.check()
        check(all(not torch.equal(a, b) for a, b in zip(copies, flat) if a.numel() > 700), "nothing was averaged")
        check(all(bool(torch.isfinite(grad).all()) for grad in flat), "a gradient is not finite")
    digest = torch.stack([grad.double().sum() for grad in flat])
    twice = digest.clone()
    buffer = group.register(twice)
    bucket = group.bucket(twice, AVG)
    group.reduce(bucket)
    group.check()
    check(torch.equal(twice, digest), "the ranks do not hold the same averages")  # the average of equals
    for handle in buckets + [bucket]:
        must("gw_bucket_free", handle)
    for handle in buffers + [buffer]:
        must("gw_buffer_release", handle)


def keep_device_open(group):
    """So that the daemon has its context before memory is measured, and keeps it."""
    tensor = torch.zeros(1 * MB, device="cuda")
    buffer = group.register(tensor)
    bucket = group.bucket(tensor)
    group.reduce(bucket)
    group.check()
    return tensor, buffer, bucket


def release_gives_the_memory_back(group):
    kept = keep_device_open(group)
    size = 256 * MB
    torch.cuda.empty_cache()
    before = free_bytes()
    tensor = torch.zeros(size // 4, device="cuda")
    buffer = group.register(tensor)
    bucket = group.bucket(tensor)
    group.reduce(bucket)
    group.check()
    must("gw_bucket_free", bucket)
    del tensor
    torch.cuda.empty_cache()
    held = before - free_bytes()
    print(f"# {held // MB} MiB are still taken while the buffer is registered", flush=True)
    must("gw_buffer_release", buffer)
    left = before - free_bytes()
    print(f"# {left // MB} MiB after its release", flush=True)
    check(held >= size * 3 // 4, "the daemon did not hold the memory: what is tested here is not there")
    check(left < 16 * MB, f"{left // MB} MiB have not come back")  # a page of torch's own may have come in between
    del kept


def memory_at_the_same_address_is_refused_as_stale(group):
    size = 64 * MB
    tensor = gradient(size // 4, torch.float32, group.rank)
    address = tensor.data_ptr()
    buffer = group.register(tensor)
    bucket = group.bucket(tensor)
    group.reduce(bucket)
    group.check()
    del tensor
    torch.cuda.empty_cache()
    status = group.submit(bucket)
    check(status == STALE, f"submitting freed memory gave {status}")
    again = gradient(size // 4, torch.float32, group.rank)
    print(f"# the new tensor is at {'the same' if again.data_ptr() == address else 'another'} address", flush=True)
    status = group.submit(bucket)
    check(status == STALE, f"submitting replaced memory gave {status}")
    text = LIBRARY.gw_last_error().decode()
    check("register" in text, f"the error does not say what to do: {text}")
    must("gw_bucket_free", bucket)
    must("gw_buffer_release", buffer)
    wanted = again.clone()
    buffer = group.register(again)
    bucket = group.bucket(again)
    group.reduce(bucket)
    group.check()
    check(torch.equal(again, wanted + (group.nranks - 1) / 2 - group.rank), "the new registration gives wrong results")
    must("gw_bucket_free", bucket)
    must("gw_buffer_release", buffer)


def an_allocation_works_after_the_release_that_it_needs(group):
    """torch gives back what it has cached when memory runs out; what is registered comes back when it is released."""
    kept = keep_device_open(group)
    torch.cuda.empty_cache()
    size, side = 4096 * MB, torch.cuda.Stream()
    ballast = torch.empty(free_bytes() - size - size // 2, device="cuda", dtype=torch.uint8)
    tensor = torch.empty(size, device="cuda", dtype=torch.uint8)
    tensor[-1000:] = 3
    buffer = group.register(tensor)
    bucket = group.bucket(tensor[-1000:], SUM)
    group.reduce(bucket)
    group.check()
    del tensor
    try:
        with torch.cuda.stream(side):  # which has a cache of its own
            torch.empty(size, device="cuda", dtype=torch.uint8)
        raise AssertionError("there was room for both: nothing is tested")
    except torch.cuda.OutOfMemoryError:
        pass
    must("gw_bucket_free", bucket)
    must("gw_buffer_release", buffer)
    with torch.cuda.stream(side):
        other = torch.empty(size, device="cuda", dtype=torch.uint8)
        other[-1000:] = 5
        buffer = group.register(other)
        bucket = group.bucket(other[-1000:], SUM)
        group.reduce(bucket)
    group.check()
    check(bool((other[-1000:] == 5 * group.nranks).all()), "wrong elements in memory that was allocated again")
    must("gw_bucket_free", bucket)
    must("gw_buffer_release", buffer)
    del ballast, kept


def main():
    what, rank, nranks, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.zeros(1, device="cuda")
    group = Group(rank, nranks, path)
    globals()[what](group)
    group.barrier()
    LIBRARY.gw_disconnect(group.context)
    print("ok", flush=True)


if __name__ == "__main__":
    main()

"""backend_rank.py - one rank of test_backend.py: does with torch's backend `gradwire` what it does with Gloo, too

    backend_rank.py SCENARIO...      as ddp_rank.py

For each scenario it prints "SCENARIO same", or what is wrong. What goes wrong is in backend_faults.py.
"""

import contextlib
import copy
import faulthandler
import glob
import os
import sys

import torch
import torch.distributed as dist
from ddp_rank import DEVICE, RANK, SIZE, STEPS, Branches, Perceptron, differing, train  # finds gradwire, too
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire.backend
import gradwire.torch

_gloo, _n_stores = None, 0


def anew(backend, size=SIZE):
    """Ends the default process group and makes another; its store is a file beside the daemon's sockets, a new one."""
    global _gloo, _n_stores
    if dist.is_initialized():
        dist.destroy_process_group()
    _gloo, _n_stores = None, _n_stores + 1
    path = os.path.join(os.path.dirname(os.environ["GRADWIRE_SOCKET"]), f"store.{_n_stores}")
    dist.init_process_group(backend, init_method=f"file://{path}", rank=RANK, world_size=size)


def gloo():
    """A group of the same ranks, to compare with: its tensors are the host's."""
    global _gloo
    _gloo = _gloo or dist.new_group(backend="gloo")
    return _gloo


# ---- collectives -------------------------------------------------------------------------------------------

SHAPES = ((), (1,), (7, 13), (0,), (3, 0, 2), (70001,))
TYPES = (torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64)
MOVED = (*TYPES, torch.bfloat16, torch.bool, torch.int16, torch.complex64)


def numbers(shape, dtype, seed, apart=False):
    """Small whole ones, whose sums are exact in every order. `apart`: they do not lie side by side."""
    generator = torch.Generator().manual_seed(1000 * seed + RANK)
    made = torch.randint(0, 3, (*shape, 2) if apart else shape, generator=generator).to(dtype).to(DEVICE)
    return made[..., 1] if apart else made


def host(tensor):
    """A copy for Gloo, which knows few types: those that are only moved go as bytes."""
    return tensor.cpu().contiguous().clone()


def as_gloo(tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else \
        tensor if tensor.dtype in TYPES else tensor.to(torch.int64)


def reductions():
    """Every type and shape, in place; results are compared with Gloo's."""
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        for seed, dtype in enumerate(TYPES):
            for shape in SHAPES:
                ours = numbers(shape, dtype, seed, apart=seed % 2 == 1)
                before, theirs, root = ours.clone(), host(ours), SIZE - 1
                dist.all_reduce(ours, op)
                if theirs.numel():
                    dist.all_reduce(theirs, op, group=gloo())
                if not torch.equal(ours.cpu(), theirs):
                    return f"all_reduce {op} of {shape} {dtype}"
                dist.reduce(before, root, op)
                if RANK == root and not torch.equal(before.cpu(), theirs):
                    return f"reduce {op} of {shape} {dtype}"
    return "same"


def reduced_otherwise():
    """What Gloo does not have: averages, truth values, reduce_scatter."""
    every = [torch.arange(12.0) + r for r in range(SIZE)]
    mean = every[RANK].clone().to(DEVICE)
    dist.all_reduce(mean, getattr(dist.ReduceOp, "AVG"))
    if not torch.equal(mean.cpu(), sum(every) / SIZE):
        return f"the average is {mean}"
    for op, wanted in ((dist.ReduceOp.SUM, [True, True]), (dist.ReduceOp.MAX, [True, True]),
                       (dist.ReduceOp.MIN, [False, True]), (dist.ReduceOp.PRODUCT, [False, True])):
        truth = torch.tensor([RANK == 0, True], device=DEVICE)
        dist.all_reduce(truth, op)
        if truth.tolist() != wanted:
            return f"{op} of truth values is {truth}"
    try:
        dist.all_reduce(torch.ones(1, dtype=torch.int64, device=DEVICE), dist.ReduceOp.BXOR)
        return "no error of BXOR"
    except gradwire.Error as error:
        if "BXOR" not in str(error) or "gloo" not in str(error):
            return str(error)
    whole = torch.arange(SIZE * 6.0, device=DEVICE) * (RANK + 1)
    wanted = torch.arange(SIZE * 6.0).view(SIZE, 2, 3)[RANK] * sum(r + 1 for r in range(SIZE))
    outputs = [torch.empty(2, 3, device=DEVICE), torch.empty(3, 2, device=DEVICE).t()]
    dist.reduce_scatter(outputs[0], [piece.view(2, 3) for piece in whole.view(SIZE, 6)])
    dist.distributed_c10d._get_default_group()._reduce_scatter_base(outputs[1], whole).wait()
    return "same" if all(torch.equal(output.cpu(), wanted) for output in outputs) else f"{outputs}, not {wanted}"


def copies():
    """Every type, also those that travel as bytes."""
    for seed, dtype in enumerate(MOVED):
        for shape in SHAPES:
            mine = numbers(shape, dtype, seed, apart=seed % 2 == 0)
            every = [torch.empty_like(as_gloo(host(mine))) for _ in range(SIZE)]
            if mine.numel():
                dist.all_gather(every, as_gloo(host(mine)), group=gloo())

            def wrong(what, got, wanted=every):
                return None if all(torch.equal(as_gloo(host(g)), w) for g, w in zip(got, wanted)) else \
                    f"{what} of {shape} {dtype}"
            gathered = [torch.empty_like(mine) for _ in range(SIZE)]
            dist.all_gather(gathered, mine)
            whole = mine.new_empty((SIZE, *shape))
            dist.distributed_c10d._get_default_group()._allgather_base(whole, mine).wait()
            root = seed % SIZE
            collected = [torch.empty_like(mine) for _ in range(SIZE)] if RANK == root else None
            dist.gather(mine, collected, root)
            piece = torch.empty_like(mine)
            dist.scatter(piece, gathered if RANK == root else None, root)
            dist.broadcast(mine, root)
            found = wrong("all_gather", gathered) or wrong("all_gather_into_tensor", whole) or wrong(
                "gather", collected or []) or wrong("scatter", [piece], [every[RANK]]) or wrong(
                "broadcast", [mine], [every[root]])
            if found:
                return found
    return "same"


def asynchronous():
    """More at once than may be in flight, waited for in another order; futures and what follows from them."""
    made = [torch.full((1000 + i,), float(RANK + i), device=DEVICE) for i in range(100)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in made]
    chained = works[3].get_future().then(lambda future: future.value()[0] * 2).wait()
    for work in reversed(works):
        work.wait()
        if DEVICE != "cpu":
            torch.cuda.synchronize()  # only the stream has waited
        if not work.is_success():
            return "a work that was waited for has not ended"
    wanted = [float(sum(r + i for r in range(SIZE))) for i in range(100)]
    if [tensor.unique().tolist() for tensor in made] != [[w] for w in wanted]:
        return "sums are wrong"
    for barrier in [dist.barrier(async_op=True) for _ in range(5)]:
        barrier.wait()
    return "same" if chained.unique().tolist() == [2 * wanted[3]] else f"the future gave {chained}"


def unwaited():
    """Who asks whether an operation has ended need not wait for it; the memory of those that nobody asks for comes back."""
    for number in range(50):
        mine = torch.full((1000,), float(RANK + number), device=DEVICE)
        work = dist.all_reduce(mine, async_op=True)
        while not work.is_completed():
            pass
        if mine.unique().tolist() != [sum(r + number for r in range(SIZE))]:
            return f"what has ended is not there: {mine}"
    late = torch.ones(1000, device=DEVICE)
    dist.all_reduce(late, async_op=True)
    dist.barrier()
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    if late.unique().tolist() != [SIZE]:
        return f"what ended before the barrier is not there: {late}"
    try:
        dist.all_reduce(torch.ones(1, device=DEVICE).expand(4))
        return "no error of a tensor that cannot be written to"
    except RuntimeError:
        pass  # and what follows is well
    made = [torch.ones(1000, device=DEVICE) for _ in range(gradwire.backend.KEPT_MAX + 10)]
    for tensor in made:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    dist.all_reduce(made[0])
    lent = len(dist.distributed_c10d._get_default_group().group._lent)
    return "same" if lent < 100 else f"the memory of {lent} operations was not given back"


def strange_strides():
    """Of a single element any stride is contiguous."""
    for dtype in (torch.float32, torch.bool, torch.int16):
        mine = torch.empty(20, dtype=dtype, device=DEVICE)[::10][:1]
        mine.fill_(RANK)
        dist.broadcast(mine, 1)
        if mine.item() != 1:
            return f"{dtype}: {mine}"
    return "same"


def objects():
    every, first = [None] * SIZE, [{"from": RANK}, "x" * 1000]
    dist.all_gather_object(every, {"rank": RANK, "more": "y" * RANK})
    dist.broadcast_object_list(first, 1)
    wanted = [{"rank": r, "more": "y" * r} for r in range(SIZE)]
    return "same" if every == wanted and first[0] == {"from": 1} else f"{every} {first}"


def subgroups():
    """Each pair of neighbours; a rank is in two."""
    for first in range(SIZE - 1):
        pair = dist.new_group([first, first + 1])
        if RANK not in (first, first + 1):
            continue
        mine = torch.full((5,), float(RANK), device=DEVICE)
        dist.all_reduce(mine, group=pair)
        root = torch.full((5,), float(RANK), device=DEVICE)
        dist.broadcast(root, first + 1, group=pair)
        if mine.unique().tolist() != [2.0 * first + 1] or root.unique().tolist() != [first + 1.0]:
            return f"{mine} {root}"
        gradwire.backend.check(pair)
        dist.destroy_process_group(pair)
    return "same"


def regrouped():
    """Groups whose names some ranks had before, and others not."""
    for members in ([0], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
        anew("gradwire")
        group = dist.new_group(members)
        mine = torch.full((5,), float(RANK), device=DEVICE)
        if RANK in members:
            dist.all_reduce(mine, group=group)
            if mine.unique().tolist() != [sum(members)]:
                return f"{members}: {mine}"
        dist.barrier()
    return "same"


def refusals():
    """What there is not names what to use, and harms nothing."""
    one, every = torch.ones(1, device=DEVICE), [torch.ones(1, device=DEVICE) for _ in range(SIZE)]
    for what, call in (("send", lambda: dist.send(one, 1 - RANK)), ("recv", lambda: dist.recv(one, 1 - RANK)),
                       ("all_to_all", lambda: dist.all_to_all(list(every), every)),
                       ("all_to_all_single", lambda: dist.all_to_all_single(torch.ones(SIZE), torch.ones(SIZE)))):
        try:
            call()
            return f"no error of {what}"
        except gradwire.Error as error:
            if error.status != "GW_ERR_UNSUPPORTED" or what not in str(error) or "gloo" not in str(error):
                return str(error)
    try:
        gradwire.backend.check(gloo())
        return "a group of Gloo was checked"
    except ValueError as error:
        if "gloo" not in str(error):
            return str(error)
    dist.all_reduce(one)
    gradwire.backend.check()
    return "same" if one.item() == SIZE else f"the sum is {one}"


# ---- trainings ---------------------------------------------------------------------------------------------


class Normed(Perceptron):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(40)  # buffers, which DDP broadcasts

    def forward(self, x):
        return Perceptron.forward(self, self.norm(x))


def compare(make, with_hook=False, uneven=False, convert=lambda model, group: model, **options):
    """The same model and data with DDP over Gloo and over gradwire. With two ranks sums are the same bit for bit.

    convert: what is done to a model that will be trained over a group."""
    def training(model):
        with model.join() if uneven else contextlib.nullcontext():
            return train(model, steps=STEPS - 2 * RANK if uneven else STEPS)
    torch.manual_seed(7 + RANK)  # DDP broadcasts the first rank's parameters
    model = make()
    theirs = training(DDP(convert(copy.deepcopy(model), gloo()).to(DEVICE), process_group=gloo(), **options))
    wrapped = DDP(convert(model, dist.group.WORLD).to(DEVICE), **options)
    hook = gradwire.torch.register(wrapped) if with_hook else None
    ours = training(wrapped)
    gradwire.backend.check()
    if hook:
        hook.close()
    wrong = differing(ours, theirs)
    return f"parameters {wrong} differ" if wrong else "same"


def plain():
    return compare(Perceptron)


def buffers():
    return compare(Normed)


def small_buckets():
    return compare(Perceptron, bucket_cap_mb=0.02, gradient_as_bucket_view=True)


def unused_parameters():
    return compare(Branches, find_unused_parameters=True)


def static_graph():
    return compare(Perceptron, static_graph=True)


def uneven_inputs():
    return compare(Perceptron, uneven=True)


def uneven_inputs_and_unused_parameters():
    return compare(Branches, uneven=True, find_unused_parameters=True)


def complex_numbers():
    """With the hook as without, where DDP has them summed by the backend."""
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.complex(torch.arange(1000.0), torch.ones(1000)).to(DEVICE))

        def forward(self, x):
            return x * self.by
    results = []
    for hooked in (False, True):
        model = DDP(Turns())
        hook = gradwire.torch.register(model) if hooked else None
        turned = model(torch.full((1000,), 1.0 + RANK + 2j, device=DEVICE))
        (turned.real * 2 + turned.imag * 3).sum().backward()
        results.append(model.module.by.grad.clone())
        if hook:
            hook.close()
    mean = sum(2 * (1.0 + r) + 6 for r in range(SIZE)) / SIZE
    return "same" if torch.equal(*results) and (results[1].real == mean).all() else f"{results[1]}, and without {results[0]}"


def with_the_hook():
    return compare(Normed, with_hook=True)


def sync_batch_norm():
    """On GPUs only: torch has it nowhere else."""
    return compare(Normed, convert=nn.SyncBatchNorm.convert_sync_batchnorm)


def sharded():
    """FSDP2 over gradwire gives what DDP over Gloo gives. (FSDP2 over Gloo has no tensors of a GPU.)"""
    if tuple(int(word) for word in torch.__version__.split(".")[:2]) < (2, 6):
        return "missing"
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(7)
    model = Perceptron().to(DEVICE)
    theirs = train(DDP(copy.deepcopy(model), process_group=gloo()))
    mesh = dist.device_mesh.init_device_mesh(DEVICE.split(":")[0], (SIZE,))
    for layer in (model.first, model.second, model):
        fully_shard(layer, mesh=mesh)
    train(model)
    wrong = differing([p.full_tensor() for p in model.parameters()], theirs)
    return f"parameters {wrong} differ" if wrong else "same"


def _signs_of_nccl():
    """Names of threads and files that come with a communicator. (That the library is loaded says
    nothing: torch is linked to it.)"""
    names = []
    for path in glob.glob("/proc/self/task/*/comm"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            names.append(file.read().strip())
    with open("/proc/self/maps", encoding="utf-8") as maps:
        names += [line.split()[-1] for line in maps if "/dev/shm/nccl" in line]
    return [name for name in names if "nccl" in name.lower()]


def without_nccl():
    """A training makes no communicator of NCCL; one that is made on purpose is seen."""
    train(DDP(Normed().to(DEVICE)))
    found = _signs_of_nccl()
    if found:
        return f"found {found}"
    groups = [dist.new_group([rank], backend="nccl") for rank in range(SIZE)]
    dist.all_reduce(torch.ones(1, device=DEVICE), group=groups[RANK])
    torch.cuda.synchronize()
    return "same" if _signs_of_nccl() else "a communicator that is there is not seen"


def begun_anew():
    """As a notebook's cell that is run again: all is made anew in the same process, the models of before still live."""
    results, models = [], []
    for turn in range(3):
        if turn:
            anew("gradwire")
        torch.manual_seed(7)
        models.append(DDP(Perceptron().to(DEVICE)))
        if turn == 2:
            gradwire.torch.register(models[-1])
        results.append(train(models[-1]))
    return "same" if not differing(results[0], results[1]) + differing(results[0], results[2]) else "results differ"


def main(scenarios):
    faulthandler.enable()
    torch.set_num_threads(1)
    if DEVICE != "cpu":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("gradwire")
    for name in sys.argv[1:]:
        print(name, scenarios[name](), flush=True)
    os._exit(0)  # a process group whose peer has gone is not waited for


if __name__ == "__main__":
    main(globals())

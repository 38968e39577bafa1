"""backend_rank.py - one rank of test_backend.py: does with torch's backend `gradwire` what it does with Gloo, too

    backend_rank.py SCENARIO...      as ddp_rank.py

For each scenario it prints "SCENARIO same", or what is wrong.
"""

import copy
import os
import sys
import time

import torch
import torch.distributed as dist
from ddp_rank import DEVICE, RANK, SIZE, STEPS, Branches, Perceptron, batch, differing, train  # finds gradwire, too
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire.backend
import gradwire.torch

SOON_S = 2.0  # "within 2 s"
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
    """Many at once, waited for in another order; futures and what follows from them."""
    made = [torch.full((1000 + i,), float(RANK + i), device=DEVICE) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in made]
    chained = works[3].get_future().then(lambda future: future.value()[0] * 2).wait()
    for work in reversed(works):
        work.wait()
        if not work.is_success():
            return "a work that was waited for has not ended"
    wanted = [float(sum(r + i for r in range(SIZE))) for i in range(20)]
    if [tensor.unique().tolist() for tensor in made] != [[w] for w in wanted]:
        return "sums are wrong"
    for _ in range(gradwire.backend.KEPT_MAX + 10):  # nobody waits for these
        dist.all_reduce(made[0], op=dist.ReduceOp.MAX, async_op=True)
    dist.barrier()
    return "same" if chained.unique().tolist() == [2 * wanted[3]] else f"the future gave {chained}"


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


def compare(make, with_hook=False, uneven=False, **options):
    """The same model and data with DDP over Gloo and over gradwire. With two ranks sums are the same bit for bit."""
    def training(model):
        if not uneven:
            return train(model)
        with model.join():
            return train(model, steps=STEPS - 2 * RANK)
    torch.manual_seed(7 + RANK)  # DDP broadcasts the first rank's parameters
    model = make()
    theirs = training(DDP(copy.deepcopy(model).to(DEVICE), process_group=gloo(), **options))
    wrapped = DDP(model.to(DEVICE), **options)
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


def with_the_hook():
    return compare(Normed, with_hook=True)


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


# ---- what goes wrong; the last scenarios of a process ---------------------------------------------------------


class Fails(torch.autograd.Function):
    """In the middle of backward, where the first buckets are on their way, something happens."""

    happens = None

    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, gradient):
        if Fails.happens:
            Fails.happens()
        return gradient


class Fragile(Perceptron):
    def forward(self, x):
        return self.last(torch.relu(self.second(Fails.apply(torch.relu(self.first(x))))))


def step(model, optimizer, number):
    optimizer.zero_grad()
    x, y = batch(number)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def moment(name):
    """When the other rank did it; the clock is one for all processes of a host."""
    return float(dist.distributed_c10d._get_default_store().get(name))


def mark(name):
    dist.distributed_c10d._get_default_store().set(name, str(time.monotonic()))


def die():
    mark("died")
    os._exit(0)


def fragile(**options):
    torch.manual_seed(7)
    model = DDP(Fragile().to(DEVICE), bucket_cap_mb=0.02, **options)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def killed_rank():
    """The last rank ends in a backward. The others hear of it soon, take no step, and go on without it."""
    model, optimizer = fragile()
    if SIZE > 2:
        gradwire.torch.register(model).guard(optimizer)
    gradwire.backend.guard(optimizer)
    for number in range(2):
        step(model, optimizer, number)
    good = copy.deepcopy((model.module.state_dict(), optimizer.state_dict()))
    if RANK == SIZE - 1:
        Fails.happens = die
    try:
        step(model, optimizer, 2)
        if DEVICE != "cpu":
            torch.cuda.synchronize()
            optimizer.step()
        return "no error came"
    except RuntimeError as error:  # gradwire.Error is one; what comes out of torch's C++ is not always more than that
        heard, text = time.monotonic(), str(error)
    if heard - moment("died") > SOON_S:
        return f"it was heard after {heard - moment('died'):.1f} s"
    if "GW_ERR_RANK_DIED" not in text or f"rank {SIZE - 1}" not in text:
        return text
    try:
        optimizer.step()
        return "a step was taken"
    except gradwire.GroupError as error:
        if f"rank {SIZE - 1}" not in str(error):
            return str(error)
    if any(not torch.equal(a, b) for a, b in zip(good[0].values(), model.module.state_dict().values())):
        return "the parameters have changed"
    return goes_on(good) if SIZE > 2 else "same"


def goes_on(good):
    """Those who are left form a group, and train as those do over Gloo."""
    results = []
    for backend in ("gradwire", "gloo"):
        anew(backend, SIZE - 1)
        model, optimizer = fragile()
        model.module.load_state_dict(good[0])
        optimizer.load_state_dict(copy.deepcopy(good[1]))
        for number in range(2, 5):
            step(model, optimizer, number)
        results.append([p.detach().clone() for p in model.parameters()])
        dist.barrier()
    return "same" if not differing(*results) and differing(results[0], list(good[0].values())) else "they differ"


def failing_backward():
    """An exception in one rank's backward: it leaves, and the others hear that it has. All begin anew."""
    model, optimizer = fragile()
    step(model, optimizer, 0)

    def fail():
        raise ValueError("this one fails")
    if RANK == 1:
        Fails.happens = fail
    try:
        step(model, optimizer, 1)
        return "no exception came"
    except ValueError as error:
        if RANK != 1:
            return str(error)
        mark("failed")
    except RuntimeError as error:
        if "GW_ERR_RANK_LEFT" not in str(error) or "rank 1" not in str(error):
            return str(error)
    Fails.happens = None
    anew("gradwire")
    model, optimizer = fragile()
    step(model, optimizer, 0)
    gradwire.backend.check()
    return "same"


def restarted_daemon():
    """Between two steps; test_backend.py does it when it is told."""
    model, optimizer = fragile()
    step(model, optimizer, 0)
    print("restart now", flush=True)
    sys.stdin.readline()
    try:
        step(model, optimizer, 1)
        return "no error came"
    except RuntimeError as error:
        if "GW_ERR_DAEMON_GONE" not in str(error):
            return str(error)
    gradwire.init()
    mine = torch.ones(3, device=DEVICE)
    gradwire.all_reduce(mine)
    gradwire.finish()
    anew("gradwire")
    model, optimizer = fragile()
    hook = gradwire.torch.register(model)
    step(model, optimizer, 1)
    hook.check()
    hook.close()
    return "same" if mine.tolist() == [SIZE] * 3 else str(mine)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((40,), float(index)), index % 10


def loaders():
    """Processes that are forked beside the connection, and end, do no harm to it; nor do they hide that a rank dies."""
    model, optimizer = fragile()
    data = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2, multiprocessing_context="fork",
                                       pin_memory=DEVICE != "cpu")
    for _epoch in range(2):
        for x, y in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE)).backward()
            optimizer.step()
    gradwire.backend.check()
    still = iter(data)  # its processes live while a rank dies
    next(still)
    dist.barrier()
    if RANK == SIZE - 1:
        die()
    try:
        dist.barrier()
        return "no error came"
    except gradwire.GroupError as error:
        heard = time.monotonic() - moment("died")
        return "same" if "GW_ERR_RANK_DIED" in str(error) and heard < SOON_S else f"{error} after {heard:.1f} s"


def interrupted():
    """Ctrl-C: every rank that waits for one that does not come gets it."""
    dist.barrier()
    try:
        print("interrupt now", flush=True)
        if RANK == 0:
            dist.all_reduce(torch.ones(3, device=DEVICE))
            torch.cuda.is_available() and torch.cuda.synchronize()
        else:
            time.sleep(60)
        return "nothing came"
    except KeyboardInterrupt:
        return "same"


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gradwire")
    for name in sys.argv[1:]:
        print(name, globals()[name](), flush=True)
    os._exit(0)  # a process group whose peer has gone is not waited for


if __name__ == "__main__":
    main()

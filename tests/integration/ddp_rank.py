"""ddp_rank.py - one rank of test_torch.py: trains with the hook and without, and says whether the two are the same

    ddp_rank.py SCENARIO...      under RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GRADWIRE_SOCKET; DEVICE: "cpu", "cuda:0"

For each scenario it prints "SCENARIO same", or what differs. With two ranks the average of two numbers is exact but for
one rounding, so parameters after some steps are the same bit for bit, whoever averages.
"""

import contextlib
import copy
import gc
import os
import sys
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import gradwire.backend  # noqa: E402
import gradwire.torch  # noqa: E402

STEPS = 5
DEVICE = os.environ.get("DEVICE", "cpu")
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Perceptron(nn.Module):
    def __init__(self, width=120):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(40, width), nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


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


class Checkpointed(Perceptron):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return self.last(checkpoint(lambda y: torch.relu(self.second(y)), torch.relu(self.first(x)),
                                    use_reentrant=self.use_reentrant))


class Stored(Perceptron):
    """Its parameters and gradients are of 16 bits; it computes with 32, which every processor can."""

    def forward(self, x):
        for layer in (self.first, self.second, self.last):
            y = nn.functional.linear(x, layer.weight.float(), layer.bias.float())
            x = torch.relu(y)
        return y


class Branches(nn.Module):
    """One half is used in every second step, one parameter never, and one has no elements."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes, self.step = Perceptron(), Perceptron(), 0
        self.unused, self.empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(0))

    def forward(self, x):
        self.step += 1
        y = self.always(x) + self.empty.sum()
        return y + self.sometimes(x) if self.step % 2 else y


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1))
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        return self.last(self.layers(x).flatten(1))


def batch(step, shape=(40,), dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    x, y = torch.randn(8, *shape, generator=generator).to(dtype), torch.randint(0, 10, (8,), generator=generator)
    return x.to(DEVICE), y.to(DEVICE)


def train(model, shape=(40,), dtype=torch.float32, micro_steps=1, steps=STEPS, layout=torch.contiguous_format,
          after=None, keep=False):
    """Returns the parameters after some steps; `after` each of them something may be done. keep: gradients are zeroed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad(**({"set_to_none": False} if keep else {}))
        for micro in range(micro_steps):
            x, y = batch(step * micro_steps + micro, shape, dtype)
            x = x.contiguous(memory_format=layout)
            with model.no_sync() if micro + 1 < micro_steps else contextlib.nullcontext():
                nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        if after:
            after()
    return [p.detach().clone() for p in model.parameters()]


def differing(ours, theirs):
    return [i for i, (a, b) in enumerate(zip(ours, theirs)) if not torch.equal(a, b)]


def compare(make, training=train, more=None, **options):
    """The same model and data with DDP's own all_reduce, and with the hook."""
    torch.manual_seed(7)
    model = make().to(DEVICE)
    theirs = training(DDP(copy.deepcopy(model), **options), **(more or {}))
    wrapped = DDP(model, **options)
    hook = gradwire.torch.register(wrapped)
    ours = training(wrapped, **(more or {}))
    hook.check()
    hook.close()
    wrong = differing(ours, theirs)
    return f"parameters {wrong} differ" if wrong else "same"


# ---- what DDP can do ---------------------------------------------------------------------------------------


def plain():
    return compare(Perceptron)


def bucket_views():
    return compare(Perceptron, gradient_as_bucket_view=True)


def shared_gradients():
    """With bucket views on the CPU gradients come to lie in memory shared with the daemon; without, they do not."""
    for views in (True, False):
        wrapped = DDP(Perceptron().to(DEVICE), gradient_as_bucket_view=views)
        hook = gradwire.torch.register(wrapped)
        train(wrapped, steps=3)
        results = [known.result for known in hook._buckets.values()]
        lie = [any(r.data_ptr() <= p.grad.data_ptr() < r.data_ptr() + r.numel() * 4 for r in results)
               for p in wrapped.parameters()]
        hook.close()
        if not (all(lie) if views else not any(lie)):
            return f"with views {views} gradients lie there: {lie}"
    return "same"


def shared_kib():
    """What this process has mapped of memory that it shares with the daemon."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        ends = [line.split()[0].split("-") for line in maps if "gradwire-buffer" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ends) // 1024


def memory_of_the_first_cut():
    """DDP's first bucket holds all gradients, and is cut into others after the first step. Its memory goes then, and all with
    the model and its gradients."""
    before = shared_kib()
    for views in (False, True):
        wrapped = DDP(Perceptron(500), gradient_as_bucket_view=views, bucket_cap_mb=0.2)
        hook, peaks = gradwire.torch.register(wrapped), []
        train(wrapped, steps=3, after=lambda: peaks.append(shared_kib() - before))
        wanted = sum(p.numel() * 4 for p in wrapped.parameters()) // 1024
        hook.close()
        del wrapped, hook
        gc.collect()
        if not wanted <= min(peaks) <= max(peaks) <= wanted + 64 or shared_kib() != before:
            return f"{wanted} KiB of gradients: with views {views} {peaks} KiB after steps, {shared_kib() - before} in the end"
    return "same"


def views_in_all_ways():
    """Gradients that are kept, replaced, accumulated, unused, and of ranks that have joined."""
    def replaced(model):
        return train(model, after=lambda: [setattr(p, "grad", None) for p in model.parameters()])

    def moved(model):
        return train(model, after=lambda: [setattr(p, "grad", p.grad.clone()) for p in model.parameters()])

    def aliased(model):
        return train(model, keep=True, after=lambda: [setattr(p, "grad", p.grad.detach()) for p in model.parameters()])

    def aliased_once(model):
        turns = iter(range(STEPS))
        return train(model, keep=True, after=lambda: next(turns) == 1 and [
            setattr(p, "grad", p.grad.detach()) for p in model.parameters()])

    def uneven(model):
        with model.join():
            return train(model, steps=STEPS - 2 * RANK)

    ways = {"replaced": (Perceptron, replaced, {}, {}), "moved": (Perceptron, moved, {}, {}),
            "aliased": (Perceptron, aliased, {}, {"find_unused_parameters": True}), "aliased once": (Perceptron, aliased_once, {}, {}),
            "aliased, small": (Perceptron, aliased, {}, {"bucket_cap_mb": 0.02}),
            "uneven": (Perceptron, uneven, {}, {}), "accumulated": (Perceptron, train, {"micro_steps": 3}, {}),
            "small": (Perceptron, train, {}, {"bucket_cap_mb": 0.02}),
            "unused": (Branches, train, {}, {"find_unused_parameters": True}),
            "unused, small": (Branches, train, {}, {"find_unused_parameters": True, "bucket_cap_mb": 0.02})}
    found = {name: compare(make, training, more, gradient_as_bucket_view=True, **options)
             for name, (make, training, more, options) in ways.items()}
    return "same" if set(found.values()) == {"same"} else str(found)


def static_graph():
    return compare(Perceptron, static_graph=True)


def small_buckets():
    """After the first step DDP cuts its buckets anew."""
    return compare(Perceptron, bucket_cap_mb=0.02)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(150))
        self.last = nn.Linear(40, 10)

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.01 * layer(x)
        return self.last(x)


def many_buckets():
    """More than a group keeps for others, and than can be in flight."""
    torch.manual_seed(7)
    model, first = Deep().to(DEVICE), dist._DEFAULT_FIRST_BUCKET_BYTES
    theirs = train(DDP(copy.deepcopy(model)))
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1  # a bucket for each parameter
    wrapped = DDP(model, bucket_cap_mb=1e-6)
    dist._DEFAULT_FIRST_BUCKET_BYTES = first
    hook = gradwire.torch.register(wrapped)
    ours = train(wrapped)
    hook.check()
    n = len(hook._buckets)
    hook.close()
    wrong = differing(ours, theirs)
    return "same" if n == 302 and not wrong else f"{n} buckets, parameters {wrong} differ"


class Wide(nn.Module):
    """Large gradients, and DDP's last bucket may have none."""

    def __init__(self, width):
        super().__init__()
        self.empty, self.layers = nn.Parameter(torch.ones(0)), nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x + self.empty.sum()


def _average(model, x):
    """What gradients are to be: each rank's own, averaged without DDP."""
    found = torch.autograd.grad(model(x).square().mean(), [p for p in model.parameters() if p.numel()])
    for gradient in found:
        dist.all_reduce(gradient)
        gradient /= SIZE
    return found


def there_after_backward():
    """Whatever comes next finds the averages of all buckets, without a look at any future."""
    width = 256 if DEVICE == "cpu" else 2048
    for options in ({}, {"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-6},
                    {"gradient_as_bucket_view": True, "find_unused_parameters": True}):
        torch.manual_seed(7)
        model = Wide(width).to(DEVICE)
        wrapped = DDP(model, **options)
        hook = gradwire.torch.register(wrapped)
        for step in range(3):
            x = batch(step, (width,))[0]
            average = _average(model, x)
            model.zero_grad()
            wrapped(x).square().mean().backward()
            found = [p.grad.clone() for p in model.parameters() if p.numel()]
            wrong = differing(found, average)
            if wrong:
                return f"with {options}, step {step}: gradients {wrong} differ"
        hook.close()
    return "same"


def unused_parameters():
    return compare(Branches, find_unused_parameters=True)


def accumulation():
    return compare(Perceptron, more={"micro_steps": 3})


def checkpointing():
    for use_reentrant, options in ((False, {}), (True, {}), (True, {"static_graph": True}),
                                   (True, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.02})):
        result = compare(lambda is_reentrant=use_reentrant: Checkpointed(is_reentrant), **options)
        if result != "same":
            return f"use_reentrant={use_reentrant}, {options}: {result}"
    return "same"


def double():
    return compare(lambda: Perceptron().double(), more={"dtype": torch.float64})


def channels_last():
    return compare(lambda: Images().to(memory_format=torch.channels_last), gradient_as_bucket_view=True,
                   more={"shape": (4, 12, 12), "layout": torch.channels_last})


def uneven_inputs():
    """The second rank has fewer batches than the first."""
    def training(model):
        with model.join():
            return train(model, steps=STEPS - 2 * RANK)
    return compare(Perceptron, training)


def guarded():
    """A guarded optimizer is one like any other for torch's schedulers, made before or after; the guard is asked after a
    closure, too; and when a hook is closed the optimizer goes on with another."""
    torch.manual_seed(7)
    model = Perceptron().to(DEVICE)
    copied = copy.deepcopy(model)

    def training(wrapped, optimizer, schedulers, first):
        for step in range(first, first + STEPS):
            optimizer.zero_grad()
            x, y = batch(step)
            nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()

    def scheduled(network, has_hook):
        optimizer, schedulers = torch.optim.SGD(network.parameters(), lr=0.1), []
        for turn in range(2):
            wrapped = DDP(network)
            hook = gradwire.torch.register(wrapped) if has_hook else gradwire.torch.NoHook()
            schedulers += [torch.optim.lr_scheduler.StepLR(optimizer, 2)]
            hook.guard(optimizer)
            hook.guard(optimizer)
            schedulers += [torch.optim.lr_scheduler.StepLR(optimizer, 3)]
            training(wrapped, optimizer, schedulers, turn * STEPS)
            hook.close()
        return optimizer, hook
    scheduled(copied, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer, hook = scheduled(model, True)
    wrong = differing(list(model.parameters()), list(copied.parameters()))
    if wrong:
        return f"parameters {wrong} differ"
    wrapped, before = DDP(model), [p.detach().clone() for p in model.parameters()]
    hook = gradwire.torch.register(wrapped)
    hook.guard(optimizer)

    def closure():
        x, y = batch(0)
        loss = nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        hook.close()
        return loss
    try:
        optimizer.step(closure)
        return "a step was taken that its closure had made a wrong one"
    except gradwire.Error:
        return "parameters have changed" if differing(list(model.parameters()), before) else "same"


def several_models():
    """Both are trained at once, in turns."""
    torch.manual_seed(7)
    models = [Perceptron().to(DEVICE), Perceptron(60).to(DEVICE)]
    theirs = [train(DDP(copy.deepcopy(model))) for model in models]
    wrapped = [DDP(model) for model in models]
    hooks = [gradwire.torch.register(model) for model in wrapped]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in wrapped]
    for step in range(STEPS):
        x, y = batch(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(nn.functional.cross_entropy(model(x), y) for model in wrapped).backward()
        for optimizer in optimizers:
            optimizer.step()
    for hook in hooks:
        hook.close()
    wrong = [differing(list(model.parameters()), t) for model, t in zip(models, theirs)]
    return "same" if wrong == [[], []] else f"parameters {wrong} differ"


def models_of_groups():
    """On disjoint groups, whose ranks have the same numbers in each; then as others, in a group of which one rank was before
    and another was not. Comes last: the ranks are others after it."""
    rank = RANK
    for turn, pairs in enumerate(([[0, 1], [2, 3]], [[0, 1]], [[0, 1], [2, 3]])):
        if turn == 2:
            rank = (RANK + 1) % SIZE
            dist.destroy_process_group()
            store = os.path.join(os.path.dirname(os.environ["GRADWIRE_SOCKET"]), "renumbered")
            dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=SIZE)
        for group, pair in [(dist.new_group(pair), pair) for pair in pairs]:
            if rank not in pair:
                continue
            model = DDP(nn.Linear(4, 1, bias=False).to(DEVICE), process_group=group)
            hook = gradwire.torch.register(model)
            model(torch.full((1, 4), float(rank), device=DEVICE)).sum().backward()
            hook.close()
            if model.module.weight.grad.unique().tolist() != [sum(pair) / 2]:
                return f"{pair}: {model.module.weight.grad}"
        dist.barrier()
    return "same"


def bfloat16():
    """Sums of 16-bit types are made in 32 bits: the average is rounded once. (Not every Gloo knows the type.)"""
    gradwire.init()
    mine = torch.randn(5000, generator=torch.Generator().manual_seed(RANK)).bfloat16()
    every = [torch.randn(5000, generator=torch.Generator().manual_seed(r)).bfloat16().float() for r in range(SIZE)]
    gradwire.all_reduce(mine, "avg")
    gradwire.finish()
    return "same" if torch.equal(mine, (sum(every) / SIZE).bfloat16()) else "averages differ"


def mixed_precision():
    """Gradients are scaled on a GPU; one step overflows, and all ranks leave it out."""
    def training(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.cuda.amp.GradScaler(init_scale=2.0**14, enabled=DEVICE != "cpu")
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = batch(step)
            with torch.autocast(DEVICE.split(":")[0], dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            scaler.scale(loss * (float("inf") if step == 2 and scaler.is_enabled() else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        return [p.detach().clone() for p in model.parameters()]
    return compare(Perceptron, training)


def _rounding(dtype):
    """A hook of DDP's own that does what reduce_dtype promises: rounds, averages in 32 bits, rounds."""
    def hook(_state, bucket):
        flat = bucket.buffer()
        total = flat.to(dtype).float()
        dist.all_reduce(total)
        future = torch.futures.Future(devices=[flat.device] if flat.is_cuda else [])
        future.set_result(flat.copy_((total / SIZE).to(dtype)))
        return future
    return hook


class Numbers(nn.Module):
    """Its gradients are what it is given: an odd count, beside a parameter without elements."""

    def __init__(self):
        super().__init__()
        self.weight, self.empty = nn.Parameter(torch.zeros(7)), nn.Parameter(torch.zeros(0))

    def forward(self, x):
        return (self.weight * x).sum() + self.empty.sum()


def sixteen_bits():
    """Parameters of 16 bits: their averages are rounded once. (Not every Gloo knows the types, which DDP has broadcast.)"""
    group = dist.new_group(backend="gradwire")
    for dtype in (torch.bfloat16, torch.float16):
        for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}):
            torch.manual_seed(7)
            model = Stored().to(DEVICE, dtype)
            wrapped = [DDP(copy.deepcopy(model), process_group=group, **options) for _ in range(2)]
            wrapped[0].register_comm_hook(None, _rounding(dtype))
            hook = gradwire.torch.register(wrapped[1])
            theirs, ours = map(train, wrapped)
            hook.check()
            hook.close()
            wrong = differing(ours, theirs)
            if wrong or not differing(ours, model.parameters()):
                return f"{dtype}, {options}: parameters {wrong} differ"
    dist.destroy_process_group(group)
    return "same"


def _rounds_odd_numbers(dtype):
    """What is no number, the largest and the smallest ones: as torch rounds them, and alike on all ranks."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf") if RANK else float("inf"), 65504.0, 6e-8, -0.0, 1.0 + RANK / 3])
    found = []
    for has_hook in (False, True):
        model = DDP(Numbers().to(DEVICE))
        if has_hook:
            hook = gradwire.torch.register(model, reduce_dtype=dtype)
        else:
            model.register_comm_hook(None, _rounding(dtype))
        model(x.to(DEVICE)).backward()
        found.append(model.module.weight.grad.cpu())
    hook.check()
    hook.close()
    every = [torch.empty_like(found[1]) for _ in range(SIZE)]
    dist.all_gather(every, found[1])
    return all(torch.allclose(other, found[0], rtol=0, atol=0, equal_nan=True) for other in every)


def reduce_dtypes():
    torch.manual_seed(7)
    model = Perceptron().to(DEVICE)
    exact = train(DDP(copy.deepcopy(model)))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.02}):
            wrapped = [DDP(copy.deepcopy(model), **options) for _ in range(2)]
            wrapped[0].register_comm_hook(None, _rounding(dtype))
            hook = gradwire.torch.register(wrapped[1], reduce_dtype=dtype)
            theirs, ours = map(train, wrapped)
            hook.check()
            hook.close()
            wrong, rounded = differing(ours, theirs), differing(ours, exact)
            if wrong or bool(rounded) == (dtype is torch.float32):
                return f"{dtype}, {options}: parameters {wrong} differ, and {rounded} from those that are not rounded"
    wrong = [dtype for dtype in (torch.bfloat16, torch.float16) if not _rounds_odd_numbers(dtype)]
    if wrong:
        return f"numbers differ with {wrong}"
    try:
        gradwire.torch.register(wrapped[0], reduce_dtype=torch.int32)
    except ValueError as error:
        return "same" if "torch.int32" in str(error) else str(error)
    return "torch.int32 was taken"


def gradients_of_the_other_rank():
    """The negative control: without an exchange the ranks differ."""
    torch.manual_seed(7)
    model = Perceptron().to(DEVICE)
    alone = train(copy.deepcopy(model))
    wrapped = DDP(model)
    hook = gradwire.torch.register(wrapped)
    together = train(wrapped)
    hook.close()
    return "same" if len(differing(alone, together)) == len(together) else "the exchange changed nothing"


def main(scenarios):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in sys.argv[1:]:
        print(name, scenarios[name](), flush=True)
    os._exit(0)  # a process group whose peer has gone is not waited for


if __name__ == "__main__":
    main(globals())

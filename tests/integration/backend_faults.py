"""backend_faults.py - one rank of test_backend.py: what goes wrong, and how it goes on

    backend_faults.py SCENARIO      as backend_rank.py; one of a process
"""

import contextlib
import copy
import os
import signal
import sys
import time

import backend_rank  # finds gradwire
import torch
import torch.distributed as dist
from backend_rank import anew
from ddp_rank import DEVICE, RANK, SIZE, Fails, Perceptron, batch, differing
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire.backend
import gradwire.torch

SOON_S = 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # "within 2 s", where there is room to run


class Fragile(Perceptron):
    def forward(self, x):
        return self.last(torch.relu(self.second(Fails.apply(torch.relu(self.first(x))))))


def backward(model, optimizer, number):
    optimizer.zero_grad()
    x, y = batch(number)
    nn.functional.cross_entropy(model(x), y).backward()


def step(model, optimizer, number):
    backward(model, optimizer, number)
    optimizer.step()


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come true within 10 s")
        time.sleep(0.01)


def _path(name):
    """Beside the daemon's sockets: the store of a process group is gone with the first who leaves."""
    return os.path.join(os.path.dirname(os.environ["GRADWIRE_SOCKET"]), name)


def moment(name):
    """When the other rank did it; the clock is one for all processes of a host."""
    with open(_path(name), encoding="utf-8") as file:
        return float(file.read())


def mark(name):
    with open(_path(name), "w", encoding="utf-8") as file:
        file.write(str(time.monotonic()))


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
            torch.cuda.synchronize()  # the stream comes free, and who asks next is told
        gradwire.backend.check()
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
    return goes_on(good, optimizer) if SIZE > 2 else "same"


def death_after_backward():
    """The last rank ends when all have done a backward, and have not taken the step yet. All others take it, also who has
    heard of that by then; none takes the next."""
    model, optimizer = fragile()
    hook = gradwire.torch.register(model)
    hook.guard(optimizer)
    gradwire.backend.guard(optimizer)
    step(model, optimizer, 0)
    dist.barrier()
    forgives(hook.group, optimizer)
    backward(model, optimizer, 1)
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    mark(f"backward.{RANK}")
    if RANK == SIZE - 1:
        for rank in range(SIZE):
            until(lambda name=f"backward.{rank}": os.path.exists(_path(name)))
        die()
    if RANK > 0:
        until(has_failed)
    optimizer.step()
    parameters = [p.detach().clone() for p in model.parameters()]
    until(has_failed)
    try:
        step(model, optimizer, 2)
        return "no error came"
    except RuntimeError as error:
        if "GW_ERR_RANK_DIED" not in str(error):
            return str(error)
    try:
        optimizer.step()
        return "a step was taken"
    except gradwire.GroupError:
        pass
    if differing(parameters, [p.detach() for p in model.parameters()]):
        return "the parameters have changed"
    anew("gloo", SIZE - 1)
    mine = torch.cat([p.flatten() for p in parameters]).cpu()
    every = [torch.empty_like(mine) for _ in range(SIZE - 1)]
    dist.all_gather(every, mine)
    return "same" if all(torch.equal(other, mine) for other in every) else "some have taken a step that others have not"


def guarded():
    """An optimizer whose gradients have been exchanged."""
    parameter = nn.Parameter(torch.zeros(4, device=DEVICE))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    gradwire.backend.guard(optimizer)
    parameter.grad = torch.ones(4, device=DEVICE)
    dist.all_reduce(parameter.grad)
    return optimizer


def takes_step(optimizer):
    try:
        optimizer.step()
        return True
    except gradwire.Error:
        return False


def all_left(took, wanted):
    """Whether those who are left have done the same, and what is wanted."""
    anew("gloo", SIZE - 1)
    every = [None] * (SIZE - 1)
    dist.all_gather_object(every, took)
    return "same" if every == [wanted] * (SIZE - 1) else f"who has taken the step: {every}"


def death_with_a_metric_in_flight():
    """No rank that is left takes the step, also not who asks before the last rank ends."""
    optimizer = guarded()
    if RANK == SIZE - 1:
        for rank in range(SIZE - 1):
            until(lambda name=f"submitted.{rank}": os.path.exists(_path(name)))
        time.sleep(0.5)
        die()
    dist.all_reduce(torch.ones(1, device=DEVICE), async_op=True)
    mark(f"submitted.{RANK}")
    if RANK > 0:
        until(has_failed)
    return all_left(takes_step(optimizer), False)


def death_after_a_mismatch():
    """What has failed alone in a step counts, whoever has asked what before, and as often as the step is tried."""
    optimizer = guarded()
    group = dist.distributed_c10d._get_default_group().group
    group.all_reduce(torch.ones(10 + RANK // (SIZE - 1)), async_op=True)
    dist.barrier()
    if RANK == SIZE - 1:
        die()
    until(has_failed if RANK > 0 else lambda: group._look().status != 0)
    return all_left([takes_step(optimizer), takes_step(optimizer)], [False, False])


def mismatch_after_a_step():
    """What fails alone in the next step is no matter in this one: also not for a slow rank, which asks when all is over."""
    optimizer = guarded()
    group = dist.distributed_c10d._get_default_group().group
    if RANK == 1:
        until(lambda: group._look().status != 0)
        return all_left(takes_step(optimizer), True)
    took = takes_step(optimizer)
    group.all_reduce(torch.ones(10 + RANK), async_op=True)
    if RANK == SIZE - 1:
        time.sleep(0.5)
        die()
    return all_left(took, True)


def mismatch_in_a_step():
    """No optimizer takes the step on any rank, whether a check has told of it in time or not, and whatever came between."""
    optimizers = [guarded() for _ in range(2)]
    dist.barrier()  # of a GPU, who is late with these could hear of what follows
    group = dist.distributed_c10d._get_default_group().group
    group.all_reduce(torch.ones(10 + RANK), async_op=True)
    time.sleep(0.5 * (RANK == 1))
    has_failed()
    took = []
    for optimizer in optimizers * 2:
        with contextlib.suppress(*[gradwire.BucketError] * (DEVICE != "cpu")):  # what is known of the failed one by now
            dist.all_reduce(optimizer.param_groups[0]["params"][0].grad)
        took.append(takes_step(optimizer))
    every = [None] * SIZE
    dist.all_gather_object(every, took)
    return "same" if every == [[False, False, True, True]] * SIZE else f"who has taken the step: {every}"


def forgives(group, optimizer):
    """What failed alone refuses one step, on all ranks, whoever has heard of it before; what was refused is no matter."""
    for mistake, kind in ((lambda: group.all_reduce(torch.ones(10 + RANK)), gradwire.BucketError),
                          (lambda: group.all_reduce(torch.ones(3, dtype=torch.int32), codec="bf16"), gradwire.Error),
                          (lambda: group.check(), gradwire.BucketError), (optimizer.step, gradwire.BucketError)):
        try:
            mistake()
            raise AssertionError("a mistake was not seen")
        except kind:
            group.last_completed()
    group.check()


def has_failed():
    try:
        gradwire.backend.check()
    except gradwire.BucketError:  # of one operation
        return False
    except gradwire.GroupError:
        return True
    return False


def goes_on(good, refused):
    """Those who are left form a group, and train as those do over Gloo. `refused`: an optimizer that is guarded anew."""
    results = []
    for backend in ("gradwire", "gloo"):
        anew(backend, SIZE - 1)
        model, optimizer = fragile()
        if backend == "gradwire":
            gradwire.torch.register(model).guard(refused)
            refused.step()  # the failed groups are not asked any more
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
        if DEVICE != "cpu":
            torch.cuda.synchronize()  # as in killed_rank
        gradwire.backend.check()
        return "no exception came"
    except ValueError as error:
        if RANK != 1:
            return str(error)
    except RuntimeError as error:
        if "GW_ERR_RANK_LEFT" not in str(error) or "rank 1" not in str(error):
            return str(error)
    Fails.happens = None
    anew("gradwire")
    model, optimizer = fragile()
    step(model, optimizer, 0)
    gradwire.backend.check()
    dist.barrier()  # who is done ends, and the other would hear of it
    return "same"


def restarted_daemon():
    """Between two steps; test_backend.py does it when it is told."""
    model, optimizer = fragile()
    gradwire.backend.guard(optimizer)
    step(model, optimizer, 0)
    print("restart now", flush=True)
    sys.stdin.readline()
    try:
        step(model, optimizer, 1)
        return "no error came"
    except RuntimeError as error:
        if "GW_ERR_DAEMON_GONE" not in str(error):
            return str(error)
    if takes_step(optimizer):
        return "a step was taken"
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what they start in the background ignore it
    dist.barrier()
    try:
        print("interrupt now", flush=True)
        if RANK == 0:
            dist.all_reduce(torch.ones(3, device=DEVICE))
        else:
            time.sleep(60)
        return "nothing came"
    except KeyboardInterrupt:
        return "same"


if __name__ == "__main__":
    backend_rank.main(globals())

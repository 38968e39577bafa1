"""fashion.py - what the examples in Python share: the images, the network of scripts/demo in torch, and the ranks

    python3 examples/zero1.py --ranks 2           starts two processes on this host
    torchrun --nproc-per-node 2 examples/zero1.py  the same with torch's own launcher

A daemon must be there: build/gradwired. Each rank has every n-th image.
"""

from __future__ import annotations

import argparse
import gzip
import os
import socket
import subprocess
import sys
from typing import Callable

import torch
from torch import nn

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))  # where it is not installed

IMAGES = "/usr/share/datasets/fashion-mnist"
PIXEL_MEAN = 0.286  # of the training images, where white is 1


class Images:
    """Every n-th image of a set, dealt out in batches."""

    def __init__(self, folder: str, prefix: str, rank: int = 0, size: int = 1, device: str = "cpu"):
        pixels = _read(os.path.join(folder, f"{prefix}-images-idx3-ubyte.gz"), 16).view(-1, 784)
        labels = _read(os.path.join(folder, f"{prefix}-labels-idx1-ubyte.gz"), 8)
        each = len(labels) // size * size  # all ranks have the same number
        self.pixels, self.labels = pixels[rank:each:size].to(device), labels[rank:each:size].long().to(device)
        self._order, self._generator = torch.empty(0, dtype=torch.long), torch.Generator()

    def shuffle(self, seed: int) -> None:
        """From here on the order is that of the seed."""
        self._generator.manual_seed(seed)
        self._order = self._order[:0]

    def batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The next n images and their labels; after the last one they are shuffled anew."""
        if len(self._order) < n:
            self._order = torch.randperm(len(self.labels), generator=self._generator)
        index, self._order = self._order[:n].to(self.labels.device), self._order[n:]
        return centred(self.pixels[index]), self.labels[index]


def _read(path: str, header_bytes: int) -> torch.Tensor:
    try:
        with gzip.open(path) as file:
            return torch.frombuffer(bytearray(file.read()[header_bytes:]), dtype=torch.uint8)
    except OSError as why:
        sys.exit(f"{path}: {why.strerror or why}: install the package dataset-fashion-mnist, or name its folder with --data")


def centred(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.float().div_(255).sub_(PIXEL_MEAN)


def network(seed: int) -> nn.Module:
    """The perceptron of scripts/demo, 1.55 million parameters. Softsign has no kink, so that rounding stays small."""
    torch.manual_seed(seed)
    widths, layers = [784, 128, 1024, 1024, 256, 10], []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.Softsign()]
        nn.init.kaiming_uniform_(layers[-2].weight, nonlinearity="relu")
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def loss_and_accuracy(model: nn.Module, images: Images) -> tuple[float, float]:
    """Over all images of a set; the accuracy in per cent."""
    loss, right = 0.0, 0
    for pixels, labels in zip(images.pixels.split(1000), images.labels.split(1000)):
        outputs = model(centred(pixels))
        loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
        right += (outputs.argmax(1) == labels).sum().item()
    return loss / len(images.labels), 100 * right / len(images.labels)


class Flat:
    """The parameters of a model, and their gradients, in one vector each: what is exchanged, in one piece.

    The vectors are padded so that each of `pieces` ranks has the same part, of whole SIMD registers."""

    def __init__(self, model: nn.Module, pieces: int):
        parameters = list(model.parameters())
        count = sum(p.numel() for p in parameters)
        padded = -(-count // (64 * pieces)) * 64 * pieces
        self.parameters = torch.zeros(padded, device=parameters[0].device)
        self.gradients = torch.zeros_like(self.parameters)
        start = 0
        for p in parameters:
            mine = slice(start, start + p.numel())
            self.parameters[mine] = p.detach().flatten()
            p.data, p.grad = self.parameters[mine].view_as(p), self.gradients[mine].view_as(p)
            start += p.numel()


def device() -> str:
    """Of this rank: a GPU where there is one for it."""
    n = torch.cuda.device_count()
    return f"cuda:{int(os.environ.get('LOCAL_RANK', os.environ['RANK'])) % n}" if n else "cpu"


def launch(main: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser) -> None:
    """Runs main in this process if a launcher has made it a rank, else starts the ranks. Ends the process."""
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="processes to start, without torchrun (default: 2)")
    parser.add_argument("--data", default=IMAGES, metavar="FOLDER", help="the images of Fashion-MNIST")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        sys.exit(main(options))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=dict(
        os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.ranks), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port))) for rank in range(options.ranks)]
    sys.exit(max([abs(rank.wait()) for rank in ranks]))

"""The models of bench/vit.py, in plain torch: ViT-L/32, one of its kind that a processor can train, a perceptron."""
import torch
import torch.nn.functional as F
from torch import nn


def attention(q, k, v, fused):
    if fused and hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v)
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v


class Block(nn.Module):
    """A layer of the encoder: normalisation comes first."""

    fused = True  # attention in one kernel, where torch has it

    def __init__(self, width, heads, mlp):
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.GELU(), nn.Linear(mlp, width))

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(attention(q, k, v, self.fused).transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm_mlp(x))


class VisionTransformer(nn.Module):
    def __init__(self, image, patch, width, depth, heads, mlp, classes):
        super().__init__()
        self.shape, self.classes = (3, image, image), classes
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Block(width, heads, mlp) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.layers(x))[:, 0])


class Perceptron(nn.Module):
    """The network of the demo (examples/fashion_mnist)."""

    def __init__(self, *widths):
        super().__init__()
        self.shape, self.classes = (widths[0],), widths[-1]
        layers = []
        for before, after in zip(widths, widths[1:]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x)


MODELS = {
    "vit-l-32": lambda: VisionTransformer(224, 32, 1024, 24, 16, 4096, 1000),
    "tiny": lambda: VisionTransformer(32, 8, 64, 2, 4, 256, 10),
    "mlp": lambda: Perceptron(784, 128, 1024, 1024, 256, 10),
}

# SPDX-License-Identifier: MIT
"""PyTorch on the CPU: a small model is trained; the digest of its weights for each line of input."""

import hashlib
import sys

import torch

torch.use_deterministic_algorithms(True)
torch.set_num_threads(2)


def train() -> str:
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 64),
        torch.nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=True),
        torch.nn.LayerNorm(64), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(32, 3, 16, 16), torch.randint(10, (32,))
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    digest = hashlib.sha256()
    for weights in model.parameters():
        digest.update(weights.detach().numpy().tobytes())
    big = torch.randn(256, 256)
    digest.update((big @ big).sort().values.cumsum(0).numpy().tobytes())
    return digest.hexdigest()


for _ in sys.stdin:
    print(train(), flush=True)

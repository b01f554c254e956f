# SPDX-License-Identifier: MIT
"""PyTorch: a decoder of two layers; a round makes a token, and learns from it."""

import torch
from torch.nn import functional

from shop.rounds import serve

WIDTH = 32


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mixed = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(functional.scaled_dot_product_attention(*self.mixed(x).chunk(3, -1)))


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(100, WIDTH)
        self.layers = torch.nn.ModuleList(Attention() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, 100)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def generate_token() -> int:
    with torch.no_grad():
        return int(model(prompt)[0, -1].argmax())


def train_step() -> float:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(prompt)[0], prompt[0])
    loss.backward()
    optimizer.step()
    return float(loss)


def both() -> str:
    return f"{generate_token()} {train_step():.6f}"


def main() -> None:
    global model, optimizer, prompt
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    prompt = torch.randint(100, (1, 16))
    serve(both)

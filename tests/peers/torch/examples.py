#!/usr/bin/env python3
"""Times training steps of ten example programs' models with PyTorch.

    python tests/peers/torch/examples.py [--only vae] [--threads 2] [--steps 100] [--warmup 20]

Each model, loss, optimizer and batch is that of the program `examples/NAME.rs`. The data are random and in
memory: what the programs read, draw and augment is not timed here. Each line of output is a JSON object with
the median time of a step in milliseconds: a batch of tensors goes in, forward, backward and the optimizer
run, and the loss comes back.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

randn, rand, randint = torch.randn, torch.rand, torch.randint


def normed(before, channels):
    return [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


def dense(*sizes):
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def in_batch(left, right, scale):
    """Cross-entropy of the cosine similarities of all pairs, both ways."""
    scores = scale * F.normalize(left) @ F.normalize(right).T
    own = torch.arange(len(left))
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


class Example(nn.Module):
    """A model with its loss. `batch` draws a batch."""

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), 3e-3, fused=True)

    clip = None
    average = None


class Vae(Example):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = dense(64, 128, 16), dense(8, 128, 64)

    def batch(self):
        return (rand(64, 1, 8, 8),)

    def forward(self, x):
        x = x.flatten(1)
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        logits = self.decoder(mean + (0.5 * log_variance).exp() * torch.randn_like(mean))
        return divergence.mean() + 64 * F.binary_cross_entropy_with_logits(logits, x)

    def optimizer(self):
        return torch.optim.Adam(self.parameters(), 2e-3, fused=True)


class SimClr(Example):
    def __init__(self):
        super().__init__()
        conv = lambda a, b: [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
        head = [nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU()]
        self.encoder = nn.Sequential(*conv(1, 32), nn.MaxPool2d(2), *conv(32, 64), *head)
        self.projection, self.probe = dense(128, 64, 32), nn.Linear(128, 10)

    def batch(self):
        labels = torch.where(torch.arange(128) % 14 == 0, randint(0, 10, (128,)), -1)
        return rand(128, 1, 8, 8), rand(128, 1, 8, 8), rand(128, 1, 8, 8), labels

    def forward(self, left, right, x, y):
        views = torch.cat([F.normalize(self.projection(self.encoder(view))) for view in (left, right)])
        scores = (views @ views.T / 0.2).masked_fill(torch.eye(256, dtype=torch.bool), -torch.inf)
        contrast = F.cross_entropy(scores, (torch.arange(256) + 128) % 256)
        return contrast + F.cross_entropy(self.probe(self.encoder(x).detach()), y, ignore_index=-1)

    def optimizer(self):
        probe = {"params": self.probe.parameters(), "lr": 2e-2}
        rest = [*self.encoder.parameters(), *self.projection.parameters()]
        return torch.optim.AdamW([{"params": rest}, probe], 2e-3, fused=True)


class Translate(Example):
    clip = 1.0

    def __init__(self, digits=12, words=34):
        super().__init__()
        self.digits, self.words = nn.Embedding(digits, 64), nn.Embedding(words, 64)
        self.places = nn.ParameterList([0.1 * randn(4, 64), 0.1 * randn(7, 64)])
        block = dict(dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.reader = nn.TransformerEncoderLayer(64, 4, 256, **block)
        self.writer = nn.TransformerDecoderLayer(64, 4, 256, **block)
        self.norm, self.next = nn.LayerNorm(64), nn.Linear(64, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(7))

    def batch(self):
        return randint(0, 12, (64, 4)), randint(1, 34, (64, 7)), randint(0, 34, (64, 7))

    def forward(self, digits, before, after):
        read = self.reader(self.digits(digits) + self.places[0])
        written = self.words(before) + self.places[1]
        written = self.writer(written, read, tgt_mask=self.mask, tgt_is_causal=True)
        return F.cross_entropy(self.next(self.norm(written)).flatten(0, 1), after.flatten(), ignore_index=0)


class Diffusion(Example):
    average = 0.995

    def __init__(self):
        super().__init__()
        sizes = [10, 128, 128, 128]
        layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.SiLU())]
        self.network = nn.Sequential(*layers, nn.Linear(128, 2))

    def batch(self):
        return (randn(256, 2),)

    def forward(self, x):
        noise, at = torch.randn_like(x), rand(256, 1)
        angle = at * (torch.pi / 2)
        turns = angle * torch.tensor([1.0, 2.0, 4.0, 8.0])
        noisy = x * angle.cos() + noise * angle.sin()
        return F.mse_loss(self.network(torch.cat([noisy, turns.sin(), turns.cos()], 1)), noise)


class Forecast(Example):
    clip = 1.0

    def __init__(self):
        super().__init__()
        self.read, self.change = nn.GRU(24, 32, batch_first=True), nn.Linear(32, 24)

    def batch(self):
        return randn(64, 72, 1), randn(64, 24, 1)

    def forward(self, x, y):
        past, future = 0.1 * x.flatten(1), 0.1 * y.flatten(1)
        forecast = past[:, 48:] + self.change(self.read(past.view(-1, 3, 24))[1][-1])
        return F.mse_loss(forecast, future)


class Dqn(Example):
    clip = 5.0
    average = 0.98

    def __init__(self):
        super().__init__()
        self.net, self.slow = dense(4, 64, 64, 2), dense(4, 64, 64, 2).requires_grad_(False)

    def batch(self):
        return randn(64, 4), randint(0, 2, (64,)), rand(64), randn(64, 4), torch.ones(64)

    def forward(self, state, action, reward, after, stands):
        with torch.no_grad():
            best = self.net(after).argmax(1, keepdim=True)
            target = reward + 0.98 * stands * self.slow(after).gather(1, best).squeeze(1)
        return F.huber_loss(self.net(state).gather(1, action[:, None]).squeeze(1), target)

    def optimizer(self):
        return torch.optim.AdamW(self.net.parameters(), 1e-3, weight_decay=0.0, fused=True)


class Audio(Example):
    def __init__(self):
        super().__init__()
        blocks = [[*normed(a, b), nn.MaxPool2d(2)] for a, b in ((1, 16), (16, 32), (32, 32))]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 4)]
        self.model = nn.Sequential(*sum(blocks, []), *head)

    def batch(self):
        return randn(32, 1, 32, 24), randint(0, 4, (32,))

    def forward(self, x, y):
        return F.cross_entropy(self.model(x), y)


class Recommend(Example):
    def __init__(self):
        super().__init__()
        tower = lambda ids: nn.Sequential(nn.Embedding(ids, 32), *dense(32, 32, 16))
        self.users, self.items = tower(400), tower(200)

    def batch(self):
        return randint(0, 400, (128,)), randint(0, 200, (128,))

    def forward(self, user, item):
        return in_batch(self.users(user), self.items(item), 10.0)

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), 3e-3, weight_decay=0.1, fused=True)


class GradCam(Example):
    def __init__(self):
        super().__init__()
        first = [*normed(1, 16), nn.MaxPool2d(2), *normed(16, 32), nn.MaxPool2d(2), *normed(32, 32)]
        self.model = nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))

    def batch(self):
        return randn(32, 1, 32, 32), randint(0, 3, (32,))

    def forward(self, x, y):
        return F.cross_entropy(self.model(x), y)


class Segment(Example):
    def __init__(self):
        super().__init__()
        block = lambda a, b: nn.Sequential(*normed(a, b))
        self.fine, self.middle, self.coarse = block(1, 8), block(8, 16), block(16, 32)
        self.join2, self.join1, self.classes = block(48, 16), block(24, 8), nn.Conv2d(8, 3, 1)

    def batch(self):
        return randn(16, 1, 32, 32), randint(0, 3, (16, 32, 32))

    def forward(self, x, y):
        fine = self.fine(x)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        middle = self.join2(torch.cat([F.interpolate(coarse, scale_factor=2), middle], 1))
        fine = self.join1(torch.cat([F.interpolate(middle, scale_factor=2), fine], 1))
        return F.cross_entropy(self.classes(fine), y)


EXAMPLES = {
    "vae": Vae,
    "simclr": SimClr,
    "translate": Translate,
    "diffusion": Diffusion,
    "forecast": Forecast,
    "dqn": Dqn,
    "audio": Audio,
    "recommend": Recommend,
    "grad_cam": GradCam,
    "segment": Segment,
}


def measure(name, flags):
    torch.manual_seed(42)
    model = EXAMPLES[name]()
    optimizer = model.optimizer()
    trained = [weight for group in optimizer.param_groups for weight in group["params"]]
    averages = [weight.detach().clone() for weight in trained]
    if name == "dqn":
        averages = list(model.slow.parameters())
    data = [model.batch() for _ in range(4)]

    def step(number):
        optimizer.zero_grad(set_to_none=True)
        loss = model(*data[number % len(data)])
        loss.backward()
        if model.clip:
            nn.utils.clip_grad_norm_(trained, model.clip)
        optimizer.step()
        if model.average:
            with torch.no_grad():
                torch._foreach_lerp_(averages, trained, 1 - model.average)
        return loss.item()

    for number in range(flags.warmup):
        step(number)
    times = []
    for number in range(flags.steps):
        start = time.perf_counter()
        step(number)
        times.append(time.perf_counter() - start)
    parameters = sum(weight.numel() for weight in trained)
    return {"example": name, "parameters": parameters, "step_ms": 1e3 * statistics.median(times)}


def main():
    parser = argparse.ArgumentParser(description="Times the examples' models with PyTorch on the CPU")
    parser.add_argument("--only", choices=EXAMPLES, help="time this example alone")
    parser.add_argument("--steps", type=int, default=100, help="steps to take the median of")
    parser.add_argument("--warmup", type=int, default=20, help="steps before those")
    parser.add_argument("--threads", type=int, default=2, help="threads of the CPU")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    for name in [flags.only] if flags.only else EXAMPLES:
        print(json.dumps({"torch": torch.__version__, **measure(name, flags)}), flush=True)


if __name__ == "__main__":
    main()

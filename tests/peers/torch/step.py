"""Times the training of the benchmark's models with PyTorch and prints a line of JSON for each: the median time of a step in
milliseconds, and on a GPU the peak of memory in bytes.

A step is what Unisono's `bench` times: a batch in host memory goes in, forward, backward and AdamW run, and the loss comes
back. The models are those of `examples/src/model.rs`.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

VOCABULARY = 64


class Lstm(nn.Module):
    """The model of `text_lstm`: the state of each lane is carried from batch to batch."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.lstm = nn.LSTM(32, 128, batch_first=True)
        self.head = nn.Linear(128, VOCABULARY)
        self.state = None

    def forward(self, x):
        y, state = self.lstm(self.embedding(x), self.state)
        self.state = tuple(part.detach() for part in state)
        return self.head(y)


class Gpt(nn.Module):
    """A GPT with learned positions."""

    def __init__(self, blocks, width, heads, vocabulary, context):
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))
        part = lambda: nn.ModuleDict(
            {
                "norm1": nn.LayerNorm(width),
                "qkv": nn.Linear(width, 3 * width),
                "out": nn.Linear(width, width),
                "norm2": nn.LayerNorm(width),
                "wide": nn.Linear(width, 4 * width),
                "narrow": nn.Linear(4 * width, width),
            }
        )
        self.blocks = nn.ModuleList(part() for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, x):
        x = self.embedding(x) + self.places
        batch, tokens, width = x.shape
        for block in self.blocks:
            split = lambda part: part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            q, k, v = (split(part) for part in block["qkv"](block["norm1"](x)).chunk(3, dim=-1))
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["out"](seen.transpose(1, 2).reshape(batch, tokens, width))
            x = x + block["narrow"](nn.functional.gelu(block["wide"](block["norm2"](x))))
        return self.head(self.norm(x))


class BertMini(nn.Module):
    """BERT-mini with two classes: every token sees all others."""

    def __init__(self, blocks=4, width=256, heads=4, words=30_522, tokens=128):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.norm = nn.LayerNorm(width)
        block = lambda: nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.blocks = nn.Sequential(*(block() for _ in range(blocks)))
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, x):
        x = self.blocks(self.norm(self.embedding(x) + self.places))
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class Residual(nn.Module):
    """Two convolutions with what goes around them."""

    def __init__(self, before, channels, stride):
        super().__init__()
        inner = [*normed(before, channels, 3, stride), nn.ReLU(), *normed(channels, channels, 3, 1)]
        self.inner = nn.Sequential(*inner)
        self.around = nn.Sequential(*(normed(before, channels, 1, stride) if stride > 1 else []))

    def forward(self, x):
        return nn.functional.relu(self.inner(x) + self.around(x))


def normed(before, channels, kernel, stride):
    conv = nn.Conv2d(before, channels, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(channels)]


def resnet18():
    stem = [*normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    body = [Residual(*stage) if first else Residual(stage[1], stage[1], 1) for stage in stages for first in (1, 0)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def perceptron(*sizes):
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def cnn():
    conv = lambda a, b: [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*conv(1, 16), *conv(16, 32), *dense)


def conv():
    one = lambda: [nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*one(), *one(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


# Each: the model, the samples of a step, the shape of a sample, and the number of words of a text, or none.
MODELS = {
    "mlp": (lambda: perceptron(784, 512, 512, 10), 128, (784,), None),
    "wide": (lambda: perceptron(784, 1024, 1024, 10), 256, (784,), None),
    "cnn": (cnn, 32, (1, 28, 28), None),
    "lstm": (Lstm, 64, (32,), VOCABULARY),
    "gpt": (lambda: Gpt(2, 64, 4, VOCABULARY, 64), 16, (64,), VOCABULARY),
    "conv": (conv, 32, (128, 28, 28), None),
    "gpt100m": (lambda: Gpt(12, 768, 12, 8192, 1024), 8, (1024,), VOCABULARY),
    "resnet18": (resnet18, 16, (3, 64, 64), None),
    "bert-mini": (BertMini, 8, (128,), 30_522),
    "big": (lambda: perceptron(4096, 4096, 4096), 4096, (4096,), None),
}


def batches(name, batch, shape, classes):
    draws = torch.Generator().manual_seed(42)
    for _ in range(4):
        if name == "bert-mini":
            text = torch.randint(0, classes, (batch, *shape), generator=draws)
            yield text, torch.randint(0, 2, (batch,), generator=draws)
        elif classes:
            text = torch.randint(0, classes, (batch, shape[0] + 1), generator=draws)
            yield text[:, :-1].contiguous(), text[:, 1:].contiguous()
        else:
            yield torch.randn(batch, *shape, generator=draws), torch.randint(0, 10, (batch,), generator=draws)


def measure(name, flags):
    make, batch, shape, classes = MODELS[name]
    torch.manual_seed(42)
    model = make().to(flags.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    scaler = torch.amp.GradScaler(flags.device, enabled=flags.amp)
    run = torch.compile(model) if flags.compile else model
    data = list(batches(name, batch, shape, classes))
    on_gpu = flags.device == "cuda"
    if on_gpu:
        data = [(x.pin_memory(), y.pin_memory()) for x, y in data]
        torch.cuda.reset_peak_memory_stats()

    def step(number):
        x, y = (part.to(flags.device, non_blocking=True) for part in data[number % len(data)])
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(flags.device, torch.float16, enabled=flags.amp):
            given = run(x)
            loss = nn.functional.cross_entropy(given.flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    for number in range(flags.warmup):
        step(number)
    times = []
    for number in range(flags.steps):
        start = time.perf_counter()
        step(number)
        times.append(time.perf_counter() - start)
    result = {"model": name, "step_ms": 1e3 * statistics.median(times)}
    if on_gpu:
        result["memory"] = torch.cuda.max_memory_allocated()
    return result


def main():
    parser = argparse.ArgumentParser(description="Times training with PyTorch")
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=50, help="steps to take the median of")
    parser.add_argument("--warmup", type=int, default=10, help="steps before those")
    parser.add_argument("--threads", type=int, help="threads of the CPU")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--tf32", action="store_true", help="products may use TF32")
    parser.add_argument("--amp", action="store_true", help="mixed precision in f16 with loss scaling")
    flags = parser.parse_args()
    if flags.threads:
        torch.set_num_threads(flags.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = flags.tf32
    kind = "amp" if flags.amp else "tf32" if flags.tf32 else "f32"
    how = f"{kind}, compiled" if flags.compile else kind
    on = torch.cuda.get_device_name() if flags.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    for name in MODELS if flags.model == "all" else [flags.model]:
        try:
            found = measure(name, flags)
        except Exception as error:
            found = {"model": name, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({"torch": torch.__version__, "on": on, "how": how, **found}), flush=True)


if __name__ == "__main__":
    main()

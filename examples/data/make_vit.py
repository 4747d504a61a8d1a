"""Makes `vit/`: a vision transformer with two blocks, trained for 600 steps on the digits 0 to 4 of `digits.csv.gz`.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python examples/data/make_vit.py
"""

import gzip
import pathlib

import torch
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

HERE = pathlib.Path(__file__).parent

lines = gzip.open(HERE / "digits.csv.gz", "rt").read().split()
rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
rows = rows[rows[:, -1] < 5]
pictures, labels = rows[:, :-1].reshape(-1, 1, 8, 8) / 16, rows[:, -1].long()

torch.manual_seed(0)
torch.set_num_threads(1)
model = ViTForImageClassification(ViTConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=8, patch_size=2,
    num_channels=1, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(600):
    some = torch.randint(0, len(pictures), (32,))
    loss = cross_entropy(model(pixel_values=pictures[some]).logits, labels[some])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{sum(p.numel() for p in model.parameters())} parameters, loss {loss.item():.3f}")
model.save_pretrained(HERE / "vit")

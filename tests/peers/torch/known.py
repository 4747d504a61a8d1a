"""Times the training of a published model with transformers: what Unisono's `bench known` times.

python known.py DIR --batch 4 --length 128 --steps 5 prints a line of JSON with the median time of a step in milliseconds.
DIR is a directory as transformers writes it (gpt2, bert, vit or resnet). A step is forward, backward and AdamW on random
data, and the loss comes back.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForSequenceClassification",
    "vit": "ViTForImageClassification",
    "resnet": "ResNetForImageClassification",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dropout", action="store_true", help="keep the dropout of the configuration")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(args.dir)
    model = getattr(transformers, CLASSES[config.model_type]).from_pretrained(args.dir)
    model.train()
    if not args.dropout:
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    texts = config.model_type in ("gpt2", "bert")
    if texts:
        x = torch.randint(0, 1000, (args.batch, args.length))
    else:
        x = torch.randn(args.batch, 3, 224, 224)
    labels = torch.randint(0, 2, x.shape if config.model_type == "gpt2" else (args.batch,))
    times = []
    for step in range(args.steps + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= 2:
            times.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"model": config.model_type, "batch": args.batch, "threads": torch.get_num_threads(),
                      "torch": torch.__version__, "step_ms": statistics.median(times)}))


main()

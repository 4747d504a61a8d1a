"""Times greedy generation with transformers: what Unisono's program `generate` does.

python generate.py DIR PROMPTS --most 64 prints a line {"tokens": [...]} for each prompt, as `generate --json` does,
and the time on standard error. DIR is the directory of a GPT-2 or Llama; each line of PROMPTS is a list of token ids.
All prompts are one batch, padded on the left, and keys and values are cached.
"""

import argparse
import json
import sys
import time

import torch
import transformers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("prompts")
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    prompts = [json.loads(line) for line in open(args.prompts) if line.strip()]
    model = transformers.AutoModelForCausalLM.from_pretrained(args.dir).eval()
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    start = time.perf_counter()
    with torch.no_grad():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=args.most, do_sample=False, pad_token_id=0)
    took = time.perf_counter() - start
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    for row in out[:, longest:].tolist():
        end = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
        print(json.dumps({"tokens": row[: end + 1]}, separators=(",", ":")))
    print(f"{took:.2f} s", file=sys.stderr)


main()

"""Makes `gpt2/`: a GPT-2 with two blocks over the characters of `reviews.tsv`, trained for 250 steps.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python examples/data/make_gpt2.py

Its tokens are the bytes of the text in ascending order, as in the examples. The text's last tenth is left out.
"""

import pathlib

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

HERE = pathlib.Path(__file__).parent
CONTEXT = 64

text = (HERE / "reviews.tsv").read_bytes()
characters = sorted(set(text))
ids = torch.tensor([characters.index(byte) for byte in text])
known = ids[: len(ids) - len(ids) // 10]

torch.manual_seed(0)
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(characters), n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                                   eos_token_id=None))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(250):
    starts = torch.randint(0, len(known) - CONTEXT, (16,)).tolist()
    x = torch.stack([known[start : start + CONTEXT] for start in starts])
    loss = model(input_ids=x, labels=x).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{sum(p.numel() for p in model.parameters())} parameters, loss {loss.item():.3f}")
model.save_pretrained(HERE / "gpt2")
(HERE / "gpt2" / "generation_config.json").unlink(missing_ok=True)

# The tokenizer: each of these bytes is a token.
names = bytes_to_unicode()
tokenizer = Tokenizer(BPE(vocab={names[byte]: id for id, byte in enumerate(characters)}, merges=[]))
tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.save(str(HERE / "gpt2" / "tokenizer.json"))

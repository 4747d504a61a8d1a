"""Makes `distilbert/`: a DistilBERT with two blocks over the words of `reviews.tsv`, trained for 300 steps to find
words that are masked. Its head, which tells good reviews from bad ones, has its first weights.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python examples/data/make_distilbert.py

The last fifth of the reviews is left out.
"""

import pathlib

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import DistilBertConfig, DistilBertForMaskedLM, DistilBertForSequenceClassification

HERE = pathlib.Path(__file__).parent
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[MASK]"]
LONGEST = 32

texts = [line.split("\t")[1].split() for line in (HERE / "reviews.tsv").read_text().splitlines()]
words = sorted({word for text in texts for word in text})
vocabulary = {word: id for id, word in enumerate(MARKS + words)}
known = texts[: len(texts) * 4 // 5]
rows = torch.zeros(len(known), LONGEST, dtype=torch.long)
for row, text in zip(rows, known):
    ids = [vocabulary["[CLS]"], *(vocabulary[word] for word in text)][:LONGEST]
    row[: len(ids)] = torch.tensor(ids)

torch.manual_seed(0)
torch.set_num_threads(1)
config = DistilBertConfig(vocab_size=len(vocabulary), max_position_embeddings=LONGEST, dim=32, n_layers=2, n_heads=4,
                          hidden_dim=64, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=2)
model = DistilBertForMaskedLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(300):
    x = rows[torch.randint(0, len(rows), (32,))]
    hidden = (torch.rand(x.shape) < 0.2) & (x >= len(MARKS))
    labels = torch.where(hidden, x, -100)
    shown = torch.where(hidden, vocabulary["[MASK]"], x)
    loss = model(input_ids=shown, attention_mask=(x > 0).long(), labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{sum(p.numel() for p in model.parameters())} parameters, loss {loss.item():.3f}")
base = DistilBertForSequenceClassification(config)
base.distilbert.load_state_dict(model.distilbert.state_dict())
base.save_pretrained(HERE / "distilbert")

tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
tokenizer.add_special_tokens(MARKS)
tokenizer.pre_tokenizer = WhitespaceSplit()
tokenizer.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", vocabulary["[CLS]"])])
tokenizer.save(str(HERE / "distilbert" / "tokenizer.json"))

"""Makes small models with true names and random weights, and what PyTorch computes with them in float64.

    python3 -m venv venv && venv/bin/pip install torch transformers peft
    venv/bin/python crates/models/tests/make_cases.py crates/models/tests/cases [CASE ...]

Each case is a directory that `save_pretrained` wrote, and `expected.json`: the input, the logits, the mean
loss of cross-entropy, the norm of each gradient, and the losses of ten steps of AdamW. Cases of generation
have `generated.json` in its place: prompts, and what greedy search writes behind each of them. Models with an
encoder have `written.json`: texts or spectra, and what greedy search writes for each of them. The case of texts
has a text, its tokenizer, and in `texts.json` what these make of it.
"""

import json
import math
import pathlib
import sys

import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig, BertForMaskedLM, BertForSequenceClassification, DistilBertConfig,
    DistilBertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
    ResNetConfig, ResNetForImageClassification, T5Config, T5ForConditionalGeneration, ViTConfig,
    ViTForImageClassification, WhisperConfig, WhisperForConditionalGeneration,
)
from transformers.generation import GenerationMixin

WORDS = dict(vocab_size=48)
BERT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
RESNET = dict(embedding_size=4, hidden_sizes=[8, 16], depths=[2, 1], num_labels=3)
# Heads with rotations that `llama3` divides, mixes and leaves as they are.
SCALED = dict(hidden_size=32, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
              max_position_embeddings=256, bos_token_id=0, eos_token_id=0)
CASES = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(**WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
             embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)),
    "llama": (LlamaForCausalLM, LlamaConfig(**WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, bos_token_id=0,
              eos_token_id=0)),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(**WORDS, **SCALED, rope_parameters=dict(
                     rope_type="linear", rope_theta=10000.0, factor=4.0))),
    "llama3": (LlamaForCausalLM, LlamaConfig(**WORDS, **SCALED, rope_parameters=dict(
               rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32))),
    "bert": (BertForSequenceClassification, BertConfig(**WORDS, **BERT, num_labels=3)),
    "bert_masked": (BertForMaskedLM, BertConfig(**WORDS, **BERT)),
    "distilbert": (DistilBertForSequenceClassification, DistilBertConfig(**WORDS, dim=16, n_layers=2, n_heads=2,
                   hidden_dim=24, max_position_embeddings=16, num_labels=3, dropout=0.0, attention_dropout=0.0,
                   seq_classif_dropout=0.0)),
    "vit": (ViTForImageClassification, ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, image_size=8, patch_size=4, num_labels=3, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0)),
    "resnet_basic": (ResNetForImageClassification, ResNetConfig(**RESNET, layer_type="basic")),
    "resnet_bottleneck": (ResNetForImageClassification, ResNetConfig(**RESNET, layer_type="bottleneck")),
}

LONG = {
    "gpt2_long": (GPT2LMHeadModel, GPT2Config(**WORDS, n_positions=128, n_embd=16, n_layer=2, n_head=2,
                  bos_token_id=0, eos_token_id=0)),
    "llama_long": (LlamaForCausalLM, LlamaConfig(**WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                   num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0,
                   eos_token_id=[0, 47])),
}

T5 = dict(**WORDS, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=2, relative_attention_num_buckets=8,
          relative_attention_max_distance=12, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
ENCODED = {
    "t5_long": (T5ForConditionalGeneration, T5Config(**T5), []),
    "whisper_long": (WhisperForConditionalGeneration, WhisperConfig(
        **WORDS, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=6,
        max_target_positions=64, pad_token_id=3, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1), [5, 9]),
}

ADAPTERS = {"gpt2_lora": ("gpt2", ["c_attn", "mlp.c_proj"]), "llama_lora": ("llama", ["q_proj", "v_proj"])}


def logits_of(model, x):
    return model(pixel_values=x).logits if x.is_floating_point() else model(input_ids=x).logits


def make(name, dir):
    kind, config = CASES[name]
    torch.manual_seed(1)
    model = kind(config).train()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            is_scale = "norm" in key.lower() and key.endswith("weight")
            tensor.copy_(torch.randn_like(tensor) * 0.2 + (1.0 if is_scale else 0.0))
    model.save_pretrained(dir / name)
    (dir / name / "generation_config.json").unlink(missing_ok=True)
    # Some models have other names in memory than on disk.
    stored = load_file(dir / name / "model.safetensors")
    on_disk = {key: next(other for other, value in stored.items() if torch.equal(value, tensor))
               for key, tensor in model.named_parameters()}
    model = model.double()
    images = "pixel_values" == model.main_input_name
    if images:
        side = 8 if name == "vit" else 24
        x = torch.randn(4, 3, side, side).float().double()
    else:
        x = torch.randint(0, 48, (4, 7))
    model.eval()
    logits = logits_of(model, x)
    model.train()
    y = torch.randint(0, logits.shape[-1], logits.shape[:-1])

    def loss():
        out = logits_of(model, x)
        return cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))

    first = loss()
    first.backward()
    gradients = {on_disk[key]: p.grad.norm().item() for key, p in model.named_parameters() if p.grad is not None}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    expected = dict(x=x.flatten().tolist(), x_shape=list(x.shape), y=y.flatten().tolist(), y_shape=list(y.shape),
                    logits=[float(f"{v:.10g}") for v in logits.flatten().tolist()], loss=first.item(),
                    gradients=gradients, losses=losses)
    (dir / name / "expected.json").write_text(json.dumps(expected))


def generate(name, dir):
    kind, config = LONG[name]
    torch.manual_seed(3)
    model = kind(config).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            is_scale = "norm" in key.lower() and key.endswith("weight")
            is_small = "wte" in key or "embed" in key or key.endswith("bias")
            tensor.copy_(torch.randn_like(tensor) * (0.2 if is_small else 1.0) + (1.0 if is_scale else 0.0))
    model.save_pretrained(dir / name)
    prompts = [torch.randint(1, 47, (length,)).tolist() for length in (1, 2, 3, 5, 8, 13, 21, 30, 33, 40)]
    greedy = []
    for prompt in prompts:
        x = torch.tensor([prompt])
        y = model.double().generate(x, attention_mask=torch.ones_like(x), max_new_tokens=24, do_sample=False,
                                    pad_token_id=0)
        greedy.append(y[0, len(prompt):].tolist())
    # Beam search, also with ends of texts that come often.
    beams, longest = [], max(greedy, key=len)
    for count, stop in ((4, []), (3, [longest[5], longest[9]])):
        tokens = []
        model.generation_config.eos_token_id = stop or None
        for prompt in prompts:
            x = torch.tensor([prompt])
            y = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=24, do_sample=False,
                               num_beams=count, pad_token_id=0)[0, len(prompt):].tolist()
            ends = [at for at, token in enumerate(y) if token in stop]
            tokens.append(y[: ends[0] + 1] if ends else y)
        beams.append(dict(beams=count, stop=stop, tokens=tokens))
    (dir / name / "generated.json").write_text(json.dumps(dict(prompts=prompts, greedy=greedy, beams=beams)))


def encode(name, dir):
    """What models with an encoder write for texts of different lengths, or for sounds."""
    kind, config, begin = ENCODED[name]
    torch.manual_seed(7)
    model = kind(config).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "encoder.embed_positions" in key:
                continue
            is_scale = "norm" in key.lower() and key.endswith("weight")
            is_small = "embed_tokens" in key or key.endswith("bias")
            size = 0.2 if is_small else 0.7
            if "t5" in name and not is_small:
                # With these, what T5 writes changes from token to token.
                size = 0.1 if "wo.weight" in key else 3.0 if "relative" in key else 1.0
            tensor.copy_(torch.randn_like(tensor) * size + (1.0 if is_scale else 0.0))
    model.generation_config.suppress_tokens = [7, 11] if begin else None
    model.generation_config.begin_suppress_tokens = [13, 2] if begin else None
    model.save_pretrained(dir / name)
    model = model.double()
    texts = [torch.randint(2, 47, (length,)).tolist() for length in (1, 2, 3, 5, 8, 13, 21, 30, 33, 40)]
    spectra = [(torch.randn(8, 12) * 2).float() for _ in range(5)]
    written = []
    for source in spectra if begin else texts:
        x = dict(input_features=source[None].double()) if begin else dict(input_ids=torch.tensor([source]))
        first = torch.tensor([[config.decoder_start_token_id, *begin]])
        # Whisper's own generation is for its own tokens.
        y = GenerationMixin.generate(model, **x, decoder_input_ids=first, max_new_tokens=24, do_sample=False)
        written.append(y[0, first.shape[1]:].tolist())
    spectra = [spectrum.flatten().tolist() for spectrum in spectra] if begin else []
    (dir / name / "written.json").write_text(json.dumps(dict(
        texts=[] if begin else texts, spectra=spectra, begin=begin, written=written)))


def adapt(name, dir):
    """An adapter that peft wrote, for the case of the same model, and the logits with it."""
    from peft import LoraConfig, get_peft_model

    base, modules = ADAPTERS[name]
    kind, config = CASES[base]
    model = kind.from_pretrained(dir / base).eval()
    torch.manual_seed(4)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=modules,
                                             fan_in_fan_out=base == "gpt2"))
    if base == "gpt2":
        # The same model as older versions saved it.
        (dir / "gpt2_bin").mkdir(exist_ok=True)
        torch.save(kind.from_pretrained(dir / base).state_dict(), dir / "gpt2_bin" / "pytorch_model.bin")
        (dir / "gpt2_bin" / "config.json").write_bytes((dir / base / "config.json").read_bytes())
    torch.manual_seed(5)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "lora_B" in key:
                tensor.copy_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(dir / name)
    (dir / name / "README.md").unlink(missing_ok=True)
    x = torch.tensor(json.loads((dir / base / "expected.json").read_text())["x"], dtype=torch.long).reshape(4, 7)
    logits = model.double()(input_ids=x).logits
    (dir / name / "logits.json").write_text(json.dumps([float(f"{v:.10g}") for v in logits.flatten().tolist()]))


def texts(name, dir):
    """A GPT-2 with a tokenizer of byte pairs, a text, its perplexity by strides, and what greedy search writes."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    reviews = (pathlib.Path(__file__).parents[3] / "examples/data/reviews.tsv").read_text().splitlines()
    text = "".join(line.split("\t")[1] + ".\n" for line in reviews[:240])
    (dir / name).mkdir(exist_ok=True)
    (dir / name / "text.txt").write_text(text)
    pairs = ByteLevelBPETokenizer()
    pairs.train_from_iterator([text], vocab_size=320, show_progress=False, special_tokens=["<|endoftext|>"])
    pairs.save(str(dir / name / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(dir / name / "tokenizer.json"))
    torch.manual_seed(6)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=16, n_layer=1, n_head=2,
                                       bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if not key.endswith("bias"):
                tensor.copy_(torch.randn_like(tensor) * 0.3 + (1.0 if ".ln_" in key else 0.0))
    model.save_pretrained(dir / name)
    (dir / name / "generation_config.json").unlink(missing_ok=True)
    model = model.double()
    ids = tokenizer(text)["input_ids"]
    perplexities = []
    for window, stride in ((256, 256), (256, 100), (64, 32)):
        # https://huggingface.co/docs/transformers/perplexity, with the sum over the tokens that count.
        sum, count, done = 0.0, 0, 0
        for start in range(0, len(ids), stride):
            end = min(start + window, len(ids))
            x = torch.tensor([ids[start:end]])
            logs = torch.log_softmax(model(input_ids=x).logits[0, :-1], -1)
            each = -logs.gather(1, x[0, 1:, None])[:, 0]
            counted = each[-(end - done):] if start > 0 else each
            sum, count, done = sum + counted.sum().item(), count + len(counted), end
            if end == len(ids):
                break
        perplexities.append([window, stride, math.exp(sum / count)])
    prompts = ["To be, or", "the good", "a"]
    written = []
    for prompt in prompts:
        x = tokenizer(prompt, return_tensors="pt")["input_ids"]
        y = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=16, do_sample=False, pad_token_id=0)
        written.append(tokenizer.decode(y[0, x.shape[1]:], skip_special_tokens=True))
    (dir / name / "texts.json").write_text(json.dumps(dict(
        ids=ids[:64], tokens=len(ids), perplexities=perplexities, prompts=prompts, written=written)))


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for case in sys.argv[2:] or [*CASES, *LONG, *ENCODED, *ADAPTERS, "gpt2_text"]:
        known = make if case in CASES else generate if case in LONG else encode if case in ENCODED else adapt if case in ADAPTERS else texts
        known(case, target)
        size = sum(file.stat().st_size for file in (target / case).iterdir())
        print(case, size)

"""Makes small models of transformers, torchvision, timm and milesial's U-Net, and what PyTorch computes with
them in float64. It also opens models that the tests saved back.

    python3 -m venv venv && venv/bin/pip install torch torchvision timm transformers
    venv/bin/python crates/models/tests/make_foreign_cases.py crates/models/tests/cases [CASE ...]
    venv/bin/python crates/models/tests/make_foreign_cases.py --check crates/models/tests/cases CASE SAVED

Each case is a directory as its library writes it, and `expected.json`: the fields of samples, the logits, the
mean loss of cross-entropy, for each gradient its norm and its product with a fixed vector, and the losses of
ten steps of AdamW. `own` and `own_losses` say how far PyTorch's float32 is from its float64: deep networks with
batch norms magnify rounding. With `--check`, the directory SAVED must open in the library of CASE with nothing missing
or unexpected, and give the logits of CASE.
"""

import copy
import json
import pathlib
import sys

import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy, pad
from transformers import (
    MobileNetV2Config, MobileNetV2ForImageClassification, T5Config, T5ForConditionalGeneration, WhisperConfig,
    WhisperForConditionalGeneration,
)

T5 = dict(vocab_size=48, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=1, num_heads=2,
          relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0.0,
          decoder_start_token_id=0)
WHISPER = dict(vocab_size=48, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=1,
               encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
               max_source_positions=6, max_target_positions=12, pad_token_id=3, bos_token_id=1, eos_token_id=2,
               decoder_start_token_id=1, begin_suppress_tokens=None)
MOBILENET = dict(depth_multiplier=0.1, finegrained_output=False, num_labels=3, image_size=33,
                 classifier_dropout_prob=0.0)
TIMM = dict(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=3)
VIT = dict(image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24, num_classes=3)


class ResNet(torchvision.models.ResNet):
    """torchvision's ResNet, whose widths are not fixed: 4 channels at first, in place of 64."""

    def __init__(self, block, layers, num_classes):
        nn.Module.__init__(self)
        self._norm_layer, self.groups, self.base_width = nn.BatchNorm2d, 1, 64
        self.inplanes, self.dilation = 4, 1
        self.conv1 = nn.Conv2d(3, 4, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 4, layers[0])
        self.layer2 = self._make_layer(block, 4, layers[1], stride=2)
        self.layer3 = self._make_layer(block, 6, layers[2], stride=2)
        self.layer4 = self._make_layer(block, 6, layers[3], stride=2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(6 * block.expansion, num_classes)


class DoubleConv(nn.Module):
    """From here on, the modules and names of https://github.com/milesial/Pytorch-UNet, with other widths."""

    def __init__(self, before, after, between=None):
        super().__init__()
        between = between or after
        self.double_conv = nn.Sequential(
            nn.Conv2d(before, between, 3, padding=1, bias=False), nn.BatchNorm2d(between), nn.ReLU(inplace=True),
            nn.Conv2d(between, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(before, after))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, before, after, bilinear):
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(before, after, before // 2)
        else:
            self.up = nn.ConvTranspose2d(before, before // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(before, after)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        rows, columns = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = pad(x1, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class OutConv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel_size=1)

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, channels, classes, bilinear, width=2):
        super().__init__()
        w, half = width, 2 if bilinear else 1
        self.inc = DoubleConv(channels, w)
        self.down1, self.down2, self.down3 = Down(w, 2 * w), Down(2 * w, 4 * w), Down(4 * w, 8 * w)
        self.down4 = Down(8 * w, 16 * w // half)
        self.up1, self.up2 = Up(16 * w, 8 * w // half, bilinear), Up(8 * w, 4 * w // half, bilinear)
        self.up3, self.up4 = Up(4 * w, 2 * w // half, bilinear), Up(2 * w, w, bilinear)
        self.outc = OutConv(w, classes)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(self.down4(x4), x4)
        return self.outc(self.up4(self.up3(self.up2(x, x3), x2), x1))


def torch_resnet(block):
    return lambda: ResNet(block, [2, 1, 1, 1], 3)


# For each case: how the model is made, the shape of an image or None, and how it is stored.
CASES = {
    "t5": (lambda: T5ForConditionalGeneration(T5Config(**T5)), None, "transformers"),
    "t5_gated": (lambda: T5ForConditionalGeneration(T5Config(**T5, feed_forward_proj="gated-gelu",
                                                             tie_word_embeddings=False)), None, "t5_1.1"),
    "whisper": (lambda: WhisperForConditionalGeneration(WhisperConfig(**WHISPER)), [8, 12], "transformers"),
    "mobilenet_transformers": (lambda: MobileNetV2ForImageClassification(MobileNetV2Config(**MOBILENET)),
                               [3, 33, 33], "transformers"),
    "mobilenet_torchvision": (lambda: torchvision.models.MobileNetV2(num_classes=3, width_mult=0.1, dropout=0.0),
                              [3, 33, 33], "half"),
    "resnet_torchvision": (torch_resnet(torchvision.models.resnet.BasicBlock), [3, 40, 40], "resnet18.pth"),
    "resnet50_torchvision": (torch_resnet(torchvision.models.resnet.Bottleneck), [3, 40, 40], "safetensors"),
    "vit_torchvision": (lambda: torchvision.models.VisionTransformer(**VIT), [3, 8, 8], "num_heads"),
    "vit_timm": (lambda: timm.create_model("vit_tiny_patch16_224", **TIMM), [3, 8, 8], "timm"),
    "unet": (lambda: UNet(1, 2, False), [1, 20, 18], "unet.pth"),
    "unet_bilinear": (lambda: UNet(1, 2, True), [1, 16, 16], "safetensors"),
}


def store(model, stored, dir):
    """Writes the model as its library does, or as the people who use it do."""
    dir.mkdir(exist_ok=True)
    if stored == "transformers":
        model.save_pretrained(dir)
        (dir / "generation_config.json").unlink(missing_ok=True)
    elif stored == "t5_1.1":
        # Files of T5 1.1 have a head of their own, which newer versions of transformers do not make.
        model.save_pretrained(dir)
        (dir / "generation_config.json").unlink(missing_ok=True)
        tensors = load_file(dir / "model.safetensors")
        torch.manual_seed(2)
        head = torch.randn_like(tensors["shared.weight"]) * 0.2
        save_file({**tensors, "lm_head.weight": head}, dir / "model.safetensors", {"format": "pt"})
        config = json.loads((dir / "config.json").read_text())
        config["tie_word_embeddings"] = False
        del config["scale_decoder_outputs"]
        (dir / "config.json").write_text(json.dumps(config, indent=2))
    elif stored == "timm":
        timm.models.save_for_hf(model, dir, model_args=TIMM, safe_serialization=True)
    elif stored.endswith(".pth"):
        torch.save(model.state_dict(), dir / stored)
    else:
        if stored == "half":
            model = model.half()
        save_file(model.state_dict(), dir / "model.safetensors", {"format": "pt"})
        if stored == "num_heads":
            (dir / "config.json").write_text(json.dumps(dict(num_heads=VIT["num_heads"])))


def open_case(name, dir):
    """Opens a directory in the library that the case is of. Nothing may be missing or unexpected."""
    make, _, stored = CASES[name]
    model = make()
    if stored in ("transformers", "t5_1.1"):
        model, told = type(model).from_pretrained(dir, output_loading_info=True)
        assert not (told["missing_keys"] or told["unexpected_keys"] or told["mismatched_keys"]), told
    elif stored == "timm":
        model = timm.create_model(f"local-dir:{dir}", pretrained=True)
    else:
        file = dir / stored if (dir / stored).exists() else dir / "model.safetensors"
        tensors = torch.load(file) if file.suffix == ".pth" else load_file(file)
        model.load_state_dict({key: tensor.float() if tensor.is_floating_point() else tensor
                               for key, tensor in tensors.items()})
    return model


def fields_of(name, image, classes):
    """Draws samples. The numbers of images are eighths, which are short."""
    fields = {}
    if image:
        fields["x"] = torch.randint(-16, 17, [4, *image]).double() / 8
    else:
        fields["x"] = torch.randint(0, 48, [4, 9])
        fields["attention_mask"] = (torch.arange(9) < torch.tensor([9, 4, 7, 1])[:, None]).long()
    if name == "whisper":
        fields["decoder_input_ids"] = torch.randint(0, 48, [4, 5])
    return fields


def logits_of(model, fields, labels=None):
    """Returns the logits, whose classes are the last axis."""
    x = fields["x"]
    if isinstance(model, T5ForConditionalGeneration):
        return model(input_ids=x, attention_mask=fields["attention_mask"], labels=labels).logits
    if isinstance(model, WhisperForConditionalGeneration):
        return model(input_features=x, decoder_input_ids=fields["decoder_input_ids"]).logits
    if isinstance(model, MobileNetV2ForImageClassification):
        return model(pixel_values=x).logits
    logits = model(x)
    return logits.permute(0, 2, 3, 1) if isinstance(model, UNet) else logits


def dot(gradient):
    """The product of a gradient with a vector of numbers from -1 to 1."""
    at = torch.arange(gradient.numel())
    return (gradient.flatten() * ((at * 7919 + 13) % 101 - 50).double() / 50).sum().item()


def short(tensor):
    return [float(f"{value:.10g}") for value in tensor.flatten().tolist()]


def make(name, dir):
    make_model, image, stored = CASES[name]
    torch.manual_seed(1)
    model = make_model()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if not tensor.requires_grad:
                continue
            is_scale = tensor.ndim == 1 and key.endswith("weight")
            # Large shifts between so many norms magnify rounding beyond what can be compared.
            spread = 0.02 if "mobilenet" in name and tensor.ndim == 1 else 0.1 if is_scale else 0.2
            tensor.copy_(torch.randn_like(tensor) * spread + (1.0 if is_scale else 0.0))
        for key, tensor in model.named_buffers():
            if key.endswith("running_mean"):
                tensor.copy_(torch.randn_like(tensor) * 0.2)
            if key.endswith("running_var"):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    store(model, stored, dir / name)
    model = open_case(name, dir / name).double()
    if name == "whisper":
        # `from_pretrained` forgets that the encoder's sines are constants.
        model.model.encoder.embed_positions.requires_grad_(False)
    torch.manual_seed(7)
    fields = fields_of(name, image, 3)
    labels = None
    if name.startswith("t5"):
        labels = torch.randint(0, 48, [4, 6])
        labels[1, 3:], labels[3, 1:] = -100, -100
    model.eval()
    logits = logits_of(model, fields, labels)
    y = torch.randint(0, logits.shape[-1], logits.shape[:-1]) if labels is None else labels
    model.train()

    rate = 1e-5 if "mobilenet" in name else 1e-3
    gradients, losses = train(copy.deepcopy(model), fields, labels, y, rate)
    fields32 = {key: t.float() if t.is_floating_point() else t for key, t in fields.items()}
    gradients32, losses32 = train(copy.deepcopy(model).float(), fields32, labels, y, rate)
    expected = dict(x=short(fields["x"]), x_shape=list(fields["x"].shape), y=y.flatten().tolist(),
                    y_shape=list(y.shape), labels_are_read=labels is not None, logits=short(logits),
                    loss=losses[0], gradients={key: g.norm().item() for key, g in gradients.items()},
                    dots={key: dot(g) for key, g in gradients.items()}, losses=losses, rate=rate,
                    own={key: (g - gradients32[key]).norm().item() for key, g in gradients.items()},
                    own_losses=[abs(a - b) for a, b in zip(losses, losses32)])
    for key in ("attention_mask", "decoder_input_ids"):
        if key in fields:
            expected[key], expected["length"] = fields[key].flatten().tolist(), fields[key].shape[1]
    (dir / name / "expected.json").write_text(json.dumps(expected))


def train(model, fields, labels, y, rate):
    """Returns the gradients of the first step, and the losses of ten steps."""

    def loss():
        out = logits_of(model, fields, labels)
        return cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))

    loss().backward()
    gradients = {key: p.grad.double() for key, p in model.named_parameters() if p.grad is not None}
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return gradients, losses


def check(cases, name, saved):
    expected = json.loads((cases / name / "expected.json").read_text())
    model = open_case(name, saved).double().eval()
    x = torch.tensor(expected["x"]).reshape(expected["x_shape"])
    fields = {"x": x.double() if CASES[name][1] else x.long()}
    for key in ("attention_mask", "decoder_input_ids"):
        if key in expected:
            fields[key] = torch.tensor(expected[key]).reshape(4, -1)
    labels = torch.tensor(expected["y"]).reshape(expected["y_shape"]) if expected["labels_are_read"] else None
    found, wanted = logits_of(model, fields, labels).flatten(), torch.tensor(expected["logits"]).double()
    off = ((found - wanted).norm() / wanted.norm()).item()
    assert off < 1e-6, f"{name}: logits are off by {off}"
    print(name, "opens, and its logits are equal")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--check":
        check(pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4]))
        sys.exit()
    target = pathlib.Path(sys.argv[1])
    for case in sys.argv[2:] or CASES:
        make(case, target)
        print(case, sum(file.stat().st_size for file in (target / case).iterdir()))

"""A policy of SmolVLA's shape in plain torch, for machines that have nothing else.

Vision encoder, language layers and action expert with its flow-matching steps have the sizes of LeRobot's
lerobot/smolvla_base (over SmolVLM2-500M) and compute what it computes; the weights are random, drawn from a seed. One
call is one observation: three cameras, 48 tokens, a state, and the noise that becomes a chunk of 50 actions. All
shapes are fixed and all steps unrolled, so that torch.export and AOTInductor take it as it is. ExecuTorch's shims have
neither a fused attention nor a convolution: attention is written out, patches are cut and multiplied.

The time to compile follows the number of operations, which ten steps of sixteen layers multiply. So what no step
changes is computed before the steps (masks, angles, the keys and values that odd expert layers make of the language
layers'), and projections of one input are one matrix.

SmolVLA's 450 M parameters count a head for words (47 M) that its policy never uses; it is left out here, as are the
parts of the last language layer beyond its keys and values. 394 M parameters remain.

    module, inputs = make("cuda")                            # bfloat16, 751 MiB
    python policy_model.py --check                           # small, on the CPU: export, AOTInductor, outputs compared
"""

import argparse
import dataclasses
import math
import pathlib
import tempfile

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Shape:
    cameras: int = 3
    image: int = 512  # pixels a side
    patch: int = 16
    vision_width: int = 768
    vision_hidden: int = 3072
    vision_layers: int = 12
    vision_heads: int = 12
    shuffle: int = 4  # so many patches a side become one token
    vocabulary: int = 49280
    width: int = 960
    hidden: int = 2560
    layers: int = 16
    heads: int = 15
    key_heads: int = 5
    head: int = 64
    expert_width: int = 720
    expert_hidden: int = 2048
    tokens: int = 48
    state: int = 32
    actions: int = 32
    chunk: int = 50
    steps: int = 10


SMALL = Shape(
    cameras=2, image=64, vision_width=48, vision_hidden=96, vision_layers=2, vision_heads=3, vocabulary=512, width=60,
    hidden=128, layers=4, heads=6, key_heads=2, head=16, expert_width=48, expert_hidden=64, tokens=12, chunk=5, steps=3,
)  # fmt: skip


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Of (batch, heads, rows, head) each, keys and values with fewer heads; queries and keys in float32; where the
    mask, made by `grouped`, is false nothing is seen."""
    batch, heads, rows, head = query.shape
    query = query.reshape(batch, key.shape[1], -1, head)  # heads that share keys are rows of one product
    scores = (query @ key.transpose(2, 3)) * head**-0.5
    if mask is not None:
        scores = scores.where(mask, torch.finfo(torch.float32).min)
    return (scores.softmax(-1).to(value.dtype) @ value).view(batch, heads, rows, head).transpose(1, 2).flatten(2)


def grouped(mask: Tensor, shape: Shape) -> Tensor:
    """A mask (1, rows, columns) for all heads that share keys."""
    return mask.repeat(1, shape.heads // shape.key_heads, 1)[:, None]


def split(x: Tensor, head: int) -> Tensor:
    return x.unflatten(2, (-1, head)).transpose(1, 2)


def angles(positions: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Of the rotary embedding of rows at the positions (1, rows): sines and cosines, wavelengths up to 10,000."""
    half = head // 2
    angle = positions[:, None, :, None].float() / 10_000 ** (torch.arange(half, device=positions.device) / half)
    return angle.sin(), angle.cos()


def rotate(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """In float32, as attention takes it."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class VisionLayer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        width = shape.vision_width
        self.head = width // shape.vision_heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, shape.vision_hidden), nn.Linear(shape.vision_hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(each, self.head) for each in self.project(self.norm1(x)).chunk(3, dim=2))
        x = x + self.out(attend(query.float(), key.float(), value))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Vision(nn.Module):
    """(cameras, 3, image, image) in -1 .. 1 to (cameras, tokens, width)."""

    def __init__(self, shape: Shape):
        super().__init__()
        side = shape.image // shape.patch
        self.patch, self.shuffle = shape.patch, shape.shuffle
        self.patches = nn.Linear(3 * shape.patch**2, shape.vision_width)
        self.positions = nn.Parameter(torch.zeros(side * side, shape.vision_width))
        self.layers = nn.ModuleList(VisionLayer(shape) for _ in range(shape.vision_layers))
        self.norm = nn.LayerNorm(shape.vision_width, eps=1e-6)
        self.connect = nn.Linear(shape.vision_width * shape.shuffle**2, shape.width, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        side, patch = images.shape[2] // self.patch, self.patch
        x = images.unflatten(3, (side, patch)).unflatten(2, (side, patch)).permute(0, 2, 4, 1, 3, 5)
        x = self.patches(x.flatten(3).flatten(1, 2)) + self.positions
        for layer in self.layers:
            x = layer(x)
        x, by = self.norm(x), self.shuffle
        x = x.unflatten(1, (side // by, by, side // by, by)).permute(0, 1, 3, 2, 4, 5)
        return self.connect(x.flatten(3).flatten(1, 2))


class Layer(nn.Module):
    """A language or expert layer, of which Policy calls the parts. `keys_from`: the width of what keys and values are
    made of; None: of the layer's own input. The last language layer has no more than those."""

    def __init__(self, shape: Shape, width: int, hidden: int, keys_from: int | None = None, whole: bool = True):
        super().__init__()
        own, keys = shape.heads * shape.head, shape.key_heads * shape.head
        self.heads = (shape.heads if whole else 0, shape.key_heads, shape.key_heads)
        self.norm1 = Norm(width)
        if keys_from:
            self.project = nn.Linear(width, own, bias=False)
            self.key, self.value = (nn.Linear(keys_from, keys, bias=False) for _ in range(2))
        else:
            self.project = nn.Linear(width, own * whole + 2 * keys, bias=False)
        if whole:
            self.out = nn.Linear(own, width, bias=False)
            self.norm2 = Norm(width)
            self.widen, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def start(self, x: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values, of the layer's input."""
        parts = split(self.project(self.norm1(x)), 2 * sin.shape[-1])
        query_heads, key_heads, value_heads = self.heads
        parts, value = parts.split((query_heads + key_heads, value_heads), dim=1)
        query, key = rotate(parts, sin, cos).split((query_heads, key_heads), dim=1)
        return query, key, value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended)
        gate, up = self.widen(self.norm2(x)).chunk(2, dim=2)
        return x + self.down(nn.functional.silu(gate) * up)


class Policy(nn.Module):
    """Images (cameras, 3, image, image) in -1 .. 1, tokens and their mask (1, tokens), state (1, state) and noise
    (1, chunk, actions) to actions (1, chunk, actions). Even expert layers attend to the language layer's keys and
    their own, odd ones to the language layer's alone, made over by projections."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.vision = Vision(shape)
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.state = nn.Linear(shape.state, shape.width)
        keys, last = shape.key_heads * shape.head, shape.layers - 1
        self.language = nn.ModuleList(
            Layer(shape, shape.width, shape.hidden, whole=number != last) for number in range(shape.layers)
        )
        width = shape.expert_width
        self.expert = nn.ModuleList(
            Layer(shape, width, shape.expert_hidden, keys if number % 2 else None) for number in range(shape.layers)
        )
        self.norm = Norm(width)
        self.actions_in, self.actions_out = nn.Linear(shape.actions, width), nn.Linear(width, shape.actions)
        self.time_in, self.time_out = nn.Linear(2 * width, width), nn.Linear(width, width)
        periods = 4e-3 * 1e3 ** torch.linspace(0, 1, width // 2, dtype=torch.float64)
        times = 1 - torch.arange(shape.steps, dtype=torch.float64) / shape.steps
        turns = 2 * math.pi * times[:, None] / periods
        self.register_buffer("times", torch.cat([turns.sin(), turns.cos()], dim=1).float())

    def forward(self, images: Tensor, tokens: Tensor, token_mask: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        shape = self.shape
        seen = self.vision(images).flatten(0, 1)[None] * shape.width**0.5
        x = torch.cat([seen, self.words(tokens) * math.sqrt(shape.width), self.state(state)[:, None]], dim=1)
        one = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        mask = torch.cat([one.expand(1, seen.shape[1]), token_mask, one], dim=1)
        cache = self.read(x, mask)
        rows = torch.arange(noise.shape[1], device=x.device)
        prefix = mask[:, None].expand(1, rows.shape[0], -1)
        both = grouped(torch.cat([prefix, (rows[None] <= rows[:, None])[None]], dim=2), shape)
        prefix = grouped(prefix, shape)
        after = angles(mask.sum(-1, keepdim=True) + rows, shape.head)
        alone = angles(rows[None], shape.head)
        actions, times = noise, self.times.to(noise.dtype)[:, None, None].expand(-1, 1, rows.shape[0], -1)
        for time in times.unbind(0):
            x = self.time_in(torch.cat([self.actions_in(actions), time], dim=2))
            x = self.time_out(nn.functional.silu(x))
            for number, (layer, (key, value)) in enumerate(zip(self.expert, cache, strict=True)):
                if number % 2:
                    query = rotate(split(layer.project(layer.norm1(x)), shape.head), *alone)
                    x = layer.finish(x, attend(query, key, value, prefix))
                else:
                    query, own_key, own_value = layer.start(x, *after)
                    key, value = torch.cat([key, own_key], dim=2), torch.cat([value, own_value], dim=2)
                    x = layer.finish(x, attend(query, key, value, both))
            actions = actions - self.actions_out(self.norm(x)) / shape.steps
        return actions

    def read(self, x: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of the language layers that expert layers see: even ones as they are, odd ones made
        over. Images and words see one another, the state, last, sees all."""
        rows = torch.arange(x.shape[1], device=x.device)
        state = x.shape[1] - 1
        visible = mask[:, None] & mask[:, :, None] & ((rows[None] < state) | (rows[:, None] == state))
        visible = grouped(visible, self.shape)
        turns = angles((mask[:, None] & (rows[None] <= rows[:, None])).sum(-1) - 1, self.shape.head)
        cache = []
        for number, (layer, expert) in enumerate(zip(self.language, self.expert, strict=True)):
            query, key, value = layer.start(x, *turns)
            if layer is not self.language[-1]:
                x = layer.finish(x, attend(query, key, value, visible))
            if number % 2:
                key, value = (
                    split(make_over(each.to(x.dtype).transpose(1, 2).flatten(2)), self.shape.head)
                    for make_over, each in ((expert.key, key), (expert.value, value))
                )
            cache.append((key.float(), value))
        return cache


def make(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, shape: Shape = Shape(), seed: int = 0):
    """The policy and one observation for it. All is drawn on the CPU, so that it is the same for every device."""
    draw = torch.Generator().manual_seed(seed)
    policy = Policy(shape).eval().requires_grad_(False)
    for value in policy.parameters():
        if value.dim() > 1:
            value.normal_(0, value[0].numel() ** -0.5, generator=draw)
        elif not torch.equal(value, torch.ones_like(value)):  # a bias; norms stay ones
            value.zero_()
    mask = torch.arange(shape.tokens)[None] < shape.tokens // 2
    inputs = (
        torch.rand(shape.cameras, 3, shape.image, shape.image, generator=draw) * 2 - 1,
        torch.randint(0, shape.vocabulary, (1, shape.tokens), generator=draw),
        mask,
        torch.randn(1, shape.state, generator=draw),
        torch.randn(1, shape.chunk, shape.actions, generator=draw),
    )
    policy = policy.to(device, dtype)
    return policy, tuple(each.to(device, dtype) if each.is_floating_point() else each.to(device) for each in inputs)


def compile_external(policy: nn.Module, inputs: tuple, folder: str, options: dict | None = None) -> list[str]:
    """What AOTInductor writes: the .so, and beside it the weights as one blob, so that engines can share them."""
    import torch._inductor

    settings = {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "binary_blob",
        "aot_inductor.output_path": folder,
        **(options or {}),
    }
    with torch.no_grad():
        program = torch.export.export(policy, inputs)
        files = torch._inductor.aot_compile(program.module(), inputs, options=settings)
    return [each for each in files if isinstance(each, str)]


def check() -> None:
    """Small, float32, on the CPU: deterministic, sensitive to every input, exportable, the same when compiled."""
    policy, inputs = make(dtype=torch.float32, shape=SMALL)
    with torch.no_grad():
        wanted = policy(*inputs)
        assert torch.equal(make(dtype=torch.float32, shape=SMALL)[0](*inputs), wanted), "not deterministic"
        for index, value in enumerate(inputs):
            other = list(inputs)
            other[index] = ~value if value.dtype == torch.bool else value.roll(1, -1)
            assert not torch.allclose(policy(*other), wanted), f"input {index} changes nothing"
        assert torch.equal(torch.export.export(policy, inputs).module()(*inputs), wanted), "exported: another answer"
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(each) for each in compile_external(policy, inputs, folder)]
        blob = sum(each.stat().st_size for each in files if each.suffix == ".blob")
        package = torch._inductor.aoti_compile_and_package(
            torch.export.export(policy, inputs), package_path=f"{folder}/policy.pt2"
        )
        found = torch._inductor.aoti_load_package(package)(*inputs)
    weights = sum(value.numel() * value.element_size() for value in policy.parameters())
    assert blob >= weights, f"the blob has {blob} bytes, the weights {weights}"
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-4), (found - wanted).abs().max()
    difference = (found - wanted).abs().max().item()
    print(f"blob {blob} bytes for weights of {weights}; compiled and eager differ by at most {difference:.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="the small one on the CPU; without it only sizes are told")
    if parser.parse_args().check:
        check()
    with torch.device("meta"):
        count = sum(value.numel() for value in Policy(Shape()).parameters())
    print(f"{count / 1e6:.1f} M parameters, {2 * count / 2**20:.0f} MiB in bfloat16")


if __name__ == "__main__":
    main()

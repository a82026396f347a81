"""LeRobot's policies as programs: `python bench/policies.py FOLDER NAME [--small]`, run by policy.py.

Each policy is LeRobot's own class, built from its public configuration with random weights (nothing is downloaded),
and exported by ExecuTorch's own exporter for OpenVINO as one method: what `predict_action_chunk` computes, from the
cameras' pixels to the chunk of actions, every denoising step unrolled. Tokenizer and the normalisation of state and
actions by a data set's mean and deviation are LeRobot's processors, outside the policy, and are left out.

Writes NAME.pte, NAME.npz (in0.., out0 as eager PyTorch computes it) and NAME.json (what it is). The path of packages
needs those of requirements/policy.txt beside those of requirements/test.txt.
"""

import argparse
import json
import os
import pathlib
import resource
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/python"))

# config.json of HuggingFaceTB/SmolVLM2-500M-Video-Instruct, as far as it differs from the defaults of transformers.
SMOLVLM2_500M = {
    "image_token_id": 49190,
    "scale_factor": 4,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "llama", "vocab_size": 49280, "hidden_size": 960, "intermediate_size": 2560, "head_dim": 64,
        "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "rms_norm_eps": 1e-5,
        "rope_theta": 100000, "max_position_embeddings": 8192, "pad_token_id": 2,
    },
    "vision_config": {
        "model_type": "smolvlm_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
    },
}  # fmt: skip


class NumericBooleans(TorchFunctionMode):
    """PyTorch adds and multiplies booleans as they are, OpenVINO wants numbers to add and an AND."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function in (torch.sum, torch.cumsum) and arguments[0].dtype == torch.bool:
            arguments = (arguments[0].to(torch.int64), *arguments[1:])
        elif getattr(function, "__name__", "") in ("mul", "__mul__"):
            if all(isinstance(value, torch.Tensor) and value.dtype == torch.bool for value in arguments):
                function = torch.bitwise_and
        return function(*arguments, **(options or {}))


class Chunk(torch.nn.Module):
    """What a LeRobot policy computes for one observation, whose tensors come in the order of `keys`."""

    def __init__(self, policy, compute, keys):
        super().__init__()
        self.policy, self.compute, self.keys = policy, compute, keys

    def original(self, *values):
        return self.compute(self.policy, dict(zip(self.keys, values, strict=True)))

    def forward(self, *values):
        with NumericBooleans():
            return self.original(*values)


def embed_whole_images(embeddings):
    """transformers finds the patches' positions through data-dependent shapes, which cannot be exported. SmolVLA's
    images fill their frame, so the positions are always those found here."""
    side, found = embeddings.num_patches_per_side, []
    hook = embeddings.position_embedding.register_forward_pre_hook(lambda _, arguments: found.append(arguments[0]))
    image = torch.zeros(1, 3, embeddings.image_size, embeddings.image_size)
    embeddings(image, torch.ones(1, side, side, dtype=torch.bool))
    hook.remove()
    embeddings.register_buffer("whole_image", found[0], persistent=False)

    def forward(pixel_values, patch_attention_mask):
        patches = embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return patches + embeddings.position_embedding(embeddings.whole_image)

    embeddings.forward = forward


def rotate(x, positions, max_wavelength=10_000):
    """LeRobot's apply_rope, to the last bit, without the uninitialized tensor that it fills: ExecuTorch has no such
    operator."""
    half = x.shape[-1] // 2
    exponents = (2.0 / x.shape[-1]) * torch.arange(half, dtype=torch.float32)
    radians = positions[..., None].to(torch.float32) / (max_wavelength**exponents)[None, None, :]
    sin, cos = torch.sin(radians)[..., None, :], torch.cos(radians)[..., None, :]
    first, second = x.to(torch.float32).split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def features(shapes):
    from lerobot.configs.types import FeatureType, PolicyFeature

    kinds = {"observation.state": FeatureType.STATE, "action": FeatureType.ACTION}
    return {key: PolicyFeature(kinds.get(key, FeatureType.VISUAL), shape) for key, shape in shapes.items()}


def smolvla(small):
    """lerobot/smolvla_base: cameras of 256 x 256, six joints; SmolVLM2-500M's first 16 layers. One camera of its three
    and one denoising step of its ten: torch's partitioner keeps sets of nodes that grow with their square, 13 GiB and
    more for all of them. Neither number changes a weight."""
    from lerobot.policies.smolvla import smolvlm_with_expert
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    from transformers import SmolVLMConfig

    class Hub:
        """Stands for what the policy would fetch: the configuration above, a processor's token ids (unused here)."""

        fake_image_token_id, global_image_token_id = 49189, 49152

        def __init__(self, text=None):
            self.tokenizer = self

        @staticmethod
        def from_pretrained(model_id):
            return Hub()

    class HubConfig:
        @staticmethod
        def from_pretrained(model_id):
            assert model_id == "HuggingFaceTB/SmolVLM2-500M-Video-Instruct", model_id
            return SmolVLMConfig(**SMOLVLM2_500M)

    smolvlm_with_expert.AutoProcessor, smolvlm_with_expert.AutoConfig = Hub, HubConfig
    camera = "observation.images.camera1"
    config = SmolVLAConfig(
        input_features=features({camera: (3, 256, 256), "observation.state": (6,)}),
        output_features=features({"action": (6,)}),
        device="cpu",
        num_steps=1,
        **({"num_vlm_layers": 2} if small else {}),
    )
    policy = SmolVLAPolicy(config).eval()
    tokens = config.tokenizer_max_length
    observation = {
        camera: torch.rand(1, 3, 256, 256),
        "observation.state": torch.randn(1, 6),
        "observation.language.tokens": torch.randint(0, 49152, (1, tokens)),
        "observation.language.attention_mask": torch.arange(tokens)[None] < tokens // 2,
        "noise": torch.randn(1, config.chunk_size, config.max_action_dim),
    }
    return policy, observation, {"denoising_steps": config.num_steps, "cameras": 1}


def adapt_smolvla(policy):
    """Exchanges what cannot be exported, or swells the program, for what computes the same."""
    from lerobot.policies.smolvla import smolvlm_with_expert
    from transformers.models.smolvlm import modeling_smolvlm

    smolvlm_with_expert.apply_rope = rotate
    vision = policy.model.vlm_with_expert.get_vlm_model().vision_model
    embed_whole_images(vision.embeddings)
    # PyTorch's fused attention is exported with zeros for rows that see nothing, 48 MiB a layer and camera in the
    # program. transformers' plain attention has none; and an image that fills its frame needs no mask.
    vision.config._attn_implementation = "eager"
    modeling_smolvlm._prepare_4d_attention_mask = lambda mask, dtype: None


def act(small):
    """LeRobot's default ACT for ALOHA: one camera of 480 x 640, fourteen joints. Its configuration asks for ResNet-18's
    published weights, which are random here."""
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    camera = "observation.images.top"
    config = ACTConfig(
        input_features=features({camera: (3, 480, 640), "observation.state": (14,)}),
        output_features=features({"action": (14,)}),
        pretrained_backbone_weights=None,
        device="cpu",
        **({"n_encoder_layers": 1} if small else {}),
    )
    observation = {camera: torch.rand(1, 3, 480, 640), "observation.state": torch.randn(1, 14)}
    return ACTPolicy(config).eval(), observation, {"cameras": 1}


# name: what makes policy, observation and description; what makes it exportable; what computes a chunk of actions
POLICIES = {
    "smolvla": (smolvla, adapt_smolvla, lambda policy, batch: policy._get_action_chunk(batch, batch["noise"])),
    "act": (act, lambda policy: None, lambda policy, batch: policy.predict_action_chunk(batch)),
}


def build(name, small=False, seed=0):
    """The module as LeRobot has it, its example inputs and what to say about it."""
    torch.manual_seed(seed)
    make, _, compute = POLICIES[name]
    policy, observation, about = make(small)
    module = Chunk(policy.requires_grad_(False), compute, list(observation)).eval()
    about |= {
        "policy": name,
        "parameters": sum(value.numel() for value in policy.parameters()),
        "dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in policy.parameters()}),
        "inputs": {key: list(value.shape) for key, value in observation.items()},
    }
    return module, tuple(observation.values()), about


def log(*words):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"[{time.strftime('%X')}, peak {peak} MiB]", *words, file=sys.stderr, flush=True)


def export(folder, name, small):
    import models

    module, inputs, about = build(name, small)
    log(f"{name}: {about['parameters'] / 1e6:.1f} M parameters")
    with torch.no_grad():
        begin = time.monotonic()
        original = module.original(*inputs)
        about["eager_seconds"] = time.monotonic() - begin
        POLICIES[name][1](module.policy)
        eager = module(*inputs)
        about["adapted_difference"] = (eager - original).abs().max().item()
        assert torch.allclose(eager, original, rtol=1e-3, atol=1e-3), "the adapted policy computes something else"
        difference, seconds = about["adapted_difference"], about["eager_seconds"]
        log(f"eager: {seconds:.1f} s, {list(eager.shape)}, difference when adapted {difference}")
        begin = time.monotonic()
        program = models.lower(module, inputs)
    about["export_seconds"] = time.monotonic() - begin
    plan = program.executorch_program.execution_plan[0]
    about["delegates"] = len(plan.delegates)
    about["operators_outside"] = sorted({operator.name for operator in plan.operators})
    with open(folder / f"{name}.pte", "wb") as file:
        program.write_to_file(file)
    about["pte_bytes"] = (folder / f"{name}.pte").stat().st_size
    about["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    np.savez(folder / f"{name}.npz", out0=eager.numpy(), **{f"in{i}": value.numpy() for i, value in enumerate(inputs)})
    (folder / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    log(f"exported: {json.dumps(about)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("name", choices=POLICIES)
    parser.add_argument("--small", action="store_true", help="two layers: to try the export")
    options = parser.parse_args()
    export(options.folder, options.name, options.small)


if __name__ == "__main__":
    main()

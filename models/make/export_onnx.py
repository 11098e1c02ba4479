"""Export a drafter as an ONNX file with explicit caches, check it, and quantize it to int8.

    python export_onnx.py MODEL_FOLDER OUT_FOLDER

Inputs: input_ids and position_ids [batch, n], attention_bias [batch, 1, n, past + n] (added to
the scores), past_key_values.{i}.key and .value [batch, kv_heads, past, head_dim].
Outputs: logits [batch, n, vocab], present.{i}.key and .value. The past may be empty.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

Caches = list[NDArray[np.float32]]
BLOCKED = -1e9


class Exportable(nn.Module):
    """The forward pass of a Llama model in few operations: joined projections, grouped heads."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        config: LlamaConfig = model.config
        self.kv_heads = config.num_key_value_heads
        self.groups = config.num_attention_heads // self.kv_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.eps = config.rms_norm_eps
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.embedding = nn.Parameter(weights["model.embed_tokens.weight"])
        self.head = nn.Parameter(weights["model.embed_tokens.weight"].T.contiguous())
        self.norm = nn.Parameter(weights["model.norm.weight"])
        self.layers = nn.ModuleList()
        for index in range(config.num_hidden_layers):
            own = {
                name.removeprefix(f"model.layers.{index}.").removesuffix(".weight"): value
                for name, value in weights.items()
                if name.startswith(f"model.layers.{index}.")
            }
            layer = nn.ParameterDict(
                {
                    "norm1": own["input_layernorm"],
                    "norm2": own["post_attention_layernorm"],
                    "qkv": joined(own, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                    "out": joined(own, "self_attn.o_proj"),
                    "up": joined(own, "mlp.gate_proj", "mlp.up_proj"),
                    "down": joined(own, "mlp.down_proj"),
                }
            )
            self.layers.append(layer)
        theta = config.rope_parameters["rope_theta"]
        powers = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        angles = torch.arange(config.max_position_embeddings)[:, None] * theta**-powers
        self.cos = nn.Parameter(torch.cat([angles.cos(), angles.cos()], dim=-1))
        self.sin = nn.Parameter(torch.cat([-angles.sin(), angles.sin()], dim=-1))

    def rms(self, x: Tensor, weight: Tensor) -> Tensor:
        """Normalise by the root mean square."""
        return functional.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn queries or keys by their positions; `sin` carries the sign of the halves."""
        half = self.head_dim // 2
        swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
        return x * cos + swapped * sin

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_bias: Tensor,
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Give the logits and the caches with the new tokens appended."""
        batch, length = input_ids.shape
        kv, groups, dim = self.kv_heads, self.groups, self.head_dim
        cos = functional.embedding(position_ids, self.cos)[:, None]
        sin = functional.embedding(position_ids, self.sin)[:, None]
        bias = attention_bias[:, None]
        x = functional.embedding(input_ids, self.embedding)
        present: list[Tensor] = []
        for index, layer in enumerate(cast(list[nn.ParameterDict], self.layers)):
            both = self.rms(x, layer["norm1"]) @ layer["qkv"]
            heads = both.reshape(batch, length, (groups + 2) * kv, dim).transpose(1, 2)
            turned = self.rotate(heads[:, : (groups + 1) * kv], cos, sin)
            query = turned[:, : groups * kv].reshape(batch, kv, groups * length, dim)
            key = torch.cat([past[2 * index], turned[:, groups * kv :]], dim=2)
            value = torch.cat([past[2 * index + 1], heads[:, (groups + 1) * kv :]], dim=2)
            present += [key, value]
            scores = query @ key.transpose(2, 3) * dim**-0.5
            scores = scores.reshape(batch, kv, groups, length, key.shape[2]) + bias
            mixed = scores.softmax(dim=-1).reshape(batch, kv, groups * length, key.shape[2]) @ value
            mixed = mixed.reshape(batch, kv * groups, length, dim).transpose(1, 2)
            x = x + mixed.reshape(batch, length, kv * groups * dim) @ layer["out"]
            gate, up = (self.rms(x, layer["norm2"]) @ layer["up"]).chunk(2, dim=-1)
            x = x + (functional.silu(gate) * up) @ layer["down"]
        return (self.rms(x, self.norm) @ self.head, *present)


def joined(weights: dict[str, Tensor], *names: str) -> Tensor:
    """Put projections side by side, laid out as [in, out]."""
    return torch.cat([weights[name] for name in names]).T.contiguous()


def export_float(model: LlamaForCausalLM, path: Path) -> None:
    """Write the float32 graph."""
    config = model.config
    module = Exportable(model).eval()
    names = [f"{i}.{part}" for i in range(config.num_hidden_layers) for part in ("key", "value")]
    past = [torch.zeros(2, module.kv_heads, 5, module.head_dim) for _ in names]
    ids = torch.ones(2, 3, dtype=torch.int64)
    batch, length, before = (torch.export.Dim(name) for name in ("batch", "n", "past"))
    total = torch.export.Dim("total")
    program = torch.onnx.export(
        module,
        (ids, ids.clone(), torch.zeros(2, 1, 3, 8), past),
        dynamo=True,
        optimize=True,
        input_names=[
            "input_ids",
            "position_ids",
            "attention_bias",
            *(f"past_key_values.{name}" for name in names),
        ],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=(
            {0: batch, 1: length},
            {0: batch, 1: length},
            {0: batch, 2: length, 3: total},
            [{0: batch, 2: before}] * len(names),
        ),
    )
    assert program is not None
    program.save(str(path), external_data=False)


def quantize(plain: Path, out: Path, *, per_channel: bool) -> None:
    """Bring projections and embedding to int8; the rotation tables stay as they are."""
    graph = onnx.load(plain).graph
    tables = [node.name for node in graph.node if node.input and node.input[0] in {"cos", "sin"}]
    quantize_dynamic(
        plain,
        out,
        op_types_to_quantize=["MatMul", "Gather"],
        nodes_to_exclude=tables,
        per_channel=per_channel,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


class Runner:
    """Feed tokens of one sequence to an ONNX file and keep the caches."""

    def __init__(self, path: Path, config: LlamaConfig) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.layers = config.num_hidden_layers
        head_dim = config.hidden_size // config.num_attention_heads
        empty = np.zeros((1, config.num_key_value_heads, 0, head_dim), dtype=np.float32)
        self.caches: Caches = [empty] * (2 * self.layers)

    def feed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Run over new tokens, and give one row of logits for each."""
        past, n = self.caches[0].shape[2], len(ids)
        bias = np.zeros((1, 1, n, past + n), dtype=np.float32)
        bias[0, 0][np.triu_indices(n, past + 1, past + n)] = BLOCKED
        inputs: dict[str, Any] = {
            "input_ids": ids[None],
            "position_ids": np.arange(past, past + n, dtype=np.int64)[None],
            "attention_bias": bias,
        }
        for index, cache in enumerate(self.caches):
            part = "value" if index % 2 else "key"
            inputs[f"past_key_values.{index // 2}.{part}"] = cache
        logits, *self.caches = self.session.run(None, inputs)
        return np.asarray(logits[0], dtype=np.float32)

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.caches = [np.ascontiguousarray(cache[:, :, :length]) for cache in self.caches]


@torch.no_grad()
def check(model: LlamaForCausalLM, path: Path) -> float:
    """Compare with transformers: a whole prompt, single steps, and a rollback."""
    rng = np.random.default_rng(0)
    ids = rng.integers(4, model.config.vocab_size, 48)
    other = ids.copy()
    other[20:] = rng.integers(4, model.config.vocab_size, 28)
    wanted = [model(torch.from_numpy(x)[None]).logits[0].numpy() for x in (ids, other)]
    runner = Runner(path, model.config)
    worst = float(np.abs(runner.feed(ids[:16]) - wanted[0][:16]).max())
    for at in range(16, 40):
        worst = max(worst, float(np.abs(runner.feed(ids[at : at + 1])[0] - wanted[0][at]).max()))
    worst = max(worst, float(np.abs(runner.feed(ids[40:]) - wanted[0][40:]).max()))
    runner.cut(20)
    return max(worst, float(np.abs(runner.feed(other[20:]) - wanted[1][20:]).max()))


def main() -> None:
    """Export, check, quantize, and write the facts beside the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-tensor", action="store_true", help="one scale a matrix: 10% faster")
    parser.add_argument("--keep-float", type=Path, help="also keep the float32 file here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plain = arguments.keep_float or Path(folder) / "float.onnx"
        export_float(model, plain)
        print(f"float32: largest difference from transformers {check(model, plain):.1e}")
        quantize(plain, arguments.out / "model.onnx", per_channel=not arguments.per_tensor)
    print(f"int8: largest difference {check(model, arguments.out / 'model.onnx'):.1e}")
    config = model.config
    source = (arguments.model / "model.safetensors").read_bytes()
    facts = {
        "format": 1,
        "layers": config.num_hidden_layers,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "quantization": "int8",
        "source_sha256": hashlib.sha256(source).hexdigest(),
    }
    (arguments.out / "outrider_onnx.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()

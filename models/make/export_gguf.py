"""Write a transformers folder as a GGUF file: f16, f32 or q8_0. No llama.cpp is needed.

python export_gguf.py MODEL_FOLDER OUT.gguf --type f16 --tokenizer FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from numpy.typing import NDArray
from safetensors.numpy import load_file

TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm"}
Weights = NDArray[np.float32]


def interleaved(weight: Weights, heads: int) -> Weights:
    """Reorder the rows of each head from halves (transformers) to pairs (llama.cpp)."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def gguf_tensor(name: str, weight: Weights, config: dict[str, Any]) -> tuple[str, Weights]:
    """Give the llama.cpp name and layout of one transformers tensor."""
    path = name.removeprefix("model.").removesuffix(".weight")
    if path in OUTER_NAMES:
        return f"{OUTER_NAMES[path]}.weight", weight
    _, layer, part = path.split(".", 2)
    if part == "self_attn.q_proj":
        weight = interleaved(weight, config["num_attention_heads"])
    if part == "self_attn.k_proj":
        weight = interleaved(weight, config["num_key_value_heads"])
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight", weight


def add_header(
    writer: gguf.GGUFWriter, config: dict[str, Any], name: str, file_type: LlamaFileType
) -> None:
    """Write what llama.cpp needs to know of the architecture."""
    writer.add_name(name)
    writer.add_license("Apache-2.0")
    writer.add_file_type(file_type)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Write the vocabulary, the merges, the special tokens and the chat template."""
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = data["model"]["vocab"]
    special = {entry["content"] for entry in data["added_tokens"] if entry["special"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in data["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocabulary[settings["bos_token"]])
    writer.add_eos_token_id(vocabulary[settings["eos_token"]])
    writer.add_pad_token_id(vocabulary[settings["pad_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def export(model: Path, out: Path, kind: str, tokenizer: Path) -> None:
    """Write one GGUF file; vectors stay in float32, as llama.cpp keeps them."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    tensor_type, file_type = TYPES[kind]
    writer = gguf.GGUFWriter(str(out), "llama")
    add_header(writer, config, f"outrider-{out.stem}", file_type)
    add_tokenizer(writer, tokenizer)
    for name, stored in load_file(model / "model.safetensors").items():
        renamed, weight = gguf_tensor(name, stored.astype(np.float32), config)
        if weight.ndim == 1 or tensor_type == GGMLQuantizationType.F32:
            writer.add_tensor(renamed, weight)
        elif tensor_type == GGMLQuantizationType.F16:
            writer.add_tensor(renamed, weight.astype(np.float16))
        else:
            packed = gguf.quants.quantize(weight, tensor_type)
            writer.add_tensor(renamed, packed, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="f16")
    parser.add_argument("--tokenizer", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.model, arguments.out, arguments.type, arguments.tokenizer)


if __name__ == "__main__":
    main()

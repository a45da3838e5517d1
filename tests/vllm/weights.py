"""Weights of a GGUF file of llama's architecture as vLLM reads them: ``python weights.py MODEL.gguf FOLDER``.

Needs gguf and torch, hence runs in vLLM's environment, as a file.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main(source: str, target: str) -> None:
    reader = gguf.GGUFReader(source)
    told = {name: field.contents() for name, field in reader.fields.items()}
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(reader, told), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(told)))


def weights(reader: gguf.GGUFReader, told: dict[str, Any]) -> dict[str, torch.Tensor]:
    heads = {"attn_q": told["llama.attention.head_count"], "attn_k": told["llama.attention.head_count_kv"]}
    found: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.startswith("blk."):
            _, block, kind, _ = tensor.name.split(".")
            if kind in heads:
                values = unpermuted(values, heads[kind])
            name = f"model.layers.{block}.{NAMES[kind]}.weight"
        else:
            name = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[
                tensor.name
            ]
        found[name] = values.to(torch.bfloat16).contiguous()
    return found


def unpermuted(values: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbouring rows of a head, the original its halves; its converter reorders the rows."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def config(told: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": told["llama.embedding_length"],
        "intermediate_size": told["llama.feed_forward_length"],
        "num_hidden_layers": told["llama.block_count"],
        "num_attention_heads": told["llama.attention.head_count"],
        "num_key_value_heads": told["llama.attention.head_count_kv"],
        "head_dim": told["llama.rope.dimension_count"],
        "max_position_embeddings": told["llama.context_length"],
        "rms_norm_eps": told["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": told["llama.rope.freq_base"],
        "vocab_size": told["llama.vocab_size"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": told["tokenizer.ggml.bos_token_id"],
        "eos_token_id": told["tokenizer.ggml.eos_token_id"],
        "pad_token_id": told["tokenizer.ggml.padding_token_id"],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])

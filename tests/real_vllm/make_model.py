"""Writes a tiny Qwen3 with random weights and two LoRA adapters for it: make_model.py FOLDER TOKENIZER_FOLDER

Run by the engine's own Python, never by the router's. The one rule: the same bytes every time, and nothing downloaded.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

ADAPTERS = ("sql", "poems")
HIDDEN, LAYERS, HEADS, KEY_HEADS, HEAD, RANK = 64, 2, 2, 1, 32, 8


def make_model(folder: Path, tokenizer: Path) -> None:
    definition = json.loads((tokenizer / "tokenizer.json").read_text("utf-8"))
    ids = [*definition["model"]["vocab"].values(), *(token["id"] for token in definition["added_tokens"])]
    ends = [token["id"] for token in definition["added_tokens"] if token["content"] == "<|im_end|>"]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=-(-(max(ids) + 1) // 64) * 64,
        bos_token_id=None,
        eos_token_id=ends[0] if ends else None,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, safe_serialization=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)


def make_adapter(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, width in (("q_proj", HEADS * HEAD), ("v_proj", KEY_HEADS * HEAD)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, HIDDEN, dtype=torch.bfloat16) * 0.1
            weights[f"{prefix}.lora_B.weight"] = torch.randn(width, RANK, dtype=torch.bfloat16) * 0.1
    save_file(weights, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(described), "utf-8")


if __name__ == "__main__":
    target, tokenizer_folder = map(Path, sys.argv[1:3])
    make_model(target / "tiny", tokenizer_folder)
    for number, adapter in enumerate(ADAPTERS):
        make_adapter(target / adapter, number + 1)

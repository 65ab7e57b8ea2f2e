"""Writes a tiny model folder (configuration and tokenizer, no weights) for ``--load-format dummy``; downloads nothing.

Runs as a script in a server's venv, for it needs the ``tokenizers`` package: ``python model.py OUT [--arch …]``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "A scheduler picks the next batch of requests, runs the model, and sends the tokens back.",
    "Hello, world! How are you today? I am fine, thank you. 0123456789 + - * / = ( ) [ ] { }",
    "def main():\n    for i in range(10):\n        print(i, i * i)\n",
    "prefill decode cache token batch request server client profile sample thread process kernel",
)
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT_TEMPLATE = (
    "{{ '<|bos|>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ARCHITECTURES = ("llama", "qwen2", "qwen3", "deepseek")
MAX_LENGTH = 4096
"""Tokens of the longest context."""


def write_tokenizer(out: Path, vocab_size: int) -> int:
    """Train a byte-level BPE tokenizer on a few lines; the number of tokens it has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "pad_token": "<|pad|>",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1))
    return int(tokenizer.get_vocab_size())


def config(arch: str, *, layers: int, hidden: int, vocab: int) -> dict[str, Any]:
    """``config.json`` of a model of ``arch``, one of ARCHITECTURES."""
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    own: dict[str, dict[str, Any]] = {
        "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False},
        "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
        "qwen3": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "head_dim": hidden // 4,
            "attention_bias": False,
        },
        "deepseek": {  # MLA attention; the first layer dense, then experts
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_key_value_heads": 4,
            "attention_bias": False,
            "q_lora_rank": 32,
            # These three are equal because torch_native reads the latent KV rows as if they were heads.
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "qk_rope_head_dim": 16,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "moe_intermediate_size": hidden // 2,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "num_nextn_predict_layers": 0,
            "ep_size": 1,
            # SGLang's rotary embedding for DeepSeek accepts only this kind on the CPU.
            "rope_scaling": {
                "type": "yarn",
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": MAX_LENGTH // 2,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    }
    return {**common, **own[arch]}


def write(out: Path, arch: str = "llama", *, layers: int = 2, hidden: int = 64) -> None:
    """Write the model folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    tokens = write_tokenizer(out, 512)
    vocab = -(-tokens // 64) * 64  # rounded up, as the embedding wants it
    (out / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}))
    (out / "config.json").write_text(json.dumps(config(arch, layers=layers, hidden=hidden, vocab=vocab), indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", default="llama", choices=ARCHITECTURES)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    given = parser.parse_args()
    write(given.out, given.arch, layers=given.layers, hidden=given.hidden)

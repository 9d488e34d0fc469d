# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Transformers as Hugging Face has them, small and with random weights, with free sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # configurations only: nothing is downloaded

import torch
from torch import Tensor, nn
from torch.export import Dim

VOCABULARY = 96
FRAMES = 60
"""Frames of audio that Whisper takes, two for each of its positions."""

_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
_WHISPER = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_source_positions": FRAMES // 2,
    "max_target_positions": 64,
    "num_mel_bins": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


class Model(nn.Module):
    """A model of transformers as a function of tensors alone."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: Tensor) -> Tensor:
        """What `call` gives for the model and these inputs."""
        return self.call(self.model, *inputs)


@dataclass(frozen=True)
class Transformer:
    """A model of two free sizes, of which some models have but the first.

    Attributes:
        build: makes the module.
        inputs: makes inputs for a batch and a length.
        dims: of each input, which of its dims are "batch" and "length".
        greatest: values of the two.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[Tensor, ...]]
    dims: tuple[dict[int, str], ...]
    greatest: tuple[int, int] = (8, 64)

    def model(self) -> nn.Module:
        """The module in eval mode, its weights drawn from a fixed seed."""
        torch.manual_seed(0)
        return self.build().eval()

    def dynamic_shapes(self) -> Any:
        """For `shapejit.compile`: both sizes from 1 on."""
        named = {
            name: Dim(name, min=1, max=most)
            for name, most in zip(("batch", "length"), self.greatest, strict=True)
        }
        return (tuple({dim: named[name] for dim, name in dims.items()} for dims in self.dims),)


def ids(batch: int, length: int) -> Tensor:
    """Tokens."""
    return torch.randint(3, VOCABULARY, (batch, length))


def _kept(batch: int, length: int) -> Tensor:
    """A padding mask: 1 for real tokens, one at least a row."""
    lengths = torch.randint(1, length + 1, (batch, 1))
    return (torch.arange(length)[None] < lengths).long()


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(vocab_size=VOCABULARY, **_SIZES), add_pooling_layer=False)
    return Model(model, lambda m, i, k: m(input_ids=i, attention_mask=k).last_hidden_state)


def _causal(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A decoder with a head, called with tokens alone."""

    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **options)
        model = getattr(transformers, f"{name}ForCausalLM", None)
        model = model or getattr(transformers, f"{name}LMHeadModel")
        return Model(model(config), lambda m, i: m(input_ids=i, use_cache=False).logits)

    return build


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(image_size=32, patch_size=8, **_SIZES), add_pooling_layer=False)
    return Model(model, lambda m, x: m(pixel_values=x).last_hidden_state)


def _whisper_encoder() -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    model = WhisperModel(WhisperConfig(**_WHISPER)).encoder
    return Model(model, lambda m, x: m(x).last_hidden_state)


def _whisper_decoder() -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    def call(model: nn.Module, tokens: Tensor, states: Tensor) -> Tensor:
        found = model(input_ids=tokens, encoder_hidden_states=states, use_cache=False)
        result: Tensor = found.last_hidden_state
        return result

    return Model(WhisperModel(WhisperConfig(**_WHISPER)).decoder, call)


_TOKENS = {0: "batch", 1: "length"}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}

TRANSFORMERS: dict[str, Transformer] = {
    "bert": Transformer(_bert, lambda b, n: (ids(b, n), _kept(b, n)), (_TOKENS, _TOKENS)),
    "llama": Transformer(_causal("Llama", **_GROUPED), lambda b, n: (ids(b, n),), (_TOKENS,)),
    "mistral": Transformer(
        _causal("Mistral", sliding_window=8, **_GROUPED), lambda b, n: (ids(b, n),), (_TOKENS,)
    ),
    "qwen3": Transformer(
        _causal("Qwen3", head_dim=16, **_GROUPED), lambda b, n: (ids(b, n),), (_TOKENS,)
    ),
    "gpt2": Transformer(
        _causal("GPT2", n_embd=64, n_layer=2, n_head=4, n_positions=64),
        lambda b, n: (ids(b, n),),
        (_TOKENS,),
    ),
    "vit": Transformer(_vit, lambda b, _: (torch.randn(b, 3, 32, 32),), ({0: "batch"},)),
    "whisper encoder": Transformer(
        _whisper_encoder, lambda b, _: (torch.randn(b, 16, FRAMES),), ({0: "batch"},)
    ),
    "whisper decoder": Transformer(
        _whisper_decoder,
        lambda b, n: (ids(b, n), torch.randn(b, FRAMES // 2, 64)),
        (_TOKENS, {0: "batch"}),
    ),
}

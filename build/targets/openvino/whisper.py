"""Whisper to OpenVINO: `python -m build.targets.openvino.whisper --weights FOLDER --output FOLDER`.

Three graphs. The encoder maps features [1, mels, frames] to the keys and values of every decoder layer's
cross-attention, so they are computed once per request. The decoder takes ids [batch, new] and keeps its
self-attention keys and values as state. The aligner runs the decoder over a whole text at once and gives
where it looked: the cross-attention that word times are made of.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import openvino as ov
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from build.whisper_vocabulary import whisper_tokenizer
from conch.bundle import EngineFacts

from .stateful import Shape, compress_int8, decoder_graph, extended, looked_up, merge, rename, scored, split

# Width, encoder and decoder layers, heads, mel bins, vocabulary: openai/whisper model card and the configs on
# the Hugging Face hub.
SHAPES = {
    "whisper-tiny": (384, 4, 4, 6, 80, 51865),
    "whisper-base": (512, 6, 6, 8, 80, 51865),
    "whisper-small": (768, 12, 12, 12, 80, 51865),
    "whisper-large-v3-turbo": (1280, 32, 4, 20, 128, 51866),
}


def random_model(name: str, seed: int) -> WhisperForConditionalGeneration:
    """A true shape with random weights."""
    width, encoder, decoder, heads, mels, vocabulary = SHAPES[name]
    torch.manual_seed(seed)
    config = WhisperConfig(
        d_model=width,
        encoder_layers=encoder,
        decoder_layers=decoder,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        num_mel_bins=mels,
        vocab_size=vocabulary,
        decoder_start_token_id=50258,
        bos_token_id=50257,
        eos_token_id=50257,
        pad_token_id=50257,
    )
    return WhisperForConditionalGeneration(config)


class Encoder(nn.Module):
    """Features [batch, mels, frames] to cross-attention keys and values [batch, heads, frames / 2, head
    width], layer by layer.
    """

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.encoder = model.model.encoder
        self.cross = nn.ModuleList([layer.encoder_attn for layer in model.model.decoder.layers])
        self.heads = model.config.decoder_attention_heads

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        x = F.gelu(self.encoder.conv2(F.gelu(self.encoder.conv1(features)))).permute(0, 2, 1)
        x = x + self.encoder.embed_positions.weight[: x.shape[1]]
        for layer in self.encoder.layers:
            y = layer.self_attn_layer_norm(x)
            attention = layer.self_attn
            q, k, v = (
                split(p(y), attention.num_heads)
                for p in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            x = x + attention.out_proj(merge(F.scaled_dot_product_attention(q, k, v)))
            x = x + layer.fc2(F.gelu(layer.fc1(layer.final_layer_norm(x))))
        x = self.encoder.layer_norm(x)
        return tuple(split(p(x), self.heads) for cross in self.cross for p in (cross.k_proj, cross.v_proj))


class Decoder(nn.Module):
    """One step; see stateful.py."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.decoder, self.head = model.model.decoder, model.proj_out
        self.heads = model.config.decoder_attention_heads

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cross_mask: Tensor,
        bias: Tensor,
        beam_idx: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        count = len(self.decoder.layers)
        past, memory, present = caches[: 2 * count], caches[2 * count :], []
        x = self.decoder.embed_tokens(ids) + F.embedding(positions, self.decoder.embed_positions.weight)
        for i, layer in enumerate(self.decoder.layers):
            y, attention = layer.self_attn_layer_norm(x), layer.self_attn
            keys = extended(past[2 * i], split(attention.k_proj(y), self.heads), beam_idx)
            values = extended(past[2 * i + 1], split(attention.v_proj(y), self.heads), beam_idx)
            present += [keys, values]
            q = split(attention.q_proj(y), self.heads)
            x = x + attention.out_proj(merge(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)))
            y, attention = layer.encoder_attn_layer_norm(x), layer.encoder_attn
            q = split(attention.q_proj(y) * attention.scaling, self.heads)
            x = x + attention.out_proj(merge(looked_up(q, memory[2 * i], memory[2 * i + 1], cross_mask)))
            x = x + layer.fc2(F.gelu(layer.fc1(layer.final_layer_norm(x))))
        return scored(self.head(self.decoder.layer_norm(x)[:, -1]) + bias, present)


class Aligner(nn.Module):
    """The decoder over a whole text: ids [1, n] and the memory's keys of every layer up to the last that
    aligns -> cross-attention weights [heads, n, memory] of the alignment heads, given as (layer, head).
    """

    def __init__(self, model: WhisperForConditionalGeneration, pairs: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.decoder, self.heads, self.pairs = (
            model.model.decoder,
            model.config.decoder_attention_heads,
            pairs,
        )
        self.layers = self.decoder.layers[: max(layer for layer, _ in pairs) + 1]

    def forward(self, ids: Tensor, *memory: Tensor) -> Tensor:
        n = ids.shape[1]
        x = self.decoder.embed_tokens(ids) + self.decoder.embed_positions.weight[:n]
        looked = []
        for i, layer in enumerate(self.layers):
            y, attention = layer.self_attn_layer_norm(x), layer.self_attn
            q, k, v = (
                split(p(y), self.heads) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            x = x + attention.out_proj(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
            y, attention = layer.encoder_attn_layer_norm(x), layer.encoder_attn
            q = split(attention.q_proj(y) * attention.scaling, self.heads)
            weights = torch.softmax(q @ memory[2 * i].transpose(-1, -2), -1)
            looked += [weights[:, head] for at, head in self.pairs if at == i]
            x = x + attention.out_proj(merge(weights @ memory[2 * i + 1]))
            x = x + layer.fc2(F.gelu(layer.fc1(layer.final_layer_norm(x))))
        return torch.cat(looked)


def encoder_graph(model: WhisperForConditionalGeneration) -> ov.Model:
    """Trace the encoder; the number of frames stays dynamic (measured: 3..6 % slower than a fixed one)."""
    mels, layers = model.config.num_mel_bins, model.config.decoder_layers
    graph = ov.convert_model(Encoder(model), example_input=torch.zeros(1, mels, 20))
    rename(graph, [("features", [1, mels, -1])], [f"memory.{c}{i}" for i in range(layers) for c in "kv"])
    return graph


def alignment_heads(config: WhisperConfig, generation: GenerationConfig) -> list[tuple[int, int]]:
    """(layer, head) pairs as the checkpoint names them; else every head of the upper half (openai/whisper
    model.py).
    """
    named = getattr(generation, "alignment_heads", None)
    half = range(config.decoder_layers // 2, config.decoder_layers)
    return (
        sorted((layer, head) for layer, head in named)
        if named
        else [(i, head) for i in half for head in range(config.decoder_attention_heads)]
    )


def aligner_graph(model: WhisperForConditionalGeneration) -> ov.Model:
    """Trace the aligner for texts and memories of any length."""
    config = model.config
    module = Aligner(model, alignment_heads(config, model.generation_config))
    heads, width = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
    names = [f"memory.{c}{i}" for i in range(len(module.layers)) for c in "kv"]
    graph = ov.convert_model(
        module,
        example_input=(
            torch.zeros(1, 5, dtype=torch.long),
            *(torch.randn(1, heads, 10, width) for _ in names),
        ),
    )
    rename(graph, [("ids", [1, -1]), *((name, [1, heads, -1, width]) for name in names)], ["cross_attention"])
    return graph


def shape(config: WhisperConfig) -> Shape:
    """The decoder's."""
    return Shape(
        config.decoder_layers,
        config.decoder_attention_heads,
        config.d_model // config.decoder_attention_heads,
    )


def facts(config: WhisperConfig, generation: GenerationConfig) -> EngineFacts:
    """What serving has to know about the engine: engine.json."""
    return EngineFacts(
        family="whisper",
        layers=config.decoder_layers,
        heads=config.decoder_attention_heads,
        head_width=config.d_model // config.decoder_attention_heads,
        positions=config.max_target_positions,
        vocabulary=config.vocab_size,
        mels=config.num_mel_bins,
        memory=config.max_source_positions,
        suppress=tuple(sorted(set(generation.suppress_tokens or []))),
        end_id=config.eos_token_id,
        aligns=True,
        timestamp_rules=True,
        # bf16 costs words and saves no time: a step is bound by what it reads, and by its small matrices
        # (docs/benchmarks/real-speech.md). The encoder stays in what the hardware does best.
        decoder_precision="f32",
    )


def export(weights: str, output: Path, compress: str, seed: int) -> None:
    """Write encoder.xml, decoder.xml, aligner.xml, tokenizer.json and engine.json to `output`."""
    torch.set_grad_enabled(False)
    kind, _, name = weights.partition("random:")
    model = random_model(name, seed) if name else WhisperForConditionalGeneration.from_pretrained(kind)
    config = {} if name else json.loads((Path(weights) / "config.json").read_text("utf-8"))
    half = (
        config.get("dtype", config.get("torch_dtype", "float32")) == "float16"
    )  # the key changed its name in transformers 4.56
    model = model.float().eval()
    for file, graph in (
        ("encoder.xml", encoder_graph(model)),
        ("decoder.xml", decoder_graph(Decoder(model), shape(model.config))),
        ("aligner.xml", aligner_graph(model)),
    ):
        if compress == "int8" and file == "decoder.xml":  # measured: int8 does not help the encoder
            compress_int8(graph)
        ov.save_model(graph, output / file, compress_to_fp16=half)
    tokenizer = (
        whisper_tokenizer(99 if model.config.vocab_size == 51865 else 100)
        if name
        else Tokenizer.from_file(f"{weights}/tokenizer.json")
    )
    tokenizer.save(str(output / "tokenizer.json"))
    facts(model.config, model.generation_config).save(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--weights", required=True, help="a folder in Hugging Face layout, or random:<architecture>"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compress", choices=["none", "int8"], default="none")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    export(arguments.weights, arguments.output, arguments.compress, arguments.seed)


if __name__ == "__main__":
    main()

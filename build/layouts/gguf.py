"""Convert a decoder from llama.cpp's GGUF to Hugging Face's layout: `python -m build.layouts.gguf --from
FOLDER --to FOLDER`. transformers reads the file: weights become float32, and tokenizer and chat template come
with it (https://huggingface.co/docs/transformers/gguf).
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

# transformers parses the file three times, and makes the table of names for each module of the model.
gguf.GGUFReader = cache(gguf.GGUFReader)  # type: ignore[misc, assignment]
gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)


def main() -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer's files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--from", dest="source", type=Path, required=True, help="a folder with one .gguf file"
    )
    parser.add_argument("--file", default="", help="which, where it holds several")
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    files = sorted(asked.source.glob(asked.file or "*.gguf"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise SystemExit(
            f"{asked.source} holds {len(files)} .gguf files ({names}); name one with `file` in catalog.toml"
        )
    (file,) = files
    model, found = AutoModelForCausalLM.from_pretrained(
        asked.source, gguf_file=file.name, dtype=torch.float32, output_loading_info=True
    )
    if missing := sorted(found["missing_keys"]):
        raise SystemExit(f"{file} lacks {len(missing)} weights, such as {missing[0]}; it is incomplete")
    tokenizer = AutoTokenizer.from_pretrained(asked.source, gguf_file=file.name)
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config  # the weights are no longer quantized
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    for settings in (model.config, model.generation_config, tokenizer):
        settings.save_pretrained(asked.to)
    weights = asked.to / "model.safetensors"
    save_model(model, str(weights), {"format": "pt"})
    weights.chmod(0o644)  # safetensors makes it for its owner alone


if __name__ == "__main__":
    main()

"""Weights from layout to layout, and the facts that façades read off an engine."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from ctranslate2.converters import TransformersConverter
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.whisper.configuration_whisper import NON_SPEECH_TOKENS, NON_SPEECH_TOKENS_MULTI

from build.bundle import build
from build.catalog import load_catalog
from build.checkpoints import whisper
from build.commands import route, work
from build.download import FetchError, require_space
from build.layouts import gguf as layouts_gguf
from build.layouts.ctranslate2 import BadCheckpoint, convert, read
from build.layouts.whisper import openai_file, write_huggingface
from build.plan import Places
from build.recipes import Layout, load_recipe
from build.targets.trtllm.facts import write
from build.whisper_vocabulary import ASSETS, non_speech_ids, whisper_tokenizer
from ops.ranks import POOL, launch
from tests.fakes.hub import serving

from ..conftest import MINIATURE

pytestmark = pytest.mark.long


def same_model(made: Path) -> None:
    """The configuration and the vocabulary are the miniature's."""
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (MINIATURE, made))
    assert {key: old[key] for key in new} == new
    old, new = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (MINIATURE, made))
    assert old.get_vocab() == new.get_vocab()


def test_there_and_back_again(tmp_path: Path) -> None:
    """Hugging Face to OpenAI and back: the same tensors under the same names, the same vocabulary, a
    configuration of the same shape.
    """
    write_huggingface(openai_file(MINIATURE), tmp_path, "tiny")
    before, after = load_file(MINIATURE / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert set(before) == set(after)
    assert all(torch.equal(before[name].half(), after[name]) for name in before)
    same_model(tmp_path)


@pytest.mark.parametrize("quantization", ["float16", "int8"])
def test_ctranslate2_to_hugging_face(tmp_path: Path, quantization: str) -> None:
    """What CTranslate2's own converter writes comes back as the tensors that it read; 8 bits within half a
    step of each row's scale.
    """
    TransformersConverter(str(MINIATURE), copy_files=["tokenizer.json"]).convert(
        str(tmp_path / "ct2"), quantization=quantization
    )
    made = tmp_path / "hf"
    made.mkdir()
    convert(tmp_path / "ct2", made, "mini")
    before, after = load_file(MINIATURE / "model.safetensors"), load_file(made / "model.safetensors")
    assert set(before) - {"proj_out.weight"} == set(after)
    for name, tensor in after.items():
        wanted = before[name].half()
        if quantization == "float16" or wanted.dim() == 1:
            assert torch.equal(tensor, wanted), name
        else:
            rows = wanted.float().flatten(1)
            step = rows.abs().amax(1, keepdim=True) / 127
            assert ((tensor.float().flatten(1) - rows).abs() <= 0.51 * step + 1e-3).all(), name
    same_model(made)


def test_a_damaged_ctranslate2_file_is_a_sentence(tmp_path: Path) -> None:
    """Cut off, or of another model: never a traceback of struct."""
    (tmp_path / "model.bin").write_bytes(b"\x06\0\0\0\x0c\0WhisperSpec\0\x03\0\0\0\x05\0\0\0")
    with pytest.raises(BadCheckpoint, match="is damaged"):
        read(tmp_path / "model.bin")
    (tmp_path / "model.bin").write_bytes(b"\x06\0\0\0\x10\0TransformerSpec\0\x03\0\0\0")
    with pytest.raises(BadCheckpoint, match="only WhisperSpec in format 6 can be read"):
        read(tmp_path / "model.bin")


def test_what_is_not_spoken() -> None:
    """As transformers lists it, and the two tasks besides, which openai/whisper suppresses as well."""
    for multilingual, theirs in ((True, NON_SPEECH_TOKENS_MULTI), (False, NON_SPEECH_TOKENS)):
        tokenizer = whisper_tokenizer(99, multilingual=multilingual)
        tasks = {tokenizer.token_to_id(token) for token in ("<|translate|>", "<|transcribe|>")}
        assert set(non_speech_ids(tokenizer)) == set(theirs) | tasks


def test_alignment_heads_lie_in_their_models() -> None:
    """(layer, head) of the decoders of openai/whisper."""
    sizes = {
        "tiny": (4, 6),
        "base": (6, 8),
        "small": (12, 12),
        "medium": (24, 16),
        "large-v2": (32, 20),
        "large-v3": (32, 20),
        "large-v3-turbo": (4, 20),
    }
    for name, heads in json.loads((ASSETS / "alignment_heads.json").read_text()).items():
        layers, width = sizes[name.removesuffix(".en")]
        assert heads
        assert all(0 <= layer < layers and 0 <= head < width for layer, head in heads)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ([[1, 0], [0, 1]], ((0, 1), (1, 0))),
        ([[7, 0], [25, 4]], ((1, 0), (1, 1))),  # the teacher's layers
        ([[1, 0], [1, 2]], ((1, 0), (1, 1))),  # the teacher's heads
        (None, ((1, 0), (1, 1))),
    ],
)
def test_heads_that_a_checkpoint_lacks_are_not_used(
    named: list[list[int]] | None, found: tuple[tuple[int, int], ...]
) -> None:
    """A distilled checkpoint may name heads of its teacher: then all of the upper half align."""
    config = SimpleNamespace(decoder_layers=2, decoder_attention_heads=2, name_or_path="")
    model: Any = SimpleNamespace(config=config, generation_config=SimpleNamespace(alignment_heads=named))
    assert whisper.alignment_heads(model) == found


def test_openvino_engines_come_out_of_openais_file(tmp_path: Path, engine: Path) -> None:
    """A model whose source is a .pt builds on a CPU, and its graphs hold the numbers of the same model in
    Hugging Face's layout.
    """
    file = tmp_path / "tiny.pt"
    torch.save(openai_file(MINIATURE), file)
    blob = file.read_bytes()
    with serving({}, blob) as hub:
        model = replace(
            load_catalog()["tiny"],
            source=f"{hub.url}/tiny.pt",
            sha256=hashlib.sha256(blob).hexdigest(),
            knobs={"compress": "none"},
        )
        build(model, "openvino", Places(tmp_path / "weights", tmp_path / "engines"), note=lambda _: None)
    made = tmp_path / "engines/tiny/openvino/engine"
    for graph in ("encoder.bin", "decoder.bin"):
        assert (made / graph).read_bytes() == (engine / graph).read_bytes()
    facts = json.loads((made / "engine.json").read_text())
    assert len(facts["suppress"]) == 90 - 2


def test_routes() -> None:
    """The shortest way; none where none is."""
    layouts = {"a": Layout(to={"b": (), "c": ()}), "b": Layout(to={"c": ()}), "c": Layout(to={"d": ()})}
    assert route(layouts, "a", "d") == ["a", "c", "d"]
    assert route(layouts, "d", "d") == ["d"]
    assert route(layouts, "d", "a") is None


def test_a_ready_checkpoint_skips_conversion() -> None:
    model = load_catalog()["large-v2-multi-hans-checkpoint"]
    made = work(model, load_recipe(model, "trtllm"), ["python", "trtllm_build", "whisper_converter"])
    assert made.conversions == ()


def test_the_hash_stands_in_openais_addresses() -> None:
    """It is not written twice."""
    model = load_catalog()["large-v3"]
    assert len(model.sha256) == 64
    assert f"/{model.sha256}/" in model.source


def test_space_is_asked_for_first(tmp_path: Path) -> None:
    """The sentence has what is needed, what there is, and what to do."""
    with pytest.raises(
        FetchError,
        match=(
            r"downloading x needs about 1100.0 GB, .* GB free; make room, or point WEIGHTS_DIR and "
            r"ENGINES_DIR elsewhere"
        ),
    ):
        require_space(tmp_path / "not" / "there", 10**12, "downloading x")
    require_space(tmp_path, 1, "downloading x")


def facts_of(folder: Path, source: dict[str, object], **halves: int) -> dict[str, object]:
    """What façades read of an engine from this config.json, whose halves have such limits."""
    for place, limit in {"source": 0, **halves}.items():
        (folder / place).mkdir(parents=True)
        sizes = {"vocab_size": 100, "n_mels": 80, "max_position_embeddings": 1500}
        limits = {"max_input_len" if place.endswith("encoder") else "max_seq_len": limit}
        config = {"build_config": limits, "pretrained_config": sizes} if limit else source
        (folder / place / "config.json").write_text(json.dumps(config))
    write(str(source["model_type"]), folder / "source", folder / "engine")
    found: dict[str, object] = json.loads((folder / "engine/engine.json").read_text())
    return found


def test_facts_of_bart(tmp_path: Path) -> None:
    """The decoder begins with two ids, the second of which is always generated first; learnt positions
    bound both sides.
    """
    ids = {"eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2, "forced_bos_token_id": 0}
    config = {"model_type": "bart", **ids, "max_position_embeddings": 256}
    facts = facts_of(tmp_path, config, **{"engine/encoder": 1024, "engine/decoder": 1024})
    wanted = {"decoder_start": [2, 0], "encoder_positions": 256, "positions": 256, "end_id": 2, "pad_id": 1}
    assert {name: facts[name] for name in wanted} == wanted


def test_facts_replace_files(tmp_path: Path) -> None:
    """The old file may be linked into another bundle: it keeps its words."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/engine.json").write_text("old")
    (tmp_path / "other").hardlink_to(tmp_path / "engine/engine.json")
    config = {"model_type": "gpt2", "eos_token_id": 9, "n_positions": 32}
    facts = facts_of(tmp_path, config, **{"engine/decoder": 64})
    assert (tmp_path / "other").read_text() == "old"
    assert (facts["positions"], facts["pad_id"], facts["encoder_positions"]) == (32, 9, 0)


def test_one_gpu_needs_no_mpirun() -> None:
    """World size 1: tritonserver itself; pictures get their pool."""
    assert launch(["tritonserver", "--model-repository=/r"], ["--http-port=1"], "p", 1) == [
        "tritonserver",
        "--model-repository=/r",
        POOL,
        "--http-port=1",
        "--backend-config=python,shm-region-prefix-name=p",
    ]
    assert "--cuda-memory-pool-byte-size=0:5" in launch(["tritonserver"], [], "p", 1, 5)


def test_ranks_behind_the_first_have_no_doors() -> None:
    """World size 2: mpirun with two servers; the second loads the engine alone and shares no memory region's
    name with the first.
    """
    command = launch(["tritonserver"], ["--http-port=1"], "p", 2, 5)
    first, second = " ".join(command).split(" : ")
    assert command[0] == "mpirun"
    assert "--bind-to none" in first
    assert "--http-port=1" in first
    assert "--cuda-memory-pool-byte-size=0:5" in first
    assert second.startswith(
        f"-n 1 tritonserver {POOL} --allow-http=false --allow-grpc=false --allow-metrics=false"
    )
    assert "--load-model=tensorrt_llm_stream" in second
    assert second.endswith("shm-region-prefix-name=p_1")


def gguf_file(path: Path, model: LlamaForCausalLM, template: str) -> None:
    """As llama.cpp's convert_hf_to_gguf.py writes LLaMA: rows of queries and keys in pairs, halves as
    neighbours.
    """
    config, writer = model.config, gguf.GGUFWriter(str(path), "llama")
    heads, kept, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kept)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(97 + i) for i in range(26)), "ab"]
    writer.add_token_list([*tokens, *(f"x{i}" for i in range(config.vocab_size - len(tokens)))])
    writer.add_token_types([3, 3, 3] + [1] * (config.vocab_size - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        rows = tensor
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else kept
            rows = rows.view(count, 2, width // 2, -1).transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), rows.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_llama_cpps_file_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, end of text and chat template survive; several files in a folder are refused."""
    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=128,
    )
    made = LlamaForCausalLM(config).eval()
    gguf_file(tmp_path / "m.gguf", made, "{{ messages[0].content }}")
    monkeypatch.setattr(sys, "argv", ["gguf", "--from", str(tmp_path), "--to", str(tmp_path / "hf")])
    layouts_gguf.main()
    found = LlamaForCausalLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.tensor([[3, 9, 4, 20, 5]])
    torch.testing.assert_close(found(ids).logits, made(ids).logits, atol=1e-5, rtol=1e-4)
    assert found.generation_config.eos_token_id == 2
    assert (tmp_path / "hf/chat_template.jinja").read_text() == "{{ messages[0].content }}"
    assert Tokenizer.from_file(str(tmp_path / "hf/tokenizer.json")).encode("ab<|im_end|>").ids[-1] == 2
    (tmp_path / "n.gguf").touch()
    with pytest.raises(SystemExit, match=r"holds 2 \.gguf files \(m\.gguf, n\.gguf\)"):
        layouts_gguf.main()

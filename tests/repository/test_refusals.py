"""One change to the image, the machine or a finished engine at a time: each is refused with a sentence that
names it and the remedy.

The table is docs/tensorrt-llm/refusals.md; what stands there was said by this code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf import text_format

from build.catalog import ROOT, CatalogError, load_catalog
from build.plan import Places, plan_job
from build.recipes import load_recipe
from build.targets import Unfit
from build.targets.trtllm.image import TrtLlmBuilderImage
from build.targets.trtllm.preflight import check
from build.tensors import NEEDED, parse_config
from conch.driver import toolkit_findings
from conch.toolchain import ToolchainError
from serving.text.facade import ENGINE, ENGINE_OUTPUTS
from tests.fakes.nvidia_image import enter, make_image
from tests.fakes.nvidia_tools import parser_of

pytestmark = pytest.mark.long
PAGE = (ROOT / "docs/tensorrt-llm/refusals.md").read_text("utf-8")
CATALOG = load_catalog()
Change = Callable[[TrtLlmBuilderImage], None]


@dataclass(frozen=True)
class Case:
    """What is changed, how, and the message; `model` and `knobs` are what is to be built."""

    what: str
    change: Change
    sentence: str
    model: str = "mini-t5"
    knobs: Mapping[str, str] = field(default_factory=dict)


def template(old: str, new: str) -> Change:
    """Replace a pattern in the engine model's template, which must be there."""

    def change(image: TrtLlmBuilderImage) -> None:
        text = image.template.read_text()
        assert re.search(old, text), old
        image.template.write_text(re.sub(old, new, text, count=1))

    return change


def without(kind: str, name: str) -> Change:
    return template(rf'{kind} \[ {{ name: "{name}" .*\n', "")


def retyped(kind: str, name: str, dtype: str) -> Change:
    return template(rf'({kind} \[ {{ name: "{name}" data_type: )\S+', rf"\g<1>{dtype}")


def added(text: str) -> Change:
    return lambda image: image.template.write_text(image.template.read_text() + text)  # type: ignore[return-value]


def tool(name: str, old: str, new: str) -> Change:
    """The tool's own help says something else."""

    def change(image: TrtLlmBuilderImage) -> None:
        path = image.root / ("usr/local/bin/trtllm-build" if name == "trtllm-build" else f"app/{name}")
        text = re.sub(r"\s+", " ", parser_of(name).format_help())
        assert old in text
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text.replace(old, new)}\nEND\n")
        if name != "trtllm-build":  # scripts are run by the image's Python
            path.write_text(f"print({text.replace(old, new)!r})\n")

    return change


def written(path: str, text: str) -> Change:
    return lambda image: (image.root / path).write_text(text)  # type: ignore[return-value]


def gone(path: str) -> Change:
    return lambda image: (image.root / path).rename(image.root / "gone")  # type: ignore[return-value]


def gpus(*rows: tuple[str, str, int]) -> Change:
    return written("etc/gpus.json", json.dumps(rows))


def both(*changes: Change) -> Change:
    return lambda image: [change(image) for change in changes] and None


TRT = "app/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"
PACKAGE = "site/tensorrt_llm-0.20.0.dist-info"
ENC_DEC = "examples/models/core/enc_dec/convert_checkpoint.py"
FOUR_H100 = [("NVIDIA H100 80GB HBM3", "9.0", 81559)] * 4
CASES = [
    Case("input `input_ids` missing from the template", without("input", "input_ids"), "has no input input_ids, which Conch's façades cannot do without"),
    Case("input `decoder_input_ids` missing", without("input", "decoder_input_ids"), "has no input decoder_input_ids", "mini-whisper"),
    Case("input `embedding_bias` renamed", template("embedding_bias", "logit_bias"), "has no input embedding_bias"),
    Case("input `streaming` missing", without("input", "streaming"), "has no input streaming"),
    Case("output `cum_log_probs` missing", without("output", "cum_log_probs"), "has no output cum_log_probs", "mini-whisper"),
    Case("output `generation_logits` missing", without("output", "generation_logits"), "has no output generation_logits"),
    Case("`end_id` of another dtype", retyped("input", "end_id", "TYPE_INT64"), r"input end_id .* is TYPE_INT64 \[1\].*, Conch is written for TYPE_INT32"),
    Case("`output_ids` of another dtype", retyped("output", "output_ids", "TYPE_INT64"), "output output_ids .* is TYPE_INT64"),
    Case("sound in BF16", retyped("input", "encoder_input_features", "TYPE_BF16"), "encoder_input_features .* is TYPE_BF16 .* written for TYPE_FP16", "mini-whisper"),
    Case("`stop_words_list` of other dimensions", template(r'(name: "stop_words_list" \S+ \S+ dims: \[) 2, -1', r"\1 -1"), r"stop_words_list .* \[-1\], Conch .* \[2, -1\]"),
    Case("`request_output_len` not reshaped", template(r'(name: "request_output_len" .*?)reshape: { shape: \[ \] } ', r"\1"), "request_output_len .* reshaped to"),
    Case("`lora_task_id` made mandatory", template(r'(name: "lora_task_id" .*?)optional: true ', r"\1"), "requires the input lora_task_id"),
    Case("a new mandatory input", added('input [ { name: "cache_salt" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'), "requires the input cache_salt"),
    Case("an unknown placeholder", added('parameters: { key: "b" value: { string_value: "${brand_new}" } }\n'), "a placeholder brand_new that Conch does not know"),
    Case("the placeholder `engine_dir` missing", template(r"\$\{engine_dir\}", "x"), "lacks the placeholder engine_dir"),
    Case("a template that is not valid protobuf", added("input [ {\n"), "is not a valid configuration"),
    Case("no template", gone(TRT), "the engine model's template is not at"),
    Case("`--max_encoder_input_len` renamed", tool("trtllm-build", "--max_encoder_input_len", "--max_encoder_len"), "no option --max_encoder_input_len"),
    Case("`--gather_generation_logits` removed", tool("trtllm-build", "--gather_generation_logits", "--gather"), "no option --gather_generation_logits"),
    Case("`--kv_cache_type` without `disabled`", tool("trtllm-build", "{continuous,paged,disabled}", "{continuous,paged}"), "disabled is not one of its choices"),
    Case("the converter's `--model_type` renamed", tool(ENC_DEC, "--model_type", "--kind"), "it has no option --model_type"),
    Case("the converter gone", gone(f"app/{ENC_DEC}"), "convert_checkpoint.py does not run; it was looked for in"),
    Case("another TensorRT-LLM", written(f"{PACKAGE}/METADATA", "Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 1.1.0\n"), "tensorrt_llm is 1.1.0, Conch is written for 0.20.0"),
    Case("no TensorRT-LLM", gone(PACKAGE), "has no TensorRT-LLM; run this in Conch's trtllm image"),
    Case(
        "driver 565 on a GeForce", both(written("etc/driver", "565.57.01"), gpus(("NVIDIA GeForce RTX 4090", "8.9", 24564))),
        "the driver is 565.57.01, the image .* needs 575.51.03 on NVIDIA GeForce RTX 4090",
    ),
    Case("driver 560 on an H100", written("etc/driver", "560.35.05"), "the driver is 560.35.05, .* on data-centre GPUs one of R535, R550, R570"),
    Case("no GPU", gpus(), "nvidia-smi shows no GPU; start the container with GPUs"),
    Case("a GPU of 512 MiB", gpus(("Tiny", "9.0", 512)), "Tiny has 512 MiB, building needs about"),
    Case("8-bit weights on Blackwell", gpus(("NVIDIA B200", "10.0", 183359)), "cannot build INT8 or INT4 engines", knobs={"WEIGHT_ONLY": "int8"}),
    Case("an 8-bit cache for LLaVA", lambda _: None, "KV_CACHE=int8 cannot be built", "llava-1.5-7b", {"KV_CACHE": "int8"}),
    Case("a T4", gpus(("Tesla T4", "7.5", 15360)), r"Tesla T4 has compute capability 7.5, TensorRT-LLM needs 8.0 \(Ampere\)"),
    Case("two ranks on one GPU", gpus(FOUR_H100[0]), r"TP_SIZE × PP_SIZE is 2, its instance has 1 GPU", knobs={"TP_SIZE": "2"}),
]  # fmt: skip


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrtLlmBuilderImage:
    """What the builder finds."""
    return TrtLlmBuilderImage(enter(make_image(tmp_path / "image"), monkeypatch))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_one_change_is_refused(case: Case, image: TrtLlmBuilderImage, tmp_path: Path) -> None:
    """Unchanged everything fits; changed, nothing is built."""
    case.change(image)
    with pytest.raises((Unfit, ToolchainError, CatalogError)) as refused:
        job = plan_job(
            CATALOG[case.model], "trtllm", Places(tmp_path / "w", tmp_path / "e"), dict(case.knobs)
        )
        check(job.recipe, job.work, image)
    assert re.search(case.sentence, str(refused.value)), refused.value
    assert len(re.findall(r"^  - ", str(refused.value), re.M)) <= 1, "one change, one finding"
    assert f"| {case.what} |" in PAGE


def test_the_toolkit_is_named() -> None:
    """On hosts, before 18 GB are pulled."""
    assert toolkit_findings("575.57.08", "1.14.0") == []
    assert "not installed" in toolkit_findings("575.57.08", "")[0]
    assert "container toolkit 1.16.2 does not switch that on" in toolkit_findings("550.90.07", "1.16.2")[0]
    assert toolkit_findings("550.90.07", "1.17.5") == []


def test_what_is_needed_is_what_is_sent() -> None:
    """The table of tensors that cannot be lost has all that the text façade sends unasked, and all that it
    reads always.
    """
    assert set(ENGINE.values()) <= NEEDED["tensorrt_llm_bls"]
    assert set(ENGINE_OUTPUTS) - {"context_logits"} <= NEEDED["tensorrt_llm_bls"]


def test_what_may_be_lost_is_left_out(image: TrtLlmBuilderImage, tmp_path: Path) -> None:
    """An optional tensor that the image lacks, or has of another dtype, is in none of the models; one that is
    new is in the unary face.
    """
    from build.repository import render

    for change in (
        without("input", "min_tokens"), retyped("input", "presence_penalty", "TYPE_FP64"), without("output", "context_logits"),
        added('input [ { name: "cache_salt" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]\n'),
    ):  # fmt: skip
        change(image)
    render(load_recipe(CATALOG["mini-t5"], "trtllm"), tmp_path / "bundle")
    repository = tmp_path / "bundle" / "repository"
    configs = {path.name: parse_config(path / "config.pbtxt") for path in repository.iterdir()}
    for name in ("ensemble", "ensemble_stream", "tensorrt_llm_bls", "tensorrt_llm_bls_stream"):
        inputs, outputs = (
            {tensor.name for tensor in side} for side in (configs[name].input, configs[name].output)
        )
        assert not inputs & {"min_tokens", "presence_penalty"}, name
        assert "context_logits" not in outputs, name
        assert "frequency_penalty" in inputs
    assert "min_tokens" not in text_format.MessageToString(configs["ensemble"])
    assert {tensor.name for tensor in configs["tensorrt_llm"].input} == {
        tensor.name for tensor in configs["tensorrt_llm_stream"].input
    }
    assert "cache_salt" in {tensor.name for tensor in configs["tensorrt_llm"].input}

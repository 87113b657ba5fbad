"""What a build runs and renders: command lines, folders, configurations."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build.bundle import build
from build.catalog import ROOT, CatalogError, Model
from build.commands import work
from build.conversion import source_of
from build.pictures import Unsupported
from build.plan import BuildError, Places, plan_job, read_manifest
from build.recipes import load_recipe
from build.sources import Weights
from build.targets.trtllm.engine_config import (
    EMPTY,
    FILLED,
    FILLED_IF_GIVEN,
    FILLED_WITH_ENCODER,
    LEFT,
    TemplateError,
    fill,
)
from build.targets.trtllm.engine_rules import cuda_pool_bytes, findings
from build.targets.trtllm.facts import pictures as picture_facts
from build.targets.trtllm.image import SCRIPTS, TrtLlmBuilderImage
from build.targets.trtllm.preflight import check
from build.tensors import parse_config
from conch.bundle import EngineFacts, PictureFacts, PicturePrompt
from ops.guard.supervise.fitting import take
from tests.fakes.nvidia_image import H100, enter, make_image
from tests.fakes.nvidia_template import ENGINE, template
from tests.fakes.nvidia_tools import OPTIONS, parser_of

from .models import CATALOG, DISTINCT, SMALLEST, UNWANTED, WANTED, make

pytestmark = pytest.mark.long


@pytest.mark.parametrize("model_id", ["mini-whisper", "mini-t5", "mini-gpt2"])
def test_the_newer_image_builds(
    tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch, model_id: str
) -> None:
    """The same steps; the engine model has the tensors of its own template, and every placeholder a value."""
    root = enter(make_image(tmp_path / "newer", versions={"tensorrt_llm": "1.2.1"}), monkeypatch)
    (root / "etc/driver").write_text("590.44.01\n")
    assert make(CATALOG[model_id], places, monkeypatch).engine["versions"]["tensorrt_llm"] == "1.2.1"
    made = places.bundle(model_id, "trtllm") / "repository/tensorrt_llm_stream/config.pbtxt"
    assert "return_num_output_tokens" in {tensor.name for tensor in parse_config(made).input}
    assert "${" not in made.read_text()


@pytest.mark.parametrize("model", DISTINCT, ids=lambda model: model.id)
def test_every_kind_of_model_builds(
    model: Model, image: TrtLlmBuilderImage, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command line is taken, the manifest says from what and with what, a second run does nothing, and
    only wanted files came.
    """
    manifest = make(model, places, monkeypatch)
    engine = manifest.engine
    assert engine["toolchain"] == "contract"
    assert engine["versions"]["tensorrt_llm"] == "0.20.0"
    assert engine["gpu"] == {"name": H100[0], "compute_capability": H100[1]}
    assert engine["weights"]
    assert len(manifest.content) == 64
    assert manifest.probe.model
    bundle = places.bundle(model.id, "trtllm")
    rendered(model, bundle, manifest.serving.world_size, 1)
    facts = json.loads((bundle / "engine/engine.json").read_text())
    assert facts["positions"] > 0
    assert 0 <= facts["end_id"] < facts["vocabulary"]
    assert (bundle / "engine/tokenizer.json").is_file()
    assert not [path for path in places.weights.rglob("*") if path.name in UNWANTED]


@pytest.mark.parametrize(
    ("model_id", "told"),
    [("mini-bart", "No option 'normalize_before' in section: 'encoder'"), ("mini-llava", "architectures")],
)
def test_a_checkpoint_that_upstreams_converter_cannot_read(
    image: TrtLlmBuilderImage, places: Places, tmp_path: Path, model_id: str, told: str
) -> None:
    """transformers writes neither key by itself; the miniatures have both."""
    folder = tmp_path / model_id
    shutil.copytree(ROOT / CATALOG[model_id].source.removeprefix("file:"), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config.pop("normalize_before", None)
    config.get("text_config", {}).pop("architectures", None)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(BuildError, match=re.escape(told)):
        build(replace(CATALOG[model_id], source=f"file:{folder}"), "trtllm", places, note=lambda _: None)


def test_a_knob_rebuilds_only_what_depends_on_it(
    image: TrtLlmBuilderImage, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More beams: the decoder. Other weights' precision: everything from the conversion on. Triton's batch:
    no engine at all.
    """
    model, bundle, parts = (
        CATALOG["mini-whisper"],
        places.bundle("mini-whisper", "trtllm"),
        ("encoder", "decoder"),
    )

    def made() -> dict[str, int]:
        """When; a file that was taken over keeps its time."""
        engines = {part: (bundle / "engine" / part / "rank0.engine").stat().st_mtime_ns for part in parts}
        return engines | {"weights": (places.weights / "mini-whisper.checkpoint/.key").stat().st_mtime_ns}

    make(model, places, monkeypatch)
    first = made()
    make(model, places, monkeypatch, MAX_BEAM_WIDTH="2")
    beams = made()
    assert {name for name in first if first[name] != beams[name]} == {"decoder"}
    make(model, places, monkeypatch, MAX_BEAM_WIDTH="2", MAX_BATCH_SIZE="4")
    assert made() == beams
    make(model, places, monkeypatch, MAX_BEAM_WIDTH="2", WEIGHT_ONLY="int8")
    assert {name for name, time in made().items() if time != beams[name]} == {"encoder", "decoder", "weights"}
    assert (
        json.loads((bundle / "engine/decoder/config.json").read_text())["pretrained_config"]["quantization"][
            "quant_algo"
        ]
        == "W8A16"
    )


def test_another_file_of_the_same_source(image: TrtLlmBuilderImage, places: Places) -> None:
    """What the catalog says about the form of the weights is part of what a bundle was made from, and the
    converter's name follows the file.
    """
    model = CATALOG["large-v2-multi-hans"]
    job = plan_job(model, "trtllm", places)
    for change in ({"file": "b.pt"}, {"folder": "v1.1"}, {"layout": "checkpoint"}):
        assert (
            plan_job(replace(model, **change), "trtllm", places).wanted()["engine"] != job.wanted()["engine"]
        )
    folder = places.weights / model.id
    folder.mkdir(parents=True)
    for name in ("a.pt", "b.pt"):
        (folder / name).write_bytes(b"")
        source_of(replace(job, model=replace(model, file=name)), Weights(folder, ""))
        assert (folder / "large-v2.pt").readlink() == Path(name)


def test_a_checkpoint_inside_a_folder_is_found(image: TrtLlmBuilderImage, places: Places) -> None:
    """As sherpa's repository has it; where there are several, the catalog must say which."""
    job = plan_job(CATALOG["large-v2-multi-hans-checkpoint"], "trtllm", places)
    folder = places.weights / "checkpoints"
    for name in ("v2", "v2-turbo"):
        for half in ("encoder", "decoder"):
            (folder / name / half).mkdir(parents=True)
            (folder / name / half / "config.json").write_text("{}")
        if name == "v2":
            assert source_of(job, Weights(folder, "")) == str(folder / "v2")
    with pytest.raises(
        BuildError,
        match=r"holds 2 checkpoints with encoder/ and decoder/ \(v2, v2-turbo\); name one with `folder`",
    ):
        source_of(job, Weights(folder, ""))
    named = replace(job, model=replace(job.model, folder="v2-turbo"))
    assert source_of(named, Weights(folder, "")) == str(folder / "v2-turbo")


def test_bounds_of_the_cache_are_filled_where_they_are_given(image: TrtLlmBuilderImage) -> None:
    """Left to the backend's defaults otherwise; a shared GPU divides the tokens as well."""
    for given, wanted in (
        ({}, (None, None)),
        ({"MAX_TOKENS_IN_KV_CACHE": "24000"}, ("24000", None)),
        ({"MAX_TOKENS_IN_PAGED_KV_CACHE": "24000", "MAX_ATTENTION_WINDOW_SIZE": "4096"}, ("24000", "4096")),
    ):
        config = fill(template(), load_recipe(CATALOG["mini-whisper"], "trtllm", given), Path("/e"))
        found = [
            config.parameters[key].string_value if key in config.parameters else None
            for key in FILLED_IF_GIVEN[:2]
        ]
        assert tuple(found) == wanted
    take(config, 0.5)
    assert config.parameters["max_tokens_in_paged_kv_cache"].string_value == "12000"


@pytest.mark.parametrize("family", sorted(set(SMALLEST) - {"whisper"}))  # which test_knobs.py refuses
def test_engines_for_two_gpus(
    family: str, image: TrtLlmBuilderImage, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CATALOG[SMALLEST[family]]
    manifest = make(model, places, monkeypatch, TP_SIZE="2")
    rendered(model, places.bundle(model.id, "trtllm"), manifest.serving.world_size, 2)


def rendered(model: Model, bundle: Path, ranks: int, tp_size: int) -> None:
    """Check the configurations: the official schema, no placeholder, what the backend reads without a
    fallback, and the engines of all ranks.
    """
    text = (bundle / "repository/tensorrt_llm_stream/config.pbtxt").read_text()
    config = text_format.Parse(text, ModelConfig())
    recipe = load_recipe(model, "trtllm", {"TP_SIZE": str(tp_size)})
    assert "${" not in text
    assert [*findings(recipe, bundle / "engine")] == []
    assert ranks == tp_size
    assert len(list((bundle / "engine/decoder").glob("rank*.engine"))) == tp_size
    face = parse_config(bundle / "repository/tensorrt_llm/config.pbtxt")
    assert {tensor.name for tensor in face.input} == {tensor.name for tensor in config.input}
    assert {tensor.name for tensor in face.output} == {tensor.name for tensor in config.output}
    encodes = recipe.kind == "encoder-decoder"
    for key in ("cross_kv_cache_fraction", "encoder_model_path"):  # a decoder alone must have neither
        assert (key in config.parameters) is encodes
    set_here = {"gpt_model_type": "inflight_fused_batching", "gpt_model_path": f"{bundle}/engine/decoder"}
    set_here |= {"normalize_log_probs": "false", "enable_chunked_context": "false"}
    set_here |= {"enable_kv_cache_reuse": str(recipe.kind == "decoder").lower()}
    assert {key: config.parameters[key].string_value for key in set_here} == set_here
    assert all(key in config.parameters for key in EMPTY)


@pytest.mark.parametrize("family", ["whisper", "t5", "bart", "gpt2", "llava", "blip2"])
def test_both_targets_can_do_the_same(family: str) -> None:
    """But for word times, which need cross-attention, and grammars, which the portable engines have."""
    gpu, cpu = (
        set(load_recipe(CATALOG[SMALLEST[family]], target).capabilities) for target in ("trtllm", "openvino")
    )
    assert gpu == cpu - {"word_timestamps", "guided_decoding"}


def test_engines_give_generation_logits(finished: Places) -> None:
    """A family that promises them has decoders that were built for it: the backend cannot switch them on."""
    for model_id in ("mini-whisper", "mini-gpt2", "llava-1.5-7b"):
        config = json.loads((finished.bundle(model_id, "trtllm") / "engine/decoder/config.json").read_text())
        assert config["build_config"]["gather_generation_logits"] is True
        assert "generation_logits" in load_recipe(CATALOG[model_id], "trtllm").capabilities


def test_every_placeholder_is_accounted_for(image: TrtLlmBuilderImage) -> None:
    """The contract's list: each is filled, kept empty, or left out with a reason, in one table only; others
    end the build.
    """
    tables = [*FILLED, *FILLED_WITH_ENCODER, *FILLED_IF_GIVEN, *EMPTY, *LEFT]
    assert len(tables) == len(set(tables))
    assert set(ENGINE["template_parameters"]) <= set(tables)
    assert all(LEFT.values())
    recipe = load_recipe(CATALOG["mini-whisper"], "trtllm")
    with pytest.raises(TemplateError, match="unknown new_one"):
        fill(
            template() + 'parameters: { key: "n" value: { string_value: "${new_one}" } }', recipe, Path("/e")
        )
    with pytest.raises(TemplateError, match="missing cross_kv_cache_fraction"):
        fill(template().replace("${cross_kv_cache_fraction}", "x"), recipe, Path("/e"))


@pytest.mark.parametrize("model", WANTED, ids=lambda model: model.id)
def test_options_exist_in_the_contract(model: Model, image: TrtLlmBuilderImage) -> None:
    """Every option that a model's steps use stands in the contract's list, and takes the value it
    is given.
    """
    job = plan_job(model, "trtllm", Places(Path("/w"), Path("/e")))
    check(job.recipe, job.work, image)
    for command in job.work.all():
        at = next(i for i, part in enumerate(command.argv) if part.startswith("--"))
        path = image.tools().get(command.argv[at - 1].strip("{}"), "")
        if tool := next((name for name in OPTIONS if path.endswith(name)), None):
            parser_of(tool).parse_args(command.argv[at:])


def test_a_digest_is_recorded_where_it_is_given(
    image: TrtLlmBuilderImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base's name may carry it; NVIDIA's build number stands next to it."""
    monkeypatch.setenv("CONCH_BASE_IMAGE", "nvcr.io/nvidia/tritonserver:tag@sha256:0123")
    monkeypatch.setenv("NVIDIA_BUILD_ID", "42")
    assert image.identity().image == {
        "name": "nvcr.io/nvidia/tritonserver:tag@sha256:0123",
        "digest": "sha256:0123",
        "build": "42",
    }


def test_pictures_get_memory_between_models(finished: Places) -> None:
    """Twice the prompt tables of a full batch: for LLaVA with three pictures in a request 8 × 1728 × 4096 × 2
    bytes, 108 MiB.
    """
    manifest = read_manifest(finished.bundle("llava-1.5-7b", "trtllm"))
    assert manifest
    assert manifest.serving.cuda_pool_bytes == 2 * 8 * 3 * 576 * 4096 * 2
    whisper = load_recipe(CATALOG["mini-whisper"], "trtllm")
    assert cuda_pool_bytes(whisper, Path("/nowhere")) == 0


def test_what_a_facade_knows_of_pictures(finished: Places) -> None:
    """From the checkpoint's files and the engine's own: how they are made ready, what stands for them, and
    how many rows one request may bring.
    """
    engine = finished.bundle("llava-1.5-7b", "trtllm") / "engine"
    facts, prompt = EngineFacts.load(engine), PicturePrompt.load(engine)
    assert (facts.prompt_width, facts.prompt_rows, facts.vocabulary) == (4096, 3 * 576, 32064)
    assert (prompt.rows, prompt.token, prompt.leads) == (576, 32000, False)
    assert PictureFacts.load(engine).size == 336
    repository = finished.bundle("llava-1.5-7b", "trtllm") / "repository"
    assert {path.name for path in repository.iterdir()} >= {"multimodal_encoders", "ensemble_stream"}
    assert parse_config(repository / "ensemble/config.pbtxt").backend == "python"


@pytest.mark.parametrize(("knobs", "reuse"), [({}, "false"), ({"kv_cache_reuse": True}, "true")])
def test_cached_blocks_of_pictures_are_shared_where_it_is_said(
    knobs: dict[str, bool], reuse: str, image: TrtLlmBuilderImage
) -> None:
    model = replace(CATALOG["llava-1.5-7b"], knobs=knobs)
    config = fill(template(), load_recipe(model, "trtllm"), Path("/e"))
    assert config.parameters["enable_kv_cache_reuse"].string_value == reuse


def test_a_summary_that_the_script_leaves_out_is_refused(tmp_path: Path) -> None:
    """No number of rows would make such a LLaVA right, so none is proposed."""
    (tmp_path / "config.json").write_text(json.dumps({"vision_feature_select_strategy": "full"}))
    with pytest.raises(Unsupported, match="strategy is full.*use TARGET=torch or TARGET=openvino"):
        picture_facts("llava", tmp_path, tmp_path)


def test_more_pictures_make_a_larger_table(image: TrtLlmBuilderImage) -> None:
    """The engine divides its table by its batch."""
    for pictures, rows in ((1, 8 * 576), (4, 8 * 4 * 576)):
        model = replace(CATALOG["llava-1.5-7b"], knobs={"max_num_images": pictures})
        (decoder, _) = plan_job(model, "trtllm", Places(Path("/w"), Path("/e"))).work.commands
        assert decoder.argv[decoder.argv.index("--max_multimodal_len") + 1] == str(rows)


def test_a_failing_tool_leaves_nothing(
    image: TrtLlmBuilderImage, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has the tool's last words and the log; no bundle and no half-made layout is left."""
    build_tool = image.root / "usr/local/bin/trtllm-build"
    told = parser_of("trtllm-build").format_help()
    build_tool.write_text(
        f"#!/bin/sh\ncase $1 in --help) cat <<'END'\n{told}\nEND\nexit 0;; esac\necho out of memory\nexit 3\n"
    )
    with pytest.raises(BuildError, match="ended with 3: out of memory"):
        make(CATALOG["mini-whisper"], places, monkeypatch)
    assert not places.bundle("mini-whisper", "trtllm").exists()
    assert sorted(path.name for path in places.weights.iterdir()) == [
        "mini-whisper.checkpoint",
        "mini-whisper.openai",
    ]


def test_commands_name_only_what_is_defined() -> None:
    """A step that names an unknown value is a fault of the family file, reported as such."""
    recipe = load_recipe(CATALOG["mini-whisper"], "trtllm")
    broken = replace(recipe, steps=(("{trtllm_build}", "--max_batch_size", "{nonsense}"),))
    with pytest.raises(CatalogError, match="names {nonsense}, which is neither a parameter nor derived"):
        work(CATALOG["mini-whisper"], broken, [*SCRIPTS, "python", "trtllm_build"])

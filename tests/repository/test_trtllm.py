"""Engines for NVIDIA GPUs, as far as they can be held to data: command lines, configurations, manifests,
refusals.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build import targets
from build.__main__ import main
from build.bundle import build
from build.catalog import CatalogError, Model, load_catalog, load_recipe
from build.jobs import BuildError, Places, plan_job, read_manifest
from build.sources import Weights
from build.staging import source_of
from build.steps import work
from build.targets.trtllm.engine_config import (
    EMPTY,
    FILLED,
    FILLED_IF_GIVEN,
    FILLED_WITH_ENCODER,
    LEFT,
    TemplateError,
    fill,
    with_share,
)
from build.targets.trtllm.engine_rules import Engines, cuda_pool_bytes, findings
from build.targets.trtllm.image import SCRIPTS, Image
from build.targets.trtllm.preflight import Unfit, check, misfits
from build.targets.trtllm.preflight import findings as check_findings
from build.tensors import parse_config
from build.toolchain import ToolchainError
from conch.gpus import Gpu, gpus
from ops.deploy import check_gpus
from ops.guard.bundle import Refused, budgeted, check_bundle
from ops.planning import IN_DOCKER, kv_shares, make_plan
from tests.fakes.nvidia_image import H100, environment, make_image
from tests.fakes.nvidia_template import ENGINE, template
from tests.fakes.nvidia_tools import OPTIONS, parser_of
from tests.fakes.published_weights import published

pytestmark = pytest.mark.long

CATALOG = load_catalog()
UNWANTED = ("README.md", "flax_model.msgpack", "other.pt", "model.fp32-00001-of-00002.safetensors")
SMALLEST = {
    "whisper": "mini-whisper",
    "t5": "mini-t5",
    "bart": "mini-bart",
    "gpt2": "mini-gpt2",
    "blip2": "blip2-opt-2.7b",
    "llava": "llava-1.5-7b",
}
WANTED = [
    model for model in CATALOG.values() if model.family in SMALLEST and not model.source.startswith("random:")
]


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """A stand-in of NVIDIA's image with four GPUs, in sight."""
    root = make_image(tmp_path / "image")
    for name, value in environment(root).items():
        monkeypatch.setenv(name, value)
    return Image(root)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "weights", tmp_path / "engines")


def make(model: Model, places: Places, monkeypatch: pytest.MonkeyPatch, **knobs: str) -> Any:
    """Build from small weights; the manifest."""
    with published(model) as (there, url):
        monkeypatch.setenv("HF_ENDPOINT", url)
        built = build(there, "trtllm", places, note=lambda _: None, environment=knobs)
        again = build(there, "trtllm", places, note=lambda _: None, environment=knobs)
    assert again.unchanged
    assert not built.unchanged
    return read_manifest(places.bundle(model.id, "trtllm"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A bundle of the smallest model of each kind, to look at and to copy."""
    home = tmp_path_factory.mktemp("finished")
    places = Places(home / "weights", home / "engines")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(make_image(home / "image")).items():
            patch.setenv(name, value)
        for model_id in ("mini-whisper", "mini-gpt2", "llava-1.5-7b"):
            make(CATALOG[model_id], places, patch)
        yield places


@pytest.mark.parametrize("model", WANTED, ids=lambda model: model.id)
def test_every_model_builds(
    model: Model, image: Image, places: Places, monkeypatch: pytest.MonkeyPatch
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
    config = parse_config(bundle / "repository/tensorrt_llm_stream/config.pbtxt")
    assert findings(config, Engines.of(load_recipe(model, "trtllm"), bundle / "engine")) == []
    facts = json.loads((bundle / "engine/engine.json").read_text())
    assert facts["positions"] > 0
    assert facts["end_id"] > 0
    assert (bundle / "engine/tokenizer.json").is_file()
    assert not [path for path in places.weights.rglob("*") if path.name in UNWANTED]


def test_a_knob_rebuilds_only_what_depends_on_it(
    image: Image, places: Places, monkeypatch: pytest.MonkeyPatch
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


def test_another_file_of_the_same_source(image: Image, places: Places) -> None:
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
        source_of(replace(job, model=replace(model, file=name)), Weights(folder, "", ""))
        assert (folder / "large-v2.pt").readlink() == Path(name)


def test_a_checkpoint_inside_a_folder_is_found(image: Image, places: Places) -> None:
    """As sherpa's repository has it; where there are several, the catalog must say which."""
    job = plan_job(CATALOG["large-v2-multi-hans-checkpoint"], "trtllm", places)
    folder = places.weights / "checkpoints"
    for name in ("v2", "v2-turbo"):
        for half in ("encoder", "decoder"):
            (folder / name / half).mkdir(parents=True)
            (folder / name / half / "config.json").write_text("{}")
        if name == "v2":
            assert source_of(job, Weights(folder, "", "")) == str(folder / "v2")
    with pytest.raises(
        BuildError,
        match=r"holds 2 checkpoints with encoder/ and decoder/ \(v2, v2-turbo\); name one with `folder`",
    ):
        source_of(job, Weights(folder, "", ""))
    named = replace(job, model=replace(job.model, folder="v2-turbo"))
    assert source_of(named, Weights(folder, "", "")) == str(folder / "v2-turbo")


def test_bounds_of_the_cache_are_filled_where_they_are_given(image: Image) -> None:
    """Left to the backend's defaults otherwise; a shared GPU divides the tokens as well."""
    for given, wanted in (
        ({}, (None, None)),
        ({"MAX_TOKENS_IN_PAGED_KV_CACHE": "24000", "MAX_ATTENTION_WINDOW_SIZE": "4096"}, ("24000", "4096")),
    ):
        config = fill(template(), load_recipe(CATALOG["mini-whisper"], "trtllm", given), Path("/e"))
        found = [
            config.parameters[key].string_value if key in config.parameters else None
            for key in FILLED_IF_GIVEN
        ]
        assert tuple(found) == wanted
    assert with_share(config, 0.5).parameters["max_tokens_in_paged_kv_cache"].string_value == "12000"


@pytest.mark.parametrize("family", sorted(SMALLEST))
@pytest.mark.parametrize("tp_size", [1, 2])
def test_rendered_configurations(
    family: str, tp_size: int, image: Image, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the official schema, without a placeholder, by the backend's rules, for one GPU and for two."""
    model = CATALOG[SMALLEST[family]]
    if tp_size not in tp_sizes(model):
        with pytest.raises(CatalogError, match="TP_SIZE=2 cannot be built"):
            load_recipe(model, "trtllm", {"TP_SIZE": "2"})
        return
    manifest = make(model, places, monkeypatch, TP_SIZE=str(tp_size))
    bundle = places.bundle(model.id, "trtllm")
    text = (bundle / "repository/tensorrt_llm_stream/config.pbtxt").read_text()
    config = text_format.Parse(text, ModelConfig())
    engines = Engines.of(load_recipe(model, "trtllm", {"TP_SIZE": str(tp_size)}), bundle / "engine")
    assert "${" not in text
    assert findings(config, engines) == []
    assert manifest.serving.world_size == tp_size
    assert len(list((bundle / "engine/decoder").glob("rank*.engine"))) == tp_size
    face = parse_config(bundle / "repository/tensorrt_llm/config.pbtxt")
    assert {tensor.name for tensor in face.input} == {tensor.name for tensor in config.input}
    assert {tensor.name for tensor in face.output} == {tensor.name for tensor in config.output}
    assert ("cross_kv_cache_fraction" in config.parameters) is (engines.kind == "encoder-decoder")
    assert all(key in config.parameters for key in EMPTY)


def tp_sizes(model: Model) -> list[int]:
    """What the family takes."""
    taken = []
    for size in (1, 2):
        try:
            load_recipe(model, "trtllm", {"TP_SIZE": str(size)})
        except CatalogError:
            continue
        taken.append(size)
    return taken


Mutation = Callable[[Any, Path], None]


def parameter(key: str, value: str) -> Mutation:
    def change(config: Any, _: Path) -> None:
        config.parameters[key].string_value = value

    return change


def without(key: str) -> Mutation:
    def change(config: Any, _: Path) -> None:
        del config.parameters[key]

    return change


def field(name: str, value: Any) -> Mutation:
    def change(config: Any, _: Path) -> None:
        setattr(config, name, value)

    return change


def limit(engine: str, name: str, value: int) -> Mutation:
    def change(_: Any, folder: Path) -> None:
        path = folder / engine / "config.json"
        data = json.loads(path.read_text())
        data["build_config"][name] = value
        path.write_text(json.dumps(data))

    return change


def drop_rank(_: Any, folder: Path) -> None:
    (folder / "decoder/rank0.engine").unlink()


MUTATIONS: list[tuple[str, Mutation, str]] = [
    *(("mini-whisper", without(key), f"parameter {key} is missing.* add it, empty") for key in EMPTY),
    ("mini-whisper", without("gpt_model_type"), "gpt_model_type is ''; it must be one of"),
    (
        "mini-whisper",
        parameter("gpt_model_type", "${batching_strategy}"),
        "a placeholder is left.*pinned image",
    ),
    (
        "mini-whisper",
        parameter("encoder_model_path", "/nowhere/encodr"),
        "no engine lies, and the backend would go on without; set it to the bundle's engine/encoder",
    ),
    ("mini-whisper", parameter("gpt_model_path", ""), "gpt_model_path is ''.*engine/decoder"),
    (
        "mini-whisper",
        without("cross_kv_cache_fraction"),
        "an encoder-decoder needs one between 0 and 1, such as 0.5",
    ),
    ("mini-whisper", parameter("enable_kv_cache_reuse", "true"), "set it to false"),
    ("mini-whisper", parameter("enable_chunked_context", "no"), "write true or false"),
    ("mini-whisper", parameter("kv_cache_free_gpu_mem_fraction", "1.5"), "give a share between 0 and 1"),
    ("mini-whisper", parameter("max_beam_width", "9"), "raise MAX_BEAM_WIDTH"),
    ("mini-whisper", field("max_batch_size", 65), "lower MAX_BATCH_SIZE or raise ENGINE_BATCH_SIZE"),
    ("mini-whisper", field("name", "tensorrt_llm"), "it must be 'tensorrt_llm_stream'"),
    (
        "mini-whisper",
        limit("decoder", "max_encoder_input_len", 1500),
        "build both with the same max_input_len",
    ),
    ("mini-whisper", drop_rank, "lacks rank0.engine.*same TP_SIZE"),
    (
        "mini-gpt2",
        parameter("cross_kv_cache_fraction", "0.5"),
        "set for a decoder model, which the backend refuses; remove it",
    ),
    ("llava-1.5-7b", parameter("cross_kv_cache_fraction", "0.5"), "which the backend refuses; remove it"),
    (
        "llava-1.5-7b",
        parameter("encoder_model_path", "/somewhere"),
        "is set for a multimodal model; remove it",
    ),
    (
        "llava-1.5-7b",
        limit("decoder", "max_prompt_embedding_table_size", 576),
        "batch × features of a picture, 8 × 576; build the bundle again",
    ),
]


@pytest.mark.parametrize(
    ("model_id", "mutation", "sentence"), MUTATIONS, ids=[f"{row[0]}-{i}" for i, row in enumerate(MUTATIONS)]
)
def test_mutations_are_refused(
    model_id: str, mutation: Mutation, sentence: str, finished: Places, tmp_path: Path
) -> None:
    """Each fault that the backend would hide, or answer in riddles, is one sentence with the remedy."""
    bundle, engine = finished.bundle(model_id, "trtllm"), tmp_path / "engine"
    shutil.copytree(bundle / "engine", engine)
    text = (
        (bundle / "repository/tensorrt_llm_stream/config.pbtxt")
        .read_text()
        .replace(f"{bundle}/engine", str(engine))
    )
    config, engines = (
        text_format.Parse(text, ModelConfig()),
        Engines.of(load_recipe(CATALOG[model_id], "trtllm"), engine),
    )
    assert findings(config, engines) == []
    mutation(config, engine)
    found = findings(config, engines)
    assert any(re.search(sentence, finding) for finding in found), found


@pytest.mark.parametrize("family", ["whisper", "t5", "bart", "gpt2"])
def test_both_targets_can_do_the_same(family: str) -> None:
    """But for word times, which need cross-attention."""
    gpu, cpu = (
        set(load_recipe(CATALOG[SMALLEST[family]], target).capabilities) for target in ("trtllm", "openvino")
    )
    assert gpu == cpu - {"word_timestamps"}


def test_engines_give_generation_logits(finished: Places) -> None:
    """A family that promises them has decoders that were built for it: the backend cannot switch them on."""
    for model_id in ("mini-whisper", "mini-gpt2", "llava-1.5-7b"):
        config = json.loads((finished.bundle(model_id, "trtllm") / "engine/decoder/config.json").read_text())
        assert config["build_config"]["gather_generation_logits"] is True
        assert "generation_logits" in load_recipe(CATALOG[model_id], "trtllm").capabilities


def test_every_placeholder_is_accounted_for(image: Image) -> None:
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


B200 = ("NVIDIA B200", "10.0", 183359)
REFUSED = [
    (
        "mini-whisper",
        {"TP_SIZE": "2"},
        "TP_SIZE=2 cannot be built for TARGET=trtllm; family whisper takes: 1",
    ),
    ("mini-whisper", {"PRECISION": "bfloat16"}, "family whisper takes: float16"),
    ("mini-whisper", {"KV_CACHE": "fp8"}, "family whisper takes: none"),
    (
        "llava-1.5-7b",
        {"KV_CACHE": "int8"},
        "KV_CACHE=int8 cannot be built for TARGET=trtllm; family llava takes: none",
    ),
    ("gpt2-medium", {"QUANTIZATION": "int4_awq"}, "family gpt2 takes: none, smoothquant, fp8"),
    ("mini-whisper", {"WEIGHT_ONLY": "int2"}, "family whisper takes: none, int8, int4"),
    (
        "mini-whisper",
        {"MAX_BEAM_WIDTH": "many"},
        "MAX_BEAM_WIDTH=many is not of type int; write for example MAX_BEAM_WIDTH=1",
    ),
    ("blip2-opt-2.7b", {"PP_SIZE": "2"}, "family blip2 takes: 1"),
    ("random-base", {}, "weights in the layout 'random' cannot be built for TARGET=trtllm"),
    (
        "mini-t5",
        {"PRECISION": "float32", "WEIGHT_ONLY": "int8"},
        "WEIGHT_ONLY=int8 needs PRECISION=float16 or bfloat16",
    ),
    (
        "mini-t5",
        {"ENGINE_BATCH_SIZE": "4"},
        "ENGINE_BATCH_SIZE=4 is less than MAX_BATCH_SIZE=8; raise the one or lower the other",
    ),
    ("llava-1.5-7b", {"TP_SIZE": "4", "PP_SIZE": "2"}, "TP_SIZE × PP_SIZE is 8, its instance has 4 GPU"),
]


@pytest.mark.parametrize(
    ("model_id", "knobs", "sentence"), REFUSED, ids=[f"{row[0]}-{'-'.join(row[1])}" for row in REFUSED]
)
def test_the_impossible_is_refused_first(
    model_id: str, knobs: dict[str, str], sentence: str, image: Image, places: Places
) -> None:
    """Before anything is downloaded or written."""
    with pytest.raises(CatalogError, match=re.escape(sentence)):
        build(CATALOG[model_id], "trtllm", places, note=lambda _: None, environment=knobs)
    assert not places.weights.exists()
    assert not places.engines.exists()


def test_more_beams_than_the_engine_has(image: Image, places: Places) -> None:
    """What is served is bounded by what is built; the catalog alone can say it."""
    model = replace(CATALOG["mini-t5"], knobs={"served_beam_width": 4})
    with pytest.raises(CatalogError, match="served_beam_width=4 is more than MAX_BEAM_WIDTH=1"):
        build(model, "trtllm", places, note=lambda _: None)
    assert not places.weights.exists()


@pytest.mark.parametrize(
    ("gpu", "model_id", "knobs", "sentence"),
    [
        (
            ("Tesla T4", "7.5", 15360),
            "flan-t5-base",
            {},
            "PRECISION=bfloat16 needs compute capability 8.0, Tesla T4 has compute capability 7.5; use "
            "float16 or float32",
        ),
        (
            ("Tesla T4", "7.5", 15360),
            "gpt2-medium",
            {"QUANTIZATION": "fp8"},
            "QUANTIZATION=fp8 needs compute capability 8.9, Tesla T4 has compute capability 7.5",
        ),
        (
            B200,
            "t5-small",
            {"WEIGHT_ONLY": "int8"},
            "compute capability 10.0, for which TensorRT-LLM builds no engines with INT8 or INT4; unset "
            "WEIGHT_ONLY",
        ),
        (
            B200,
            "gpt2-medium",
            {"KV_CACHE": "int8"},
            "builds no engines with INT8 or INT4; unset WEIGHT_ONLY, KV_CACHE, QUANTIZATION",
        ),
        (B200, "gpt2-medium", {"QUANTIZATION": "smoothquant"}, "builds no engines with INT8 or INT4"),
        (
            H100,
            "gpt2-medium",
            {"QUANTIZATION": "fp8", "WEIGHT_ONLY": "int8"},
            "QUANTIZATION=fp8 brings its own weights and cache; unset WEIGHT_ONLY and KV_CACHE",
        ),
        (H100, "llava-1.5-7b", {"TP_SIZE": "2"}, "TP_SIZE × PP_SIZE is 2, its instance has 1 GPU"),
    ],
)
def test_what_this_gpu_cannot_do(
    gpu: tuple[str, str, int],
    model_id: str,
    knobs: dict[str, str],
    sentence: str,
    image: Image,
    places: Places,
) -> None:
    """The card decides as well."""
    (image.root / "etc/gpus.json").write_text(json.dumps([gpu]))
    with pytest.raises(CatalogError, match=re.escape(sentence)):
        build(CATALOG[model_id], "trtllm", places, note=lambda _: None, environment=knobs)


def test_a_knob_of_another_target_is_refused() -> None:
    """Silence would be a wrong engine."""
    with pytest.raises(
        CatalogError, match="TP_SIZE=2 has no effect on family whisper with TARGET=openvino; unset TP_SIZE"
    ):
        load_recipe(CATALOG["mini-whisper"], "openvino", {"TP_SIZE": "2"})
    load_recipe(CATALOG["mini-whisper"], "openvino", {"TP_SIZE": "1", "WEIGHT_ONLY": "none", "PRECISION": ""})


@pytest.mark.parametrize("model", WANTED, ids=lambda model: model.id)
def test_options_exist_in_the_contract(model: Model, image: Image) -> None:
    """Every option that a model's steps use stands in the contract's list, and takes the value it
    is given.
    """
    job = plan_job(model, "trtllm", Places(Path("/w"), Path("/e")))
    check(job.recipe, job.work, image)
    for command in job.work.all():
        tool = next(
            (
                name
                for name in OPTIONS
                if command.argv[1].startswith("{")
                and str(image.tools()[command.argv[1][1:-1]]).endswith(name)
            ),
            None,
        )
        if command.argv[0] == "{trtllm_build}":
            parser_of("trtllm-build").parse_args(command.argv[1:])
        elif tool:
            parser_of(tool).parse_args(command.argv[2:])


def job_of(model_id: str) -> Any:
    return plan_job(CATALOG[model_id], "trtllm", Places(Path("/w"), Path("/e")))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "version",
            "tensorrt_llm is 1.1.0, Conch is written for 0.20.0; use the image of docker/server.Dockerfile",
        ),
        (
            "script",
            r"convert_checkpoint.py does not run; it was looked for in: .*models/core/whisper/.*, "
            r".*app/examples/whisper/",
        ),
        ("option", "trtllm-build: it has no option --max_encoder_input_len; use the image"),
        ("choice", r"--moe_plugin disable is not one of its choices auto; use the image"),
        ("template", "is not at .*config.pbtxt; use the image"),
        ("placeholder", "has a placeholder brand_new that Conch does not know"),
        ("gpus", "nvidia-smi shows no GPU; start the container with GPUs"),
        (
            "memory",
            "Tiny has 100 MiB, building wants about 1024; use a larger GPU, WEIGHT_ONLY=int8, or TP_SIZE=2",
        ),
    ],
)
def test_check_names_what_does_not_fit(fault: str, sentence: str, image: Image) -> None:
    """One sentence for each finding, and nothing is built."""
    job, build_tool = job_of("mini-whisper"), image.root / "usr/local/bin/trtllm-build"
    if fault == "version":
        (image.root / "site/tensorrt_llm-0.20.0.dist-info/METADATA").write_text(
            "Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 1.1.0\n"
        )
    elif fault == "script":
        shutil.rmtree(image.root / "app/examples/models/core/whisper")
    elif fault in ("option", "choice"):
        old, new = (
            ("--max_encoder_input_len", "--other")
            if fault == "option"
            else ("--moe_plugin {auto,float16,float32,bfloat16,int32,disable}", "--moe_plugin {auto}")
        )
        text = parser_of("trtllm-build").format_help()
        usage = re.sub(r"\s+", " ", text).replace(old, new)
        build_tool.write_text(f"#!/bin/sh\ncat <<'END'\n{usage}\nEND\n")
    elif fault == "template":
        image.template.unlink()
    elif fault == "placeholder":
        image.template.write_text(
            image.template.read_text() + 'parameters: { key: "b" value: { string_value: "${brand_new}" } }\n'
        )
    else:
        (image.root / "etc/gpus.json").write_text(
            json.dumps([("Tiny", "9.0", 100)] if fault == "memory" else [])
        )
    with pytest.raises(Unfit) as unfit:
        check(job.recipe, job.work, image)
    assert re.search(sentence, str(unfit.value)), unfit.value


def test_a_card_is_measured_by_numbers_and_their_width(image: Image) -> None:
    """Seven thousand million numbers in 16 bits want 17 GB, in 4 bits a quarter of that."""
    (image.root / "etc/gpus.json").write_text(json.dumps([("Small", "9.0", 12000)]))
    for knobs, fits in (({}, False), ({"WEIGHT_ONLY": "int8"}, True), ({"WEIGHT_ONLY": "int4"}, True)):
        job = plan_job(CATALOG["llava-1.5-7b"], "trtllm", Places(Path("/w"), Path("/e")), knobs)
        assert (
            "Small has 12000 MiB" in " ".join(check_findings(job.recipe, job.work, image, 7 * 10**9))
        ) is not fits


def engines(places: Places, models: str, command: str = "engines") -> int:
    """The builder's command line."""
    return main(
        [
            command,
            "--target",
            "trtllm",
            "--model-id",
            models,
            "--weights",
            str(places.weights),
            "--engines",
            str(places.engines),
        ]
    )


def test_each_model_is_built_on_its_instances_gpus(
    image: Image, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instance i serves model i mod n: the second model's card is that of triton-1, whatever comes first in
    nvidia-smi.
    """
    (image.root / "etc/gpus.json").write_text(
        json.dumps([("NVIDIA A10", "8.6", 23028), ("NVIDIA A10", "8.6", 23028), H100])
    )
    for name, value in {"INSTANCES": "2", "TRITON_0_GPUS": "2", "TRITON_1_GPUS": "1"}.items():
        monkeypatch.setenv(name, value)
    assert engines(places, "mini-t5,mini-gpt2") == 0
    for model_id, card, devices in (("mini-t5", H100[0], "2"), ("mini-gpt2", "NVIDIA A10", "1")):
        manifest = read_manifest(places.bundle(model_id, "trtllm"))
        assert manifest
        assert manifest.engine["gpu"]["name"] == card
        log = places.bundle(model_id, "trtllm").with_name("trtllm.log").read_text()
        assert f"CUDA_VISIBLE_DEVICES={devices}\n" in log


def test_the_memory_that_counts_is_the_instances(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small card that comes first is none of its business."""
    (image.root / "etc/gpus.json").write_text(json.dumps([("Small", "9.0", 12000), H100]))
    job = plan_job(CATALOG["llava-1.5-7b"], "trtllm", Places(Path("/w"), Path("/e")), {}, "1")
    assert check_findings(job.recipe, job.work, image, 7 * 10**9, "1") == []
    assert "Small has 12000 MiB" in " ".join(check_findings(job.recipe, job.work, image, 7 * 10**9, "0"))


def test_unknown_memory_is_no_finding(image: Image) -> None:
    """GPUs that share the machine's memory say [N/A]."""
    (image.root / "etc/gpus.json").write_text(json.dumps([("NVIDIA GB10", "12.1", "[N/A]")]))
    assert gpus() == [Gpu(0, "NVIDIA GB10", "12.1", None)]
    job = plan_job(CATALOG["llava-1.5-7b"], "trtllm", Places(Path("/w"), Path("/e")), {})
    assert check_findings(job.recipe, job.work, image, 7 * 10**9) == []


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"INSTANCES": "2"},
            "mini-t5: one engine runs on one kind of card, but triton-0 has NVIDIA A10, triton-1 has NVIDIA "
            "H100 80GB HBM3",
        ),
        (
            {"TRITON_0_GPUS": "0,1"},
            "triton-0 has NVIDIA A10, triton-0 has NVIDIA H100 80GB HBM3; give its instances equal GPUs "
            "with TRITON_i_GPUS",
        ),
        (
            {"TRITON_0_GPUS": "7"},
            "triton-0 has GPU 7, which nvidia-smi does not show; set TRITON_0_GPUS to one that is there",
        ),
    ],
)
def test_unlike_cards_are_refused_first(
    variables: dict[str, str],
    sentence: str,
    image: Image,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One engine cannot serve both; said before anything is fetched."""
    (image.root / "etc/gpus.json").write_text(json.dumps([("NVIDIA A10", "8.6", 23028), H100]))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert engines(places, "mini-t5") == 1
    assert sentence in capsys.readouterr().err
    assert not places.weights.exists()


def test_check_is_a_command(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each model that fits; a sentence and status 1 for what does not."""
    assert main(["check", "--target", "trtllm", "--model-id", "mini-whisper,mini-t5"]) == 0
    assert "mini-t5: its 4 steps fit the toolchain contract" in capsys.readouterr().out
    image.template.unlink()
    assert main(["check", "--target", "trtllm", "--model-id", "mini-t5"]) == 1
    assert "this image cannot build family t5" in capsys.readouterr().err


def test_the_older_layout_of_examples_is_found(image: Image) -> None:
    """TensorRT-LLM moved its examples in 0.20.0."""
    examples = image.root / "app/examples"
    (examples / "whisper").mkdir()
    shutil.move(
        examples / "models/core/whisper/convert_checkpoint.py", examples / "whisper/convert_checkpoint.py"
    )
    assert image.tools()["whisper_converter"].endswith("app/examples/whisper/convert_checkpoint.py")


def test_no_tensorrt_llm_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: Places
) -> None:
    """On a machine without the image nothing is fetched."""
    monkeypatch.setenv("CONCH_IMAGE_ROOT", str(tmp_path / "nothing"))
    with pytest.raises(ToolchainError, match="run this in Conch's trtllm image, or use TARGET=openvino"):
        build(CATALOG["mini-whisper"], "trtllm", places, note=lambda _: None)
    assert not places.weights.exists()


def test_values_are_compared_as_argparse_reads_them() -> None:
    """Options by whole names, values with = as well."""
    text = (
        "usage: x [--alpha {a,b}] [--beta BETA] [--gamma [{c,d}]] [--kind {Kind.ONE,Kind.TWO}] [--name "
        "{base.en,base}]"
    )
    assert (
        misfits(["--alpha", "a", "--beta", "9", "--gamma", "d", "--kind", "two", "--name", "base.en"], text)
        == []
    )
    assert misfits(["--alpha=c", "--bet", "1", "--gamma", "e"], text) == [
        "--alpha c is not one of its choices a, b",
        "it has no option --bet",
        "--gamma e is not one of its choices c, d",
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("etc/gpus.json", json.dumps([("NVIDIA A10", "8.6", 23028)])),
            f"made with GPU name {H100[0]}, this server has NVIDIA A10",
        ),
        (
            ("etc/conch-toolchain", "tensorrt_llm"),
            "made by the toolchain contract, this server has tensorrt_llm",
        ),
        (
            (
                "site/tensorrt_llm-0.20.0.dist-info/METADATA",
                "Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 0.19.0\n",
            ),
            "made with tensorrt_llm 0.20.0, this server has 0.19.0",
        ),
    ],
    ids=["gpu", "toolchain", "version"],
)
def test_a_foreign_bundle_is_refused(
    change: tuple[str, str], sentence: str, image: Image, finished: Places
) -> None:
    """Another GPU, another toolchain, another release: the sentence ends with the command that rebuilds the
    bundle, where it is printed.
    """
    bundle = finished.bundle("mini-whisper", "trtllm")
    assert check_bundle(bundle, "mini-whisper", "0,1").serving.world_size == 1
    (image.root / change[0]).write_text(change[1])
    with pytest.raises(Refused, match=re.escape(sentence) + ".*rebuild it with: docker compose up -d"):
        check_bundle(bundle, "mini-whisper", "0")


def test_the_remedy_is_the_targets(tmp_path: Path) -> None:
    """In process mode a CPU's engines are made by make; in a container there is neither make nor a place to
    write to.
    """
    with pytest.raises(
        Refused, match=r"make engines MODEL_ID=mini-t5 TARGET=openvino \(in Docker: docker compose up -d\)"
    ):
        check_bundle(tmp_path / "openvino", "mini-t5")
    with pytest.raises(Refused, match="a finished bundle; rebuild it with: docker compose up -d"):
        check_bundle(tmp_path / "trtllm", "mini-t5")


def test_too_few_gpus_for_a_bundle(image: Image, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle for a pair does not start on one."""
    make(CATALOG["llava-1.5-7b"], places, monkeypatch, TP_SIZE="2")
    bundle = places.bundle("llava-1.5-7b", "trtllm")
    check_bundle(bundle, "llava-1.5-7b", "2,3")
    with pytest.raises(
        Refused,
        match=(
            "spans 2 GPUs, this instance has 2; give it more with TRITON_i_GPUS, or set TP_SIZE=1 and "
            "rebuild it with: docker compose up -d"
        ),
    ):
        check_bundle(bundle, "llava-1.5-7b", "2")


def test_ranks_are_counted_before_a_build() -> None:
    """The builder in Docker says which instance lacks a GPU, and what to write."""
    models = [CATALOG["t5-small"], CATALOG["large-v3"]]
    check_gpus(models[:1], "trtllm", 2, {"TP_SIZE": "2", "TRITON_0_GPUS": "0,1", "TRITON_1_GPUS": "2,3"})
    check_gpus(models, "openvino", 2, {})
    with pytest.raises(
        CatalogError, match=r"triton-1 has GPU 1, TP_SIZE × PP_SIZE is 2; set for example TRITON_1_GPUS=2,3"
    ):
        check_gpus(models[:1], "trtllm", 2, {"TP_SIZE": "2", "TRITON_0_GPUS": "0,1"})


def test_a_digest_is_recorded_where_it_is_given(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base's name may carry it; NVIDIA's build number stands beside it."""
    monkeypatch.setenv("CONCH_BASE_IMAGE", "nvcr.io/nvidia/tritonserver:tag@sha256:0123")
    monkeypatch.setenv("NVIDIA_BUILD_ID", "42")
    assert image.identity().image == {
        "name": "nvcr.io/nvidia/tritonserver:tag@sha256:0123",
        "digest": "sha256:0123",
        "build": "42",
    }


def test_pictures_get_memory_between_models(finished: Places) -> None:
    """Twice the prompt tables of a full batch: for LLaVA 8 × 576 × 4096 × 2 bytes, 36 MiB."""
    manifest = read_manifest(finished.bundle("llava-1.5-7b", "trtllm"))
    assert manifest
    assert manifest.serving.cuda_pool_bytes == 2 * 8 * 576 * 4096 * 2
    whisper = Engines(Path("/nowhere"), "encoder-decoder", 1, 0)
    assert cuda_pool_bytes(whisper) == 0


def test_a_shared_gpu_is_budgeted(finished: Places, tmp_path: Path) -> None:
    """Instances on one GPU take equal parts of the cache's budget, in a view of the bundle's repository;
    alone they take all of it.
    """
    assert targets.find("trtllm").gpus(3, {"TRITON_0_GPUS": "0,1"}) == ["0,1", "1", "2"]
    assert targets.find("openvino").gpus(2, {"TRITON_0_GPUS": "0"}) == ["", ""]
    assert kv_shares(["0,1", "1", "2"]) == [0.5, 0.5, 1.0]
    assert kv_shares(["", ""]) == [1.0, 1.0]
    plan = make_plan([CATALOG["mini-whisper"]], 2, [Path("/x")], [0, 1], IN_DOCKER, ["0", "0"])
    assert [(instance.gpus, instance.kv_share) for instance in plan.instances] == [("0", 0.5), ("0", 0.5)]
    repository = finished.bundle("mini-whisper", "trtllm") / "repository"
    view = budgeted(repository, tmp_path / "view", 0.5)
    config = parse_config(view / "tensorrt_llm_stream/config.pbtxt")
    assert config.parameters["kv_cache_free_gpu_mem_fraction"].string_value == "0.25"
    assert (view / "whisper_bls/1/model.py").resolve() == (repository / "whisper_bls/1/model.py").resolve()
    assert with_share(config, 0.5).parameters["kv_cache_free_gpu_mem_fraction"].string_value == "0.125"


def test_a_failing_tool_leaves_nothing(image: Image, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """A step that names an unknown value is a fault of the family file, said as such."""
    recipe = load_recipe(CATALOG["mini-whisper"], "trtllm")
    broken = replace(recipe, steps=(("{trtllm_build}", "--max_batch_size", "{nonsense}"),))
    with pytest.raises(CatalogError, match="names {nonsense}, which is neither a parameter nor derived"):
        work(CATALOG["mini-whisper"], broken, [*SCRIPTS, "python", "trtllm_build"])

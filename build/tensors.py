"""Compare the engine's tensors, as the image's template declares them, with those that Conch's models were
written for.

The image decides: its template gives the unary model its tensors, and `ensemble` and `tensorrt_llm_bls` lose
what the engine lacks. A tensor that a façade sends with every request, or reads from every answer, is
required: without it nothing is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.names import ENGINE_UNARY, PICTURES, SPEECH, TEXT

from .catalog import ROOT
from .recipes import Recipe

MODELS = ROOT / "model_repos" / "models"
ALWAYS = {
    "input_lengths",
    "request_output_len",
    "end_id",
    "pad_id",
    "stop",
    "streaming",
    "beam_width",
    "temperature",
    "runtime_top_k",
    "runtime_top_p",
    "seed",
}
READ = {"output_ids", "sequence_length", "cum_log_probs", "output_log_probs", "generation_logits"}
LOGITS = {"embedding_bias", "return_log_probs", "return_generation_logits"}
# What each façade cannot do without; a repository test compares it with what they send.
NEEDED = {
    SPEECH: ALWAYS
    | LOGITS
    | READ
    | {"encoder_input_features", "encoder_output_lengths", "decoder_input_ids"},
    TEXT: ALWAYS
    | LOGITS
    | READ
    | {
        "input_ids",
        "decoder_input_ids",
        "decoder_input_lengths",
        "stop_words_list",
        "bad_words_list",
        "exclude_input_in_output",
        "num_return_sequences",
    },
    PICTURES: {"prompt_embedding_table", "prompt_vocab_size", "prompt_table_extra_ids"},
    "": {
        "input_ids",
        "input_lengths",
        "request_output_len",
        "end_id",
        "stop",
        "streaming",
        "output_ids",
        "sequence_length",
    },  # of the two faces alone
}


def parse_config(path: Path) -> model_config_pb2.ModelConfig:
    """Parse a config.pbtxt as protobuf; a misspelt field is an error."""
    return text_format.Parse(path.read_text("utf-8"), model_config_pb2.ModelConfig())


def needed(recipe: Recipe) -> set[str]:
    """Return the tensors that the façades of a family require."""
    folders = {model.folder for model in recipe.models}
    return set().union(*(names for folder, names in NEEDED.items() if not folder or folder in folders))


def misfits(engine: model_config_pb2.ModelConfig, recipe: Recipe) -> list[str]:
    """Return what is wrong with the engine model's tensors, one sentence each with tensor and remedy; empty
    if the façades can use it.
    """
    face = parse_config(MODELS / ENGINE_UNARY / "config.pbtxt")
    wanted, end = needed(recipe), "use the image of docker/server.Dockerfile"
    found = []
    for kind, ours, theirs in (("input", face.input, engine.input), ("output", face.output, engine.output)):
        there = {tensor.name: tensor for tensor in theirs}
        for tensor in (tensor for tensor in ours if tensor.name in wanted):
            if tensor.name not in there:
                found.append(
                    f"the image's tensorrt_llm has no {kind} {tensor.name}, which Conch's façades cannot do "
                    f"without; {end}"
                )
            elif differs(tensor, there[tensor.name]):
                found.append(
                    f"{kind} {tensor.name} of the image's tensorrt_llm is {shown(there[tensor.name])}, Conch "
                    f"is written for {shown(tensor)}; {end}"
                )
    known = {tensor.name: tensor for tensor in face.input}
    unsent = (
        tensor.name
        for tensor in engine.input
        if not tensor.optional and (tensor.name not in known or known[tensor.name].optional)
    )
    return found + [
        f"the image's tensorrt_llm requires the input {name}, which Conch does not always send; {end}"
        for name in unsent
    ]


def differs(ours: model_config_pb2.ModelInput, theirs: model_config_pb2.ModelInput) -> bool:
    """Tell whether dtype, dimensions or delivered shape differ."""
    reshaped = (tensor.HasField("reshape") and list(tensor.reshape.shape) for tensor in (ours, theirs))
    return (ours.data_type, list(ours.dims)) != (theirs.data_type, list(theirs.dims)) or next(
        reshaped
    ) != next(reshaped)


def shown(tensor: model_config_pb2.ModelInput) -> str:
    """Format as a configuration does: TYPE_INT32 [1]."""
    reshape = f", reshaped to {list(tensor.reshape.shape)}" if tensor.HasField("reshape") else ""
    return f"{model_config_pb2.DataType.Name(tensor.data_type)} {list(tensor.dims)}{reshape}"


def narrow(repository: Path, engine: model_config_pb2.ModelConfig) -> None:
    """Reduce the models that stand in front of the engine to its tensors: the unary model gets exactly those,
    and what `ensemble` and the façades would pass to an engine that lacks it, or has it in another form, is
    removed from them.
    """
    face = parse_config(repository / ENGINE_UNARY / "config.pbtxt")
    lost = {"input": _lost(face.input, engine.input), "output": _lost(face.output, engine.output)}
    _replace(face.input, engine.input)
    _replace(face.output, engine.output)
    _write(repository / ENGINE_UNARY, face)
    # Triton's own ensemble says what becomes of each tensor; façades of Python do the same.
    ensemble = parse_config(MODELS / "ensemble" / "config.pbtxt")
    gone = _unmap(ensemble, lost)
    for folder in (path for path in repository.iterdir() if path.name.startswith(("ensemble", TEXT))):
        config = parse_config(folder / "config.pbtxt")
        if config.platform == "ensemble":
            del config.ensemble_scheduling.step[:]
            config.ensemble_scheduling.step.extend(ensemble.ensemble_scheduling.step)
        _replace(config.input, [tensor for tensor in config.input if tensor.name not in gone])
        _replace(config.output, [tensor for tensor in config.output if tensor.name not in gone])
        _write(folder, config)


def _lost(
    ours: Iterable[model_config_pb2.ModelInput], theirs: Iterable[model_config_pb2.ModelInput]
) -> set[str]:
    there = {tensor.name: tensor for tensor in theirs}
    return {tensor.name for tensor in ours if tensor.name not in there or differs(tensor, there[tensor.name])}


def _unmap(ensemble: model_config_pb2.ModelConfig, lost: dict[str, set[str]]) -> set[str]:
    """Remove the engine's missing tensors from the ensemble's maps, and tensors of the ensemble that nothing
    uses any more.
    """
    steps = ensemble.ensemble_scheduling.step
    before = _mapped(steps)
    step = next(step for step in steps if step.model_name == ENGINE_UNARY)
    for kind in ("input", "output"):
        mapping = getattr(step, f"{kind}_map")
        for name in [name for name in mapping if name in lost[kind]]:
            del mapping[name]
    return before - _mapped(steps)


def _mapped(steps: Sequence[model_config_pb2.ModelEnsembling.Step]) -> set[str]:
    return {name for step in steps for part in (step.input_map, step.output_map) for name in part.values()}


def _replace(tensors: list[model_config_pb2.ModelInput], kept: Iterable[model_config_pb2.ModelInput]) -> None:
    copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
    del tensors[:]
    tensors.extend(copies)


def _write(folder: Path, config: model_config_pb2.ModelConfig) -> None:
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")

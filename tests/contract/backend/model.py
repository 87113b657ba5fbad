"""A stand-in for TensorRT-LLM's Triton backend: the same parameters, the same unsaid rules, the portable engine's answers.

Rules: tensorrtllm_backend v0.19.0, inflight_batcher_llm/src/model_instance_state.cc and model_state.cc. Streaming sends new tokens only, and
whole beams when there are several (TensorRT-LLM, llmRequest.cpp, `createResult`). CONTRACT_GRAPHS names the OpenVINO engine that thinks.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RANK, WORLD = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")), int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
TRUE, FALSE = {"True", "true", "TRUE", "1"}, {"False", "false", "FALSE", "0"}


class Parameters:
    """The model's parameters, read as the backend reads them."""

    def __init__(self, config):
        self.values = {name: row["string_value"] for name, row in config.get("parameters", {}).items()}

    def must(self, name):
        if name not in self.values:
            raise pb_utils.TritonModelException(f"cannot find parameter {name}")
        return self.values[name]

    def flag(self, name, default):
        value = self.values.get(name, "")
        return True if value in TRUE else False if value in FALSE else default

    def folder(self, name):
        """A path that does not exist counts as none."""
        value = self.values.get(name, "")
        return Path(value) if value and Path(value).exists() else None


def load(config):
    """Apply the rules.

    Raises:
        TritonModelException: as the backend would refuse.
    """
    given = Parameters(config)
    if given.values.get("gpt_model_type") not in ("inflight_fused_batching", "inflight_batching", "V1"):
        raise pb_utils.TritonModelException("Invalid gpt_model_type")
    for name in ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"):
        given.must(name)
    decoder, encoder = given.folder("gpt_model_path"), given.folder("encoder_model_path")
    if decoder is None:
        raise pb_utils.TritonModelException("neither gpt_model_path nor encoder_model_path exists")
    cross = given.values.get("cross_kv_cache_fraction")
    if encoder is not None and not cross:
        raise pb_utils.TritonModelException("crossKvCacheFraction must be set for encoder-decoder model")
    if encoder is None and cross:
        raise pb_utils.TritonModelException("Do not set crossKvCacheFraction for decoder-only model")
    engine = json.loads((decoder / "config.json").read_text())
    if engine["pretrained_config"]["mapping"]["world_size"] != WORLD:
        raise pb_utils.TritonModelException(f"MPI size {WORLD} differs from the engine's world size")
    if config["max_batch_size"] > engine["build_config"]["max_batch_size"]:
        raise pb_utils.TritonModelException("max_batch_size exceeds the engine's")
    return given, engine["build_config"]


class Reply:
    """A scheduler's listener with TensorRT-LLM's manners."""

    def __init__(self, request):
        self.sender, self.answers = request.get_response_sender(), None
        self.names = set(request.requested_output_names())

    def cancelled(self):
        return self.sender.is_cancelled()

    def update(self, beams):
        arrays = self.answers.update(beams)
        if arrays is not None:
            self.sender.send(self._response(arrays, beams))

    def finish(self, beams):
        self.sender.send(self._response(self.answers.finish(beams), beams), FINAL)

    def fail(self, error):
        self.sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), FINAL)

    def _response(self, arrays, beams):
        """New ids, but log probabilities of all ids so far: `createResult` slices the one and not the other. No ids are a width of 0."""
        longest = max(int(arrays["sequence_length"].max()), 0)
        arrays |= {name: arrays[name][:, :, :longest] for name in ("output_ids", "output_log_probs") if name in arrays}
        if "output_log_probs" in arrays and self.answers.growing:
            new = int(arrays["sequence_length"].item())
            so_far = self.answers.sent if new and self.answers.sent else len(beams[0].ids)
            arrays["output_log_probs"] = np.array([[beams[0].log_probs[:so_far]]], np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items() if not self.names or name in self.names])


class TritonPythonModel:
    """The engine model."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.parameters, self.limits = load(config)
        print(f"contract backend: rank {RANK} of {WORLD}, CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}", flush=True)
        self.scheduler = None
        if RANK:
            return
        sys.path.insert(0, str(Path(self.parameters.values["gpt_model_path"]).parent.parent))  # the bundle, which carries serving/
        from serving.engine_io import Answers, parse, stops
        from serving.graphs import Graphs
        from serving.scheduler import Scheduler

        self.answers, self.parse, self.stops = Answers, parse, stops
        self.graphs = Graphs(Path(os.environ["CONTRACT_GRAPHS"]))
        self.scheduler = Scheduler(self.graphs, max_rows=min(16, self.limits["max_batch_size"]))
        self.scheduler.start()

    def execute(self, requests):
        for request in requests:
            reply = Reply(request)
            try:
                self._take(request, reply)
            except Exception as error:  # noqa: BLE001  # the boundary
                reply.fail(error)

    def _take(self, request, reply):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if self.stops(inputs, request.request_id()):
            self.scheduler.drop(request.request_id())
            reply.sender.send(pb_utils.InferenceResponse([]), FINAL)
            return
        for name in ("output_ids", "sequence_length"):
            if reply.names and name not in reply.names:
                raise ValueError(f"{name} tensor must be present in list of output tensors")
        exclude = self.parameters.flag("exclude_input_in_output", False)
        job, wanted = self.parse(inputs, reply, self.graphs.facts, request.request_id(), exclude_prompt=exclude)
        if wanted.logits and not self.limits["gather_generation_logits"]:
            raise ValueError("gather_generation_logits must be enabled in the engine to return generation logits")
        reply.answers = self.answers(wanted, job)
        beams = job.sampling.beam_width
        if beams > int(self.parameters.values.get("max_beam_width") or 1):
            raise ValueError(f"beam width {beams} exceeds max_beam_width {self.parameters.values.get('max_beam_width')}")
        if job.streaming and not self.decoupled:
            raise ValueError("Streaming is only supported if model is deployed using decoupled mode.")
        if len(job.prompt) > self.limits["max_input_len"]:
            raise ValueError(f"Prompt length ({len(job.prompt)}) exceeds maximum input length ({self.limits['max_input_len']}).")
        self.scheduler.submit(job)

    def finalize(self):
        if self.scheduler:
            self.scheduler.stop()

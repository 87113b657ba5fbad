"""A stand-in for TensorRT-LLM's Triton backend, as strict as the C++: the same parameters, checks, words and
shapes.

Written from inflight_batcher_llm/src/model_instance_state.cc and model_state.cc of tensorrtllm_backend r25.05
(the last branch that held them; those of 0.20.0 were moved into TensorRT-LLM unchanged as far as could be
read). It shares no code with Conch's own engine, so that one misreading cannot pass on both sides.
CONTRACT_GRAPHS names the OpenVINO graphs of the miniature that does the arithmetic; {model} in it is the
model's id.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))

from executor import Executor, Limits
from network import Network
from wire import requests_of

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RANK, WORLD = (
    int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
    int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")),
)
TRUE, FALSE = {"True", "true", "TRUE", "1"}, {"False", "false", "FALSE", "0"}
MUST = ("output_ids", "sequence_length")
NUMPY = {
    "TYPE_BOOL": np.bool_,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_STRING": np.object_,
}


class Parameters:
    """ModelState::GetParameter."""

    def __init__(self, config):
        self.values = {name: row["string_value"] for name, row in config.get("parameters", {}).items()}

    def must(self, name):
        if name not in self.values:
            raise pb_utils.TritonModelException(
                f"unexpected error when creating modelInstanceState: Cannot find parameter with name: {name}"
            )
        return self.values[name]

    def flag(self, name, default):
        value = self.values.get(name, "")
        return True if value in TRUE else False if value in FALSE else default

    def number(self, name, default):
        try:
            return type(default)(self.values.get(name, ""))
        except ValueError:
            return default

    def folder(self, name):
        """A path that does not exist counts as none."""
        value = self.values.get(name, "")
        return Path(value) if value and Path(value).exists() else None


def engine_of(config):
    """Parameters, and the build configurations of decoder and encoder (or None).

    Raises:
        TritonModelException: as the backend would refuse to load.
    """
    given = Parameters(config)
    if given.values.get("gpt_model_type") not in ("inflight_fused_batching", "inflight_batching", "V1", "v1"):
        raise pb_utils.TritonModelException(
            "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."
        )
    for name in ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"):
        given.must(name)
    decoder, encoder = given.folder("gpt_model_path"), given.folder("encoder_model_path")
    if decoder is None:
        raise pb_utils.TritonModelException("Both encoder and decoder model paths are empty")
    cross = given.values.get("cross_kv_cache_fraction")
    if encoder is not None and not cross:
        raise pb_utils.TritonModelException("crossKvCacheFraction must be set for encoder-decoder model")
    if encoder is None and cross:
        raise pb_utils.TritonModelException("Do not set crossKvCacheFraction for decoder-only model")
    found = [
        json.loads((folder / "config.json").read_text()) if folder else None for folder in (decoder, encoder)
    ]
    if found[0]["pretrained_config"]["mapping"]["world_size"] != WORLD:
        raise pb_utils.TritonModelException(f"MPI size {WORLD} differs from the engine's world size")
    if config["max_batch_size"] > found[0]["build_config"]["max_batch_size"]:
        raise pb_utils.TritonModelException("max_batch_size exceeds the engine's")
    return given, *(
        one and {**one["build_config"], "hidden_size": one["pretrained_config"]["hidden_size"]}
        for one in found
    )


def limits_of(config, given, decoder, encoder, vocabulary):
    queue = config.get("dynamic_batching", {}).get("default_queue_policy", {}).get("max_queue_size", 0)
    return Limits(
        decoder["max_batch_size"],
        decoder["max_input_len"],
        decoder["max_seq_len"],
        given.number("max_beam_width", 1),
        int(queue),
        vocabulary,
        encoder and encoder["max_input_len"],
        bool(decoder["gather_generation_logits"]),
        bool(decoder.get("gather_context_logits")),
        given.flag("normalize_log_probs", True),
        (decoder.get("max_prompt_embedding_table_size") or 0) // decoder["max_batch_size"],
        decoder["hidden_size"],
        given.flag("enable_kv_cache_reuse", True),
    )


class Reply:
    """RequestData: where the responses to one Triton request go; as many final ones as it has rows, the last
    of which ends it.
    """

    def __init__(self, request, wanted):
        self.sender, self.names, self.pending, self.wanted = (
            request.get_response_sender(),
            set(request.requested_output_names()),
            0,
            wanted,
        )
        self.ids, self.id = [], request.request_id()

    def respond(self, row, beams, cumulative, logits, final, error):
        """WaitForResponse, fillTritonResponse."""
        self.pending -= int(final)
        flags = FINAL if final and not self.pending else 0
        if error is None and (missing := [name for name in MUST if name not in self.names]):
            error = (
                f"Error encountered while populating response: {missing[0]} tensor must be present in list "
                "of output tensors"
            )
        if error is not None:
            self.sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error)), flags)
            return
        arrays = self._arrays(row, beams, cumulative, logits)
        self.sender.send(
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, array) for name, array in arrays.items() if name in self.names]
            ),
            flags,
        )

    def _arrays(self, row, beams, cumulative, logits):
        """New ids, but log probabilities of all ids so far: createResult slices the one and not the other.
        Rows are filled up with -1.
        """
        request = self.wanted[row]
        arrays = {
            "output_ids": filled([ids for ids, _ in beams], np.int32),
            "sequence_length": np.array([[len(ids) for ids, _ in beams]], np.int32),
        }
        if request.log_probs:
            arrays["output_log_probs"] = filled([probs for _, probs in beams], np.float32)
            arrays["cum_log_probs"] = np.array([cumulative], np.float32)
        if logits is not None:
            arrays["generation_logits"] = np.asarray(logits, np.float32)[None]
        if len(self.wanted) > 1:
            arrays["batch_index"] = np.array([[row]], np.int32)
        return arrays


def filled(rows, dtype):
    longest = max(len(row) for row in rows)
    return np.array([[*row, *[-1] * (longest - len(row))] for row in rows], dtype).reshape(
        1, len(rows), longest
    )


class TritonPythonModel:
    """The engine model."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.types = {row["name"]: NUMPY[row["data_type"]] for row in config["input"]}
        self.parameters, decoder, encoder = engine_of(config)
        print(
            f"contract backend: rank {RANK} of {WORLD}, "
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}",
            flush=True,
        )
        self.executor, self.open, self.lock = None, {}, threading.Lock()
        if RANK:
            return
        bundle = Path(self.parameters.values["gpt_model_path"]).parents[1]
        network = Network(os.environ["CONTRACT_GRAPHS"].format(model=bundle.parent.name))
        self.encoder = encoder is not None
        self.executor = Executor(
            network, limits_of(config, self.parameters, decoder, encoder, network.vocabulary)
        )
        threading.Thread(target=self._watch_cancelled, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            try:
                self._enqueue(request)
            except Exception as error:  # noqa: BLE001  # as the C++ does
                request.get_response_sender().send(
                    pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), FINAL
                )

    def _enqueue(self, request):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        for name, array in inputs.items():
            assert array.dtype == self.types[name], f"{name} is {array.dtype}"
        if "stop" in inputs and inputs["stop"].ravel()[0]:
            self._stop(request)
            return
        exclude = self.parameters.flag("exclude_input_in_output", False)
        wanted = requests_of(inputs, encoder=self.encoder, decoupled=self.decoupled, exclude_input=exclude)
        reply = Reply(request, wanted)
        reply.pending = len(wanted)
        with self.lock:
            reply.ids = self.executor.enqueue(wanted, reply.respond)
            self.open[id(reply)] = reply
            print(
                f"contract backend: {sum(one.pending > 0 for one in self.open.values())} requests inside",
                flush=True,
            )

    def _stop(self, request):
        """handleStopRequest: an empty response, whether or not a request of that id runs."""
        if not request.request_id():
            raise RuntimeError("Trying to stop a request but request ID is not provided")
        with self.lock:
            last = next(
                (reply for reply in reversed(self.open.values()) if reply.id == request.request_id()), None
            )
        if last:
            self.executor.cancel(last.ids)
        request.get_response_sender().send(pb_utils.InferenceResponse([]), FINAL)

    def _watch_cancelled(self):
        """WaitForCancel, every cancellation_check_period_ms."""
        while True:
            time.sleep(0.1)
            with self.lock:
                self.open = {key: reply for key, reply in self.open.items() if reply.pending > 0}
                gone = [reply for reply in self.open.values() if reply.sender.is_cancelled()]
            for reply in gone:
                self.executor.cancel(reply.ids)

    def finalize(self):
        if self.executor:
            self.executor.stop()

"""Texts to vectors: the tokenizer, and a call of `minilm_encoder`."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie beside the repository; the stub ignores PYTHONPATH

from conch.names import EMBEDDING_ENGINE
from serving.text.embedding import OUTPUTS, EmbeddingModel
from serving.triton.calls import BlsClient
from serving.triton.requests import RequestPool


class TritonPythonModel:
    """Answers from threads, so that texts are read while the encoder computes."""

    def initialize(self, args):
        self.model, self.calls = EmbeddingModel(BUNDLE), BlsClient(pb_utils)
        self.requests = RequestPool(self._answer, self.calls.refuse)

    def execute(self, requests):
        self.requests.submit(requests)

    def _answer(self, request, sender):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        arrays = self.model.embed(inputs, lambda rows: self._encoded(request.request_id(), rows))
        self.calls.answer(sender, arrays, set(request.requested_output_names()) or set(OUTPUTS))

    def _encoded(self, name, rows):
        (answer,) = self.calls.call(
            EMBEDDING_ENGINE, self.calls.tensors(rows), ["embedding"], name, decoupled=False
        )
        return pb_utils.get_output_tensor_by_name(answer, "embedding").as_numpy()

    def finalize(self):
        self.requests.close()
        self.calls.close()

"""Encode pictures as rows of a prompt-embedding table with the plan that upstream's
build_multimodal_engine.py makes.

Held to tensorrt_llm/tools/multimodal_builder.py (`export_onnx`, `build_trt_engine`: tensors `input` and
`encoder_output`, one profile, FP16) and to how upstream's multimodal_encoders uses the plan. It uses plain
TensorRT instead of TensorRT-LLM's Session, which makes the same calls: importing TensorRT-LLM starts MPI,
which is known to break upstream's stub (triton-inference-server/tensorrtllm_backend#712).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorrt
import torch
from numpy.typing import NDArray

from conch.bundle import EngineFacts, PicturePrompt

PLAN, PIXELS, ROWS = "visual/model.engine", "input", "encoder_output"


class TensorRtEncoder:
    """See serving.engine.encoding.EncoderRuntime. On the first GPU of the server, as upstream's."""

    def __init__(self, folder: Path) -> None:
        """Load the plan from `folder`, the bundle's engine folder.

        Raises:
            RuntimeError: the plan cannot be read here, or is not what the façades were built for.
        """
        self.facts, remedy = EngineFacts.load(folder), "build the bundle again with the image that serves it"
        self.runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
        self.engine = self.runtime.deserialize_cuda_engine((folder / PLAN).read_bytes())
        if self.engine is None:
            raise RuntimeError(f"{folder / PLAN} cannot be read by TensorRT {tensorrt.__version__}; {remedy}")
        found = {
            name: (self.engine.get_tensor_dtype(name), tuple(self.engine.get_tensor_shape(name))[1:])
            for name in (self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors))
        }
        wanted = (PicturePrompt.load(folder).rows, self.facts.prompt_width)
        if found.keys() != {PIXELS, ROWS} or found[ROWS] != (tensorrt.float16, wanted):
            raise RuntimeError(
                f"{folder / PLAN} has the tensors {found}; it must make {ROWS} {list(wanted)} in FP16 of "
                f"{PIXELS}; {remedy}"
            )
        if found[PIXELS][0] != tensorrt.float16:
            raise RuntimeError(f"{folder / PLAN} reads {found[PIXELS][0]}; it must read FP16; {remedy}")
        _, _, largest = self.engine.get_tensor_profile_shape(PIXELS, 0)
        self.most = int(largest[0])
        self.context, self.stream = self.engine.create_execution_context(), torch.cuda.Stream()

    def encode(self, **inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows [pictures, rows, width] for `pixels` [pictures, 3, size, size], in batches of the
        plan's size.

        Raises:
            RuntimeError: TensorRT refused; its log says why.
        """
        pixels = np.ascontiguousarray(inputs["pixels"], np.float16)
        parts = [self._run(pixels[at : at + self.most]) for at in range(0, len(pixels), self.most)]
        return np.concatenate(parts).astype(np.float32)

    def _run(self, pixels: NDArray[np.float16]) -> NDArray[np.float16]:
        with torch.cuda.stream(self.stream):
            given = torch.from_numpy(pixels).to("cuda")
            if not self.context.set_input_shape(PIXELS, tuple(given.shape)):
                raise RuntimeError(f"TensorRT does not take pictures of shape {list(given.shape)}")
            shape = tuple(self.context.get_tensor_shape(ROWS))
            made = torch.empty(shape, dtype=torch.float16, device="cuda")
            self.context.set_tensor_address(PIXELS, given.data_ptr())
            self.context.set_tensor_address(ROWS, made.data_ptr())
            if not self.context.execute_async_v3(self.stream.cuda_stream):
                raise RuntimeError("TensorRT could not run the picture encoder; its log says why")
            self.stream.synchronize()
            found: NDArray[np.float16] = made.cpu().numpy()
        return found

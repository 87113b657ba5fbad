"""What trainings of miniatures share: the loop, the optimizer and the lines of training.log."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from torch.nn import Parameter

SAVE_EVERY = 500  # steps


@dataclass(frozen=True)
class Course:
    """One run: `steps` at most, `minutes` at most (the learning rate decays by whichever is nearer to its
    end), `rows` of a step, the highest learning rate, and the share of the run that warms up.
    """

    seed: int
    steps: int
    rows: int
    peak: float
    minutes: float
    device: str
    warm: float = 0.04
    log_every: int = 100

    def begin(self) -> torch.Generator:
        """Seed this process; what batches are drawn with."""
        torch.manual_seed(self.seed)
        torch.set_float32_matmul_precision("high")
        return torch.Generator().manual_seed(self.seed)

    def rate(self, progress: float) -> float:
        """The share of the highest learning rate: warm-up, and cosine decay to nearly nothing."""
        return min(progress / self.warm, 1.0) * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))) + 1e-3

    def optimizer(self, parameters: Any, decay: float) -> torch.optim.Optimizer:
        """AdamW for parameters or groups of them."""
        fused = self.device == "cuda"
        return torch.optim.AdamW(parameters, self.peak, (0.9, 0.98), weight_decay=decay, fused=fused)

    def autocast(self) -> AbstractContextManager[None]:
        """bfloat16 on a GPU."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

    def run(
        self,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[float], Tensor],
        save: Callable[[], None],
        log: TextIO,
    ) -> None:
        """Step by step: `loss` of the next batch, told how far the run is (0..1); `save` keeps the weights so
        far, so that a run that is cut off leaves something.
        """
        started, recent = time.monotonic(), []
        for step in range(1, self.steps + 1):
            progress = max(step / self.steps, (time.monotonic() - started) / 60 / self.minutes)
            recent.append(self._update(optimizer, loss, progress))
            if step % self.log_every == 0 or progress >= 1:
                mean, seconds = torch.stack(recent).mean().item(), round(time.monotonic() - started)
                say(log, json.dumps({"step": step, "loss": round(mean, 4), "seconds": seconds}))
                recent = []
            if progress >= 1:
                break
            if step % SAVE_EVERY == 0:
                save()

    def _update(
        self, optimizer: torch.optim.Optimizer, loss: Callable[[float], Tensor], progress: float
    ) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = self.peak * self.rate(progress)
        value = loss(progress)
        value.backward()
        learning = [one for group in optimizer.param_groups for one in group["params"]]
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()


def decaying(parameters: Iterable[Parameter], decay: float) -> list[dict[str, Any]]:
    """Groups for an optimizer: matrices decay, vectors and numbers do not."""
    kept = list(parameters)
    return [
        {"params": [one for one in kept if (one.ndim > 1) == decays], "weight_decay": share}
        for decays, share in ((True, decay), (False, 0.0))
    ]


def save_half(model: Any, folder: Path) -> None:
    """Write config and fp16 safetensors of a model of transformers'; the model itself stays as it is."""
    copy.deepcopy(model).half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors 0.8 leaves it to its owner; servers read it


def say(log: TextIO, line: str) -> None:
    """For the log and its readers."""
    print(line, file=log, flush=True)
    print(line, flush=True)

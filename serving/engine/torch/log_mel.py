"""Compute Whisper's log-mel spectrogram on the device: serving/audio/log_mel.py for many windows."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.audio.log_mel import HOP, WINDOW, mel_filters

from .device import Device


class LogMel:
    """Map samples float32 [windows, 160 * frames] to features [windows, frames, mels]."""

    def __init__(self, device: Device, mels: int) -> None:
        self.dtype = device.dtype
        self.filters = torch.from_numpy(mel_filters(mels)).to(device.kind)
        self.hann = torch.hann_window(WINDOW, device=device.kind)

    def __call__(self, samples: Tensor) -> Tensor:
        spectrum = torch.stft(samples, WINDOW, HOP, window=self.hann, return_complex=True)[..., :-1]
        power = torch.view_as_real(spectrum).square().sum(-1)
        logs = (power.transpose(1, 2) @ self.filters).clamp(min=1e-10).log10()
        loudest = logs.amax((1, 2), keepdim=True)
        return ((torch.maximum(logs, loudest - 8.0) + 4.0) / 4.0).to(self.dtype)

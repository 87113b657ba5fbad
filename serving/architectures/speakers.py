"""Networks for speaker diarization: local speakers in ten seconds of audio, and a vector for a voice.

`Segmentation` is pyannote's PyanNet (https://github.com/pyannote/pyannote-audio, models/segmentation/
PyanNet.py; Plaquet and Bredin 2023 for its classes), `VoiceNetwork` is 3D-Speaker's CAM++ (Wang et al. 2023,
https://arxiv.org/abs/2303.00332) after Kaldi's filter bank. Modules have the names of CAM++'s checkpoint.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .stored import Stored

RATE, MELS = 16_000, 80
FRAME, STEP, BLOCK = 400, 160, 80  # samples of a frame of the filter bank, between two, and that divide both
BINS = 257  # of a power spectrum of 512 points
NEARBY = 100  # frames of 20 ms whose mean is the context of each
SMALLEST = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Shape(Stored):
    """Sizes.

    Attributes:
        classes: sets of local speakers that the segmentation distinguishes
        dimensions: of a voice's vector
        growth: of CAM++'s dense layers, as are `blocks` and `dilations`
    """

    classes: int = 7
    filters: int = 80
    filter_size: int = 251
    channels: int = 60
    hidden: int = 128
    layers: int = 4
    dimensions: int = 192
    first: int = 32
    width: int = 128
    growth: int = 32
    blocks: tuple[int, ...] = (12, 24, 16)
    dilations: tuple[int, ...] = (1, 2, 2)


class Segmentation(nn.Module):
    """Map samples [rows, n] at 16 kHz to log probabilities [rows, frames, classes]: nobody, each of three
    local speakers alone, each pair of them (see speech/speakers).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.level = nn.InstanceNorm1d(1, affine=True)
        self.convolutions = nn.ModuleList(
            [
                nn.Conv1d(1, shape.filters, shape.filter_size, stride=10, bias=False),
                nn.Conv1d(shape.filters, shape.channels, 5),
                nn.Conv1d(shape.channels, shape.channels, 5),
            ]
        )
        widths = (shape.filters, shape.channels, shape.channels)
        self.norms = nn.ModuleList(nn.InstanceNorm1d(width, affine=True) for width in widths)
        self.lstm = nn.LSTM(shape.channels, shape.hidden, shape.layers, batch_first=True, bidirectional=True)
        self.linear = nn.ModuleList(
            [nn.Linear(2 * shape.hidden, shape.hidden), nn.Linear(shape.hidden, shape.hidden)]
        )
        self.classifier = nn.Linear(shape.hidden, shape.classes)

    def forward(self, wav: Tensor) -> Tensor:
        hidden = self.level(wav[:, None])
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            hidden = convolution(hidden)
            hidden = hidden.abs() if i == 0 else hidden
            hidden = functional.leaky_relu(norm(functional.max_pool1d(hidden, 3)))
        hidden, _ = self.lstm(hidden.transpose(1, 2))
        for linear in self.linear:
            hidden = functional.leaky_relu(linear(hidden))
        return functional.log_softmax(self.classifier(hidden), dim=-1)


def spectrum_of_frames() -> Tensor:
    """Make the matrix [FRAME, 2 * BINS] from a frame's samples to the real and imaginary parts of its
    spectrum: mean removed, pre-emphasis of 0.97, Povey window, as in Kaldi (feature-window.cc).
    """
    frames = torch.eye(FRAME, dtype=torch.float64)
    frames = frames - frames.mean(1, keepdim=True)
    frames = frames - 0.97 * torch.cat([frames[:, :1], frames[:, :-1]], 1)
    window = torch.hann_window(FRAME, periodic=False, dtype=torch.float64).pow(0.85)
    spectrum = torch.fft.rfft(frames * window, 2 * (BINS - 1))
    return torch.cat([spectrum.real, spectrum.imag], 1).float()


def mel_filters() -> Tensor:
    """Make triangular filters [BINS, MELS] from 20 Hz to half the rate, equally spaced on Kaldi's mel scale
    (mel-computations.cc).
    """

    def mel(hertz: Tensor) -> Tensor:
        return 1127.0 * torch.log1p(hertz / 700.0)

    lowest, highest = (mel(torch.tensor(hertz, dtype=torch.float64)) for hertz in (20.0, RATE / 2))
    edges = lowest + (highest - lowest) / (MELS + 1) * torch.arange(MELS + 2, dtype=torch.float64)
    bins = mel(torch.arange(BINS - 1, dtype=torch.float64) * RATE / (2 * (BINS - 1)))[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = torch.minimum(rising, falling).clamp(min=0.0)
    return functional.pad(filters, (0, 0, 0, 1)).float()  # the highest bin has no part in any


class FilterBank(nn.Module):
    """Map samples [rows, n] to log energies [rows, frames, MELS] with their mean over the frames removed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spectrum", spectrum_of_frames(), persistent=False)
        self.register_buffer("mels", mel_filters(), persistent=False)

    def forward(self, wav: Tensor) -> Tensor:
        blocks = wav[:, : wav.shape[1] // BLOCK * BLOCK].reshape(wav.shape[0], -1, BLOCK)
        count = (blocks.shape[1] - FRAME // BLOCK) // 2 + 1
        parts = [blocks[:, i : i + 2 * count - 1 : 2] for i in range(FRAME // BLOCK)]
        squares = (torch.cat(parts, -1) @ self.spectrum).square()
        energies = (squares[..., :BINS] + squares[..., BINS:]) @ self.mels
        logs = energies.clamp(min=SMALLEST).log()
        return logs - logs.mean(1, keepdim=True)


def _in_turn(**modules: nn.Module) -> nn.Sequential:
    """Return a module that runs the given ones, which have these names, one after another."""
    return nn.Sequential(OrderedDict(modules))


def _norm_relu(channels: int) -> nn.Sequential:
    return _in_turn(batchnorm=nn.BatchNorm1d(channels), relu=nn.ReLU())


class Residual(nn.Module):
    """Two convolutions over frequency and time with a residual connection."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, (stride, 1), 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut.append(nn.Conv2d(channels, channels, 1, (stride, 1), bias=False))
            self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [rows, channels, frequencies, frames] to the same shape."""
        inner = functional.relu(self.bn1(self.conv1(hidden)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.shortcut(hidden))


class FrequencyHead(nn.Module):
    """Map energies [rows, MELS, frames] to [rows, 10 * channels, frames]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = nn.Sequential(Residual(channels, 2), Residual(channels, 1))
        self.layer2 = nn.Sequential(Residual(channels, 2), Residual(channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, (2, 1), 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, energies: Tensor) -> Tensor:
        hidden = functional.relu(self.bn1(self.conv1(energies[:, None])))
        hidden = self.layer2(self.layer1(hidden))
        return functional.relu(self.bn2(self.conv2(hidden))).flatten(1, 2)


def convolved(channels: int, width: int) -> nn.Sequential:
    """Make a convolution, followed by norm and ReLU: it maps [rows, channels, frames] to [rows, width, half
    as many frames].
    """
    convolution = nn.Conv1d(channels, width, 5, stride=2, padding=2, bias=False)
    return _in_turn(linear=convolution, nonlinear=_norm_relu(width))


class Masked(nn.Module):
    """A convolution whose outputs are weighted by a mask computed from the context: the mean of all frames,
    and of each segment of NEARBY frames.
    """

    def __init__(self, width: int, growth: int, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(width, growth, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(width, width // 2, 1)
        self.linear2 = nn.Conv1d(width // 2, growth, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [rows, width, frames] to [rows, growth, frames]."""
        there = hidden[:1, :1] * 0 + 1
        nearby = (_sums(hidden) / _sums(there)).repeat_interleave(NEARBY, dim=-1)[..., : hidden.shape[-1]]
        context = hidden.mean(-1, keepdim=True) + nearby
        mask = torch.sigmoid(self.linear2(functional.relu(self.linear1(context))))
        return self.linear_local(hidden) * mask


def _sums(hidden: Tensor) -> Tensor:
    """Return the sums of every NEARBY frames of [rows, channels, frames], divided by NEARBY; the last group
    may be shorter.
    """
    padded = functional.pad(hidden, (0, NEARBY - 1))  # not `ceil_mode`, whose graph refuses fewer frames
    return functional.avg_pool1d(padded, NEARBY, NEARBY)


class DenseLayer(nn.Module):
    """The channels that one layer adds to those before it."""

    def __init__(self, channels: int, shape: Shape, dilation: int) -> None:
        super().__init__()
        inner = 4 * shape.growth
        self.nonlinear1 = _norm_relu(channels)
        self.linear1 = nn.Conv1d(channels, inner, 1, bias=False)
        self.nonlinear2 = _norm_relu(inner)
        self.cam_layer = Masked(inner, shape.growth, dilation)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [rows, channels, frames] to [rows, channels + growth, frames]."""
        more = self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(hidden))))
        return torch.cat([hidden, more], 1)


def halved(channels: int) -> nn.Sequential:
    """Make a projection to half as many channels: it maps [rows, channels, frames] to [rows, channels // 2,
    frames].
    """
    projection = nn.Conv1d(channels, channels // 2, 1, bias=False)
    return _in_turn(nonlinear=_norm_relu(channels), linear=projection)


class Dense(nn.Module):
    """Map [rows, channels] to [rows, dimensions], normalized."""

    def __init__(self, channels: int, dimensions: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(channels, dimensions, 1, bias=False)
        self.nonlinear = _in_turn(batchnorm=nn.BatchNorm1d(dimensions, affine=False))

    def forward(self, statistics: Tensor) -> Tensor:
        return self.nonlinear(self.linear(statistics[:, :, None]).squeeze(-1))


class VoiceNetwork(nn.Module):
    """Map samples [rows, n] at 16 kHz of one speaker to float32 [rows, dimensions]; n is at least 800 (50
    ms).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.bank, self.head = FilterBank(), FrequencyHead(shape.first)
        width, self.xvector = shape.width, nn.Sequential()
        self.xvector.add_module("tdnn", convolved(shape.first * MELS // 8, width))
        for i, (layers, dilation) in enumerate(zip(shape.blocks, shape.dilations, strict=True), 1):
            dense = {
                f"tdnnd{number + 1}": DenseLayer(width + number * shape.growth, shape, dilation)
                for number in range(layers)
            }
            self.xvector.add_module(f"block{i}", _in_turn(**dense))
            width += layers * shape.growth
            self.xvector.add_module(f"transit{i}", halved(width))
            width //= 2
        self.xvector.add_module("out_nonlinear", _norm_relu(width))
        self.dense = Dense(2 * width, shape.dimensions)

    def forward(self, wav: Tensor) -> Tensor:
        hidden = self.xvector(self.head(self.bank(wav).transpose(1, 2)))
        mean, count = hidden.mean(-1, keepdim=True), hidden.shape[-1]
        deviation = ((hidden - mean).square().sum(-1) / (count - 1)).sqrt()
        return self.dense(torch.cat([mean.squeeze(-1), deviation], -1))


class Speakers(nn.Module):
    """Both networks."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.segmentation, self.voice = Segmentation(shape), VoiceNetwork(shape)


def sinc_filters(low: Tensor, band: Tensor, size: int) -> Tensor:
    """Make kernels [2 * filters, 1, size] of band-pass filters that start at `low` [filters, 1] Hz and are
    `band` wide (SincNet, https://arxiv.org/abs/1808.00158; even ones, then odd ones, as in
    asteroid_filterbanks).
    """
    low = 50 + low.abs().double()
    high = (low + 50 + band.abs().double()).clamp(50, RATE / 2)
    half = size // 2
    window = 0.54 - 0.46 * torch.cos(2 * math.pi * torch.arange(half, dtype=torch.float64) / (size - 1))
    times = 2 * math.pi * torch.arange(-half, 0, dtype=torch.float64)[None] / RATE
    width = (high - low)[:, :1]

    def kernel(left: Tensor, middle: Tensor, sign: int) -> Tensor:
        left = left / (times / 2) * window
        return torch.cat([left, middle, sign * left.flip(1)], 1) / (2 * width)

    even = kernel((high @ times).sin() - (low @ times).sin(), 2 * width, 1)
    odd = kernel((low @ times).cos() - (high @ times).cos(), torch.zeros_like(width), -1)
    return torch.cat([even, odd])[:, None].float()

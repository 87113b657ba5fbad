"""A stand-in for the part of torch that hands memory to TensorRT: what is "cuda" here lies in NumPy's memory,
and what lies on the CPU has no address that TensorRT could read.
"""

from contextlib import contextmanager

import numpy as np

float16 = np.float16


class Tensor:
    def __init__(self, array, device="cpu"):
        self.array, self.device, self.shape = array, device, array.shape

    def to(self, device):
        return Tensor(self.array.copy(), device)

    def cpu(self):
        return Tensor(self.array.copy())

    def numpy(self):
        assert self.device == "cpu", "can't convert cuda tensor to numpy"
        return self.array

    def data_ptr(self):
        assert self.device == "cuda", "TensorRT reads the GPU's memory"
        return self.array.ctypes.data


def from_numpy(array):
    assert array.flags.c_contiguous
    return Tensor(array)


def empty(shape, dtype, device):
    return Tensor(np.full(shape, np.nan, dtype), device)


class cuda:  # noqa: N801  # a module there
    class Stream:
        cuda_stream = 0x7F00

        def synchronize(self):
            pass

    @staticmethod
    @contextmanager
    def stream(stream):
        yield

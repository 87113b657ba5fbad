"""TensorRT plans of encoders, in NVIDIA's plain image: `target.py`, which any package may import, and the
exporter (torch, transformers, onnx: builder only).
"""

"""TensorRT plans of encoders, in NVIDIA's plain image: `target.py`, which everybody may import, and the
exporter (torch, transformers, onnx: the builder only).
"""

"""Weights from one layout into another: `python -m build.layouts.<family>`. Needs torch and safetensors, no
transformers.
"""

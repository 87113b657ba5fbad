"""Convert weights from one layout to another: `python -m build.layouts.<family>`. Needs torch and safetensors
but not transformers.
"""

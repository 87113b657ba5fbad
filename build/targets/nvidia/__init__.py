"""What targets share whose tools lie in one of NVIDIA's images: image, driver and GPUs, and the options of
tools.
"""

"""What targets share whose tools are in one of NVIDIA's images: image, driver and GPUs, and the tools'
options.
"""

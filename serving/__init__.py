"""Code that runs inside Triton: audio features, tokens, prompts, generation, engines. Takes and returns
arrays.
"""

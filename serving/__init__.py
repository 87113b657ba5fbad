"""What runs inside Triton: audio features, tokens, prompts, generation, engines. Arrays in, arrays out."""

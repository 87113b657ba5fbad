"""The gateway: OpenAI's HTTP API for clients, KServe v2 to Triton."""

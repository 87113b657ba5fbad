"""OpenAI's HTTP API on one side, KServe v2 on the other."""

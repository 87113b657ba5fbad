"""OpenAI's HTTP dialect on one side, KServe v2 on the other."""

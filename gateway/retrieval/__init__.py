"""Files, vector stores and search in OpenAI's dialect, over a document database and a vector database."""

"""Files, vector stores and search through the OpenAI API, over a document database and a vector database."""

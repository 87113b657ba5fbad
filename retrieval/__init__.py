"""Files, stores, attachments; documents and vectors: ingest, search, maintenance."""

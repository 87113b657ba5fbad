"""Networks as torch modules: exporters trace them, the torch engine runs them. torch only, no transformers."""

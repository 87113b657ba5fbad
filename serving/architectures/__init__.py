"""Networks as torch modules: exporters trace them, the torch engine runs them. They need torch alone."""

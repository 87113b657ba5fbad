"""Networks as torch modules, which exporters trace and the torch engine runs. They need only torch."""

"""Start a tritonserver, probe it, and replace it: processes only."""

"""What runs and operates a deployment."""

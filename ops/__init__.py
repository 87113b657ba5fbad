"""Run and operate a deployment."""

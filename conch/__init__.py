"""The ground floor: what all rooms share, in the standard library alone. It imports no other room."""

"""What a stack must survive: requests made to end it, and parts of it killed under load."""

"""Pass checked requests to a server, and fail over: one service, and a front end for each protocol."""

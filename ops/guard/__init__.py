"""The parent of a tritonserver, and the only way to it: every request is checked here, and handed on when its
server is lost.
"""

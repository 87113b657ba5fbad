"""The guard: parent of a tritonserver, and the only way to it. It checks every request, and fails it over
when its server is lost.
"""

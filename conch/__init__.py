"""Typed contracts and names that all packages share. Uses the standard library only and imports no other
package of Conch.
"""

"""Operators over windows."""

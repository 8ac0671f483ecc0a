"""Worlds of the simulator with flows that are drawn from their seeds, or with graphs of a zoo."""

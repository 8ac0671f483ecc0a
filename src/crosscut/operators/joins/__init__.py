"""Operators that join two keyed streams. What came from which is said by `Batch.input`."""

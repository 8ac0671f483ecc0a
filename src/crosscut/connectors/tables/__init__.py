"""Tables of databases, as sinks: rows are held in the snapshot, and written with a marker in one transaction.

`writer` is the same for all of them; a database says how it locks the marker and how it takes rows in.
"""

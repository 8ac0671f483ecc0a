"""The changes of Postgres tables as a source: first the rows that are there, then what becomes of them.

`pgoutput` reads what the server sends; `parts` decides which changes the rows that were read have in them
already; `stream` is the connection; `source` puts them together.
"""

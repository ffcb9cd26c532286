"""`StateArchive`: millions of state rows in little memory, with NumPy and zstandard.

- `state_archive`: the public class, with columns, paths and replay
- `row_blocks`: rows, compressed in blocks
- `row_index`: a hash table that finds the node of a row
- `growing_array`: arrays that grow, in memory or in a file
- `archive_file`: archives on disk
"""

"""The encoder's numerical operations, one file each: a plain torch reference beside its accelerated versions.

Every operation works on a *group* of splits of one padded length: `[n, T, D]` with `lengths: [n]` saying how many
tokens of each split exist (`None`: all `T`). Rows at or beyond a split's length never influence a valid row, and come
out as zeros from the mixing operations.
"""

"""The encoder's numerical operations: plain torch references beside their kernels.

Every operation works on a *group* of splits of one padded length: `[n, T, D]` with `lengths: [n]`
saying how many tokens of each split exist (`None`: all `T`). Rows at or beyond a split's length
never influence a valid row, and come out as zeros from the mixing operations.
"""

"""Triton versions of the operations one folder up; imported only when one of them is chosen.

Rules every kernel here keeps: float32 accumulation and statistics; no atomics and no split of a sum over a number of
programs that depends on the batch, so results are bitwise reproducible and independent of batch-mates; rows are
addressed through strides (inputs are views of the enricher's output); the offset of a split is 64-bit; a length is
never part of a compilation key; tiles come from a shipped table (`configs.py`), never from tuning at run time.
"""

"""Triton versions of the operations one folder up; imported only when one of them is chosen.

Rules that every kernel here keeps:

* Accumulation and statistics are float32.
* No atomics, and no sum split over a number of programs that depends on the batch: results are
  reproducible bit for bit and independent of the rest of the batch.
* Rows are addressed through strides (inputs are views of the enricher's output); the offset of a
  split is 64-bit.
* A length is never part of a compilation key. Tiles come from a shipped table (`tiles.py`), never
  from tuning at run time.
* A tile that feeds a product feeds nothing else. On Hopper a product reads its operands from shared
  memory after it was issued; for a tile with a second user Triton's pipeliner allots one buffer too
  few, and the next copy overwrites what the product still reads (triton-lang/triton issue 6691).
* A loop whose product takes an operand computed in registers is not pipelined on Hopper (one stage
  in `tiles.py`): the next iteration would write registers that a pending product still reads
  (triton-lang/triton issue 9433).
* NaN stays NaN: maxima are those of `tiles.py`.

`tests/kernels/test_compile_gate.py` looks for both races in the compiled code of every kernel, tile
and architecture.
"""

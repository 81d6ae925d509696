"""ONNX Runtime's sessions on a CPU, as every ONNX form of a model is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ModelError, extra_for, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

_SILENT_LOG_LEVEL = 4  # ONNX Runtime's level of the log that holds fatal errors alone
_REASON_CHARACTERS = 200


def open_session(
    path: Path,
    *,
    threads: int,
    advice: str,
    initializers: Mapping[str, np.ndarray] | None = None,
) -> Any:
    """Open an ONNX file.

    The file is read here and given as bytes: it has no folder in which ONNX Runtime could look for
    other data.

    Args:
        path: the file.
        threads: of one run; 0: as many as there are processors.
        advice: what to do where the file cannot be read.
        initializers: arrays that the file names and does not hold.

    Raises:
        ModelError: ONNX Runtime cannot read the file.
        OptionalDependencyError: ONNX Runtime is not installed.
    """
    with extra_for("the ONNX form of a model", "cpu"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _SILENT_LOG_LEVEL
    # A plan for each shape keeps memory, and makes nothing faster here.
    options.enable_mem_pattern = False
    if initializers:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(rows) for rows in initializers.values()]
        options.add_external_initializers(list(initializers), values)
    try:
        return onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        reason = first_line(error)[:_REASON_CHARACTERS].rstrip(".")
        raise ModelError(f"{path}: ONNX Runtime cannot read it ({reason}); {advice}") from error

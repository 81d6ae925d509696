"""The encoder as one ONNX file: its export, its checks, and what runs it without torch."""

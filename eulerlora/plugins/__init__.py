"""Exchange with PEFT and ONNX, each with an extra; the core imports none of these modules."""

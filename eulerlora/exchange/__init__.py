"""Exchange of checkpoints with other libraries: PEFT, torchvision and ONNX, in mode det."""

"""Exchange with other libraries: their backbones; PEFT, torchvision and ONNX in mode det."""

"""The Open Inference Protocol, version 2, over HTTP: another form of `/predict`."""

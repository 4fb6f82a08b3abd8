"""Fair shares of decoders, inference, queue capacity and upload memory between clients."""

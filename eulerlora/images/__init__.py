"""Images from files to the network's input."""

"""The `eulerlora` program and the commands of the client."""

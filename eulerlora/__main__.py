"""`python -m eulerlora` is the `eulerlora` program, for where its script is not on the path."""

from eulerlora_client.commands.program import main

if __name__ == "__main__":
    main()

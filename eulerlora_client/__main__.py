"""`python -m eulerlora_client`: the `eulerlora` program."""

from eulerlora_client.commands.program import main

if __name__ == "__main__":
    main()

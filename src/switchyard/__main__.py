"""`python -m switchyard`: the command `switchyard`, as a process starts another one."""

from switchyard.entrypoints.cli.main import run

if __name__ == "__main__":
    run()

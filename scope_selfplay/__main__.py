"""`python -m scope_selfplay`, and the command `scope`: a Ctrl-C while its code is being loaded is one line too."""

import sys


def main() -> None:
    if sys.platform == "win32":
        sys.exit("scope: Windows needs WSL (`wsl --install`); install and run scope in there")
    try:
        from scope_selfplay.cli import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("scope: stopped; run the same command to go on\n")
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()

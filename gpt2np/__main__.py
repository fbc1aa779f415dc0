"""`python -m gpt2np` and the console script `gpt2np`."""

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from gpt2np.cli.main import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

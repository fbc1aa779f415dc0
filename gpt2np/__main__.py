"""Entry point of `python -m gpt2np` and of the console script `gpt2np`."""

import gc
import sys


def main() -> int:
    """Run the command that sys.argv names and return the exit code."""
    try:
        import signal  # slow to import: at the top, Ctrl-C would show a traceback

        from gpt2np.interrupts import interrupt

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from gpt2np.cli.main import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    finally:
        import signal

        # Python restores the default handler, which kills the process, while it exits.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # otherwise the interpreter scans the vocabulary for garbage at exit


if __name__ == "__main__":
    sys.exit(main())

"""`python -m gpt2np` and the console script `gpt2np`."""

import gc
import os
import signal
import sys
import warnings


def main() -> int:
    """Run the command line; returns the exit code."""
    # Until a command has something to lose, Ctrl-C ends it at once: an exception in the middle of
    # an import could come out as another one, with a traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from gpt2np.cli.main import run
    from gpt2np.cli.streams import warn

    warnings.showwarning = warn
    try:
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    finally:
        gc.freeze()  # else Python looks through a vocabulary for garbage before it ends


if __name__ == "__main__":
    sys.exit(main())

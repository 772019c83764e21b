"""The script of a render process: it runs a function that comes through a pipe.

`threedident.render.executors.processes` starts this file as a script; it is never imported. The
main module of whoever started it is not run again, as multiprocessing would do.
"""

import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection


def main() -> None:
    """Run the function, which gets the pipe and its other arguments."""
    # A terminal's Ctrl-C goes to all, and the caller decides. It has held it back until here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    sys.path[:], message = pipe.recv()
    try:
        function, arguments = pickle.loads(message)
    except Exception as error:  # a module that is not found here, or does not load
        pipe.send(error)
        raise
    function(pipe, *arguments)


if __name__ == "__main__":
    main()

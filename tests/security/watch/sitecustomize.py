"""Found by every Python that is started with this folder in its path: writes down what it must not do.

Each line of the file that WATCHED names is one attempt: to reach a network, to unpickle, to run a program.
"""

import os
import sys

_ALLOWED = ("127.0.0.1", "::1", None, "", b"127.0.0.1")


def _watch(event, arguments):
    told = None
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        place = arguments[1]
        told = place if isinstance(place, tuple) else None  # a socket in the file system is no network
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        told = None if arguments[0] in _ALLOWED else arguments[0]
    elif event in ("pickle.find_class", "os.system"):
        told = arguments
    elif event == "subprocess.Popen":
        words = (
            [str(word) for word in arguments[1]] if not isinstance(arguments[1], str) else [arguments[1]]
        )
        told = None if "tinkex.engine.child" in words else words
    if told is not None and "WATCHED" in os.environ:
        file = os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, f"{event} {told!r} {sys.argv[:3]}\n".encode())
        os.close(file)
        if event != "subprocess.Popen":  # some libraries ask the system about its processors
            raise PermissionError(f"{event} is not for servers")


sys.addaudithook(_watch)

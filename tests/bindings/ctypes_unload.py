"""A library that is unloaded while its monitor answers leaves nothing behind: neither thread nor socket, nor what would run at a fork.

    ctypes_unload.py PATH_OF_THE_LIBRARY
"""
import _ctypes
import ctypes
import os
import sys
import tempfile


def threads():
    return len(os.listdir("/proc/self/task"))


def main():
    before = threads()
    with tempfile.TemporaryDirectory() as folder:
        socket = os.path.join(folder, "socket")
        for _ in range(3):
            library = ctypes.CDLL(sys.argv[1])
            assert library.sh_monitor_start(socket.encode()) == 0
            assert os.path.exists(socket) and threads() == before + 1
            _ctypes.dlclose(library._handle)
            with open("/proc/self/maps") as maps:
                if os.path.basename(os.path.realpath(sys.argv[1])) in maps.read():
                    print("the library stays loaded on this system")
                    sys.exit(77)
            assert not os.path.exists(socket) and threads() == before
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    print("unloaded three times")


if __name__ == "__main__":
    main()

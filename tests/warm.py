"""Processes of Python that begin with torch loaded: each is a fork of one that has loaded it, and nothing of ours.

A test that runs a command pays for the command and not for the import of torch, which takes longer. A test of what a
process loads, or of how Python itself runs a program, starts a process of its own.
"""

import array
import atexit
import contextlib
import functools
import gc
import json
import os
import py_compile
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings

_LOADED = (
    "torch", "torch.export", "torch._decomp", "torch._meta_registrations", "torch._prims", "torch.utils.data", "numpy",
    "libcst", "libcst.metadata", "rich.console", "rich.table", "jinja2", "jaxtyping", "beartype",
)  # fmt: skip


def run(module, *arguments, cwd=None, env=None, timeout=600, strict=False):
    """What `subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True)` gives.

    With `strict`, warnings are errors.
    """
    environment = dict(os.environ if env is None else env)
    task = {"module": module, "arguments": list(map(str, arguments)), "folder": str(cwd or os.getcwd())}
    message = json.dumps(task | {"environment": environment, "strict": strict}).encode()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        line = _server()
        line.settimeout(timeout)
        fds = array.array("i", [nothing.fileno(), out.fileno(), err.fileno()])
        line.sendmsg([len(message).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        line.sendall(message)
        status = int.from_bytes(line.recv(4), "big", signed=True)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess([module, *arguments], status, *texts)


@functools.cache
def _server():
    ours, theirs = socket.socketpair()
    folder = tempfile.TemporaryDirectory()
    with theirs:
        # Under this name its frames are none of a program, as those of `runpy` are.
        code = py_compile.compile(__file__, os.path.join(folder.name, "warm.pyc"), "<frozen warm>")
        line, quiet = [sys.executable, code, str(theirs.fileno())], subprocess.DEVNULL
        process = subprocess.Popen(line, pass_fds=[theirs.fileno()], stdin=quiet, stdout=quiet)

    def end():
        ours.close()
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return ours


def _serve(number):
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    with socket.socket(fileno=number) as line:
        while True:
            head, fds, _, _ = socket.recv_fds(line, 4, 3)
            if not head:
                return
            task = json.loads(line.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
            pid = os.fork()
            if not pid:
                break
            for fd in fds:
                os.close(fd)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it has left running
            line.sendall(status.to_bytes(4, "big", signed=True))
    os.setsid()
    for place, fd in enumerate(fds):
        os.dup2(fd, place)
        os.close(fd)
    _become(**task)


def _become(module, arguments, folder, environment, strict):
    """Run a module, and end as Python does, but take no other module apart: with torch that takes long."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[1:] = ["-m", module, *arguments]
    sys.path[0], sys.argv = folder, ["-m", *arguments]
    if strict:
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
    status = 0
    try:
        runpy._run_module_as_main(module)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        status = 1 if isinstance(stop.code, str) else int(stop.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    with contextlib.suppress(Exception):
        threading._shutdown()
    atexit._run_exitfuncs()
    if vars(sys.modules["__main__"]) is not globals():
        vars(sys.modules["__main__"]).clear()  # closes the files that a program leaves open
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

"""A plugin of pytest: backward runs in a thread that Python did not start, while the program waits, as on a GPU.

Such a thread has torch's state of the one that waits (modes, autocast, what is stashed), no line of Python below it,
and neither its `threading.local` nor its `contextvars`. `make test-threads` runs with it what an audit, a watch and a
contract do in backward. It needs a compiler.
"""

import functools
import threading

import torch
from torch.autograd import graph
from torch.utils.cpp_extension import load_inline

_SOURCE = """
#include <ATen/ThreadLocalState.h>
#include <torch/extension.h>
#include <thread>

py::object elsewhere(py::object function) {
  at::ThreadLocalState state;
  PyObject *result = nullptr, *type = nullptr, *error = nullptr, *trace = nullptr;
  {
    py::gil_scoped_release released;
    std::thread([&] {
      at::ThreadLocalStateGuard guard(state);
      PyGILState_STATE held = PyGILState_Ensure();
      result = PyObject_CallNoArgs(function.ptr());
      if (!result) PyErr_Fetch(&type, &error, &trace);
      PyGILState_Release(held);
    }).join();
  }
  if (result) return py::reinterpret_steal<py::object>(result);
  PyErr_Restore(type, error, trace);
  throw py::error_already_set();
}
"""
# In torch's own file, so that no line of ours is between the program and backward.
_BACKWARD = """
def _engine_run_backward(t_outputs, *args, **kwargs):
    return elsewhere(partial(run_backward, t_outputs, *args, **kwargs))
"""


def pytest_configure() -> None:
    names = {
        "elsewhere": load_inline("foreign_backward", _SOURCE, functions=["elsewhere"]).elsewhere,
        "partial": functools.partial,
        "run_backward": torch.autograd.Variable._execution_engine.run_backward,
    }
    exec(compile(_BACKWARD, graph.__file__, "exec"), names)
    graph._engine_run_backward = torch.autograd._engine_run_backward = names["_engine_run_backward"]
    seen = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda grad: seen.append(threading.current_thread()))
    x.sum().backward()
    assert isinstance(seen[0], threading._DummyThread)

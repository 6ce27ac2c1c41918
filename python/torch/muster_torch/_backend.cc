// What the Python module needs of muster.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/base/error.h"
#include "muster/base/host_identity.h"
#include "muster/comm/hierarchical/hierarchical.h"
#include "muster/comm/hierarchical/over_gloo.h"
#include "muster/comm/host/choice.h"
#include "muster/comm/host/operation.h"
#include "muster/comm/shm/backend.h"
#include "muster/trace/late_rank.h"
#include "python/torch/muster_torch/_activity.h"

namespace {

// What PyTorch's own backends raise when communication fails; it is a RuntimeError. A wrong call is
// one alone.
void raise(const muster::Error& error) {
  namespace py = pybind11;
  const bool wrong_call = error.code() == muster::ErrorCode::invalid_argument;
  const py::object type = wrong_call
                              ? py::reinterpret_borrow<py::object>(PyExc_RuntimeError)
                              : py::module_::import("torch.distributed").attr("DistBackendError");
  PyErr_SetString(type.ptr(), error.what());
}

}  // namespace

PYBIND11_MODULE(_backend, module) {
  pybind11::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised)
        std::rethrow_exception(raised);
    } catch (const muster::Error& error) {
      raise(error);
    }
  });
  muster::describe_late_ranks(/*names_are_the_jobs=*/false);
  muster::show_waits(true);
  module.def("use_activity_of", &muster::use_activity_of);
  module.def("choose_host_backend", &muster::choose_host_backend);
  module.def("host_identity", &muster::host_identity);
  module.def(
      "make_shm",
      [](const c10::intrusive_ptr<c10d::Store>& store,
         int rank,
         int size,
         std::chrono::milliseconds timeout) {
        return muster::make_shm(store, rank, size, timeout);
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def(
      "over_gloo",
      [](const c10::intrusive_ptr<c10d::Backend>& gloo) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<muster::OverGloo>(gloo);
      });
  module.def(
      "make_hierarchical",
      [](const c10::intrusive_ptr<c10d::Store>& store,
         int rank,
         const std::vector<std::string>& hosts,
         std::chrono::milliseconds timeout,
         const muster::NetworkBackend& network) {
        return muster::make_hierarchical(store, rank, hosts, timeout, network);
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
}

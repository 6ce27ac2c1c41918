// What the Python module needs of muster.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/base/host_identity.h"
#include "muster/comm/hierarchical.h"
#include "muster/comm/over_gloo.h"
#include "muster/comm/shm_backend.h"

PYBIND11_MODULE(_backend, module) {
  module.def("host_identity", &muster::host_identity);
  module.def(
      "make_shm",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout) { return muster::make_shm(store, rank, size, timeout); },
      pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("over_gloo",
             [](const c10::intrusive_ptr<c10d::Backend>& gloo) -> c10::intrusive_ptr<c10d::Backend> {
               return c10::make_intrusive<muster::OverGloo>(gloo);
             });
  module.def("make_hierarchical", &muster::make_hierarchical,
             pybind11::call_guard<pybind11::gil_scoped_release>());
}

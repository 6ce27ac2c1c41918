// Where a C++ program writes what its Python twin (twin.py) writes too.
#pragma once

#include <string>

#include "muster/base/env.h"

namespace muster::test {

inline std::string twin_folder() {
  return get_env("LOSSES_FOLDER").value();
}

}  // namespace muster::test

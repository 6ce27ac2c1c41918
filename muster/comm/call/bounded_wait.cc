// c10d's timed wait throws a c10::Error both where the time runs out and where the work has failed;
// of a work that has failed it says that it is completed.
#include "muster/comm/call/bounded_wait.h"

#include <exception>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace muster {

bool wait_for(c10d::Work& work, milliseconds time) {
  const Deadline slice(time);
  try {
    work.wait(time);
    return true;
  } catch (const std::exception&) {
    if (!work.isCompleted() && slice.passed())
      return false;
    if (!work.isCompleted())
      throw;
  }
  work.wait();  // it may have ended well just after the time ran out; else this throws its failure
  return true;
}

}  // namespace muster

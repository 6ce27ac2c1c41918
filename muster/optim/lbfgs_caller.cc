// The optimizer of a loop of one's own is not known here, nor is it to be told from others by what
// it does to the parameters. So the stack is asked: LBFGS calls the closure, and so the forward,
// from its step.
#include "muster/optim/lbfgs_caller.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "muster/base/contains.h"
#include "muster/base/error.h"

namespace muster::optim {

namespace {

constexpr size_t kMostFrames = 128;
constexpr std::string_view kStep = "5torch5optim5LBFGS4step";  // as the linker writes the name

bool is_of_lbfgs(void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 && info.dli_sname != nullptr &&
         std::string_view(info.dli_sname).find(kStep) != std::string_view::npos;
}

}  // namespace

void refuse_lbfgs_caller(const char* call, int rank) {
  std::array<void*, kMostFrames> frames{};
  const auto size = static_cast<size_t>(::backtrace(frames.data(), kMostFrames));
  if (none_of(std::span(frames).first(size), is_of_lbfgs))
    return;
  throw failed_precondition(
      call,
      ": expected an optimizer that looks at each number alone, got LBFGS, which would measure on "
      "each rank the parameters that are there, so that the ranks come apart (rank ",
      rank,
      "); use AdamW or SGD, freeze what LBFGS does not train, or train the whole model on each "
      "rank "
      "with DistributedDataParallel");
}

}  // namespace muster::optim

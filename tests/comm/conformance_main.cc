// The conformance suite as a program: ranks as processes, on their own devices (NCCL when every
// rank has a GPU), and there on a stream that is not the default one, as programs that overlap work
// have it. With names: those checks alone.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <iostream>
#include <set>
#include <string>

#include "muster/run/run.h"
#include "tests/comm/conformance.h"

int main(int argc, char** argv) {
  const std::set<std::string> names(argv + 1, argv + argc);
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    c10::OptionalStreamGuard stream;
    if (ctx.device().is_cuda())
      stream.reset_stream(
          c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(ctx.device()));
    int held = 0;
    for (const auto& check : muster::testing::conformance_checks()) {
      if (!names.empty() && !names.contains(check.name))
        continue;
      check.body(ctx.process_group());
      ++held;
    }
    if (ctx.is_main()) {
      std::cout << held << " checks hold on " << ctx.world_size() << " ranks over "
                << ctx.process_group().backend() << std::endl;
    }
  });
}

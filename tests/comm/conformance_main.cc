// The conformance suite as a program: ranks as processes, on their own devices (NCCL when every rank has a
// GPU).
#include <iostream>

#include "muster/run/run.h"
#include "tests/comm/conformance.h"

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    for (const auto& check : muster::testing::conformance_checks()) check.body(ctx.process_group());
    if (ctx.is_main()) {
      std::cout << muster::testing::conformance_checks().size() << " checks hold on " << ctx.world_size()
                << " ranks over " << ctx.process_group().backend() << std::endl;
    }
  });
}

// Ranks that do what the first argument says, for ranks_test.py, which reads what their activity
// files say: `trace_probe read RUN_DIR` prints those, a line a fact.
#include <muster/muster.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <iostream>
#include <stdexcept>

#include "muster/base/clock.h"
#include "muster/trace/read_activity.h"
#include "muster/trace/span.h"

namespace {

using muster::cat;

void train(muster::Context& ctx) {
  ctx.seed_all(1);
  torch::nn::Linear net(8, 2);
  muster::DistributedDataParallel model(net, ctx.process_group());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  muster::TrainStep step(model, optimizer);
  const auto features = torch::randn({64, 8});
  auto loader = ctx.loader(muster::TensorDataset(features, features.sum(1).gt(0).to(torch::kLong)),
                           {.batch_size = 4, .workers = 1});
  for (const auto& batch : loader) {
    const muster::Span span("tokenize");
    step(batch, [&] { return torch::cross_entropy_loss(model(batch.features), batch.labels); });
  }
  muster::Checkpoints checkpoints(ctx.process_group(), {.folder = ctx.run_dir() + "/checkpoints"});
  checkpoints.add("model", net.ptr()).add("optimizer", optimizer);
  checkpoints.save(step.steps());
}

// The last rank stays away from the third sum.
void stay_away(muster::Context& ctx) {
  auto sum = torch::ones({1000});
  for (int i = 0; i < 3; ++i) {
    if (i == 2 && ctx.rank() == ctx.world_size() - 1) {
      const muster::Span span("tokenize");
      for (;;)
        ::pause();
    }
    ctx.process_group().all_reduce(sum);
  }
}

// A step of each rank at a time that all ranks know, on hosts whose clocks the test has set apart.
void steps(muster::Context& ctx) {
  auto value = torch::ones({4});
  for (int i = 0; i < 10; ++i) {
    const muster::Span span("step", muster::Category::compute);
    const auto product = torch::ones({8, 8}).mm(torch::ones({8, 8}));
    ctx.process_group().all_reduce(value);
    muster::note_step(i + 1);
  }
}

// The same, traced from the sixth step on.
void trace_later(muster::Context& ctx) {
  auto value = torch::ones({4});
  for (int i = 0; i < 10; ++i) {
    if (i == 5)
      ctx.trace();
    const muster::Span span("step", muster::Category::compute);
    ctx.process_group().all_reduce(value);
  }
  ctx.trace();
}

// Rank 1 computes longer than the others, whatever the machine does meanwhile: it begins each step
// before them, and goes on for some time after they have computed.
void slow(muster::Context& ctx) {
  const auto store = ctx.process_group().store();
  auto value = torch::ones({4});
  muster::Metrics metrics(ctx, {.tensorboard = true});
  for (int i = 0; i < 25; ++i) {
    if (i > 0)
      metrics.write_every(5, i);
    const std::string step = std::to_string(i);
    if (ctx.rank() != 1)
      store->wait({"begun/" + step});
    const muster::Span span("step", muster::Category::compute);
    if (ctx.rank() == 1) {
      store->set("begun/" + step, "");
      for (int rank = 0; rank < ctx.world_size(); ++rank)
        if (rank != 1)
          store->wait({"computed/" + step + "/" + std::to_string(rank)});
    }
    const auto until = muster::Clock::now() + std::chrono::milliseconds(ctx.rank() == 1 ? 8 : 1);
    while (muster::Clock::now() < until) {
    }
    store->set("computed/" + step + "/" + std::to_string(ctx.rank()), "");
    ctx.process_group().all_reduce(value);
    muster::note_step(i + 1);
  }
}

// Until it is asked to stop.
void walk(muster::Context& ctx) {
  auto value = torch::ones({4});
  for (int64_t step = 1; !ctx.should_stop(); ++step) {
    const muster::Span span("step", muster::Category::compute);
    ctx.process_group().all_reduce(value);
    muster::note_step(step);
  }
}

void messages(muster::Context& ctx) {
  auto tensor = torch::ones({2, 3});
  auto group = ctx.process_group().new_group({0, 1});
  if (ctx.rank() == 0)
    group->send(tensor, 1, 7);
  if (ctx.rank() == 1)
    group->recv(tensor, 0, 7);
  if (group)
    group->all_reduce_async(tensor).wait();
}

void print_call(const muster::ActivityView& view, const muster::CallView& call) {
  const char* const state = !call.end_ns                              ? "under way"
                            : call.state == muster::CallState::failed ? "failed"
                                                                      : "ended";
  std::cout << cat("rank ",
                   view.rank,
                   " call [",
                   call.group,
                   "] ",
                   call.text(),
                   " bytes ",
                   call.bytes,
                   " ",
                   state,
                   "\n");
}

int read(const std::string& run_dir) {
  for (const auto& file : muster::activity_files(run_dir)) {
    const auto view = muster::read_activity(file.path);
    std::cout << cat("rank ",
                     view.rank,
                     " of ",
                     view.world_size,
                     " step ",
                     view.step,
                     " samples ",
                     view.samples,
                     view.loss ? " has loss" : "",
                     view.closed_ns ? " closed" : "",
                     "\n");
    for (size_t i = 0; i < muster::kActivityCategories; ++i)
      std::cout << cat("rank ",
                       view.rank,
                       " time ",
                       to_string(static_cast<muster::Category>(i)),
                       " ",
                       view.totals_ns[i],
                       "\n");
    if (const auto* const main = view.main())
      for (const auto& span : main->spans)
        std::cout << cat("rank ", view.rank, " in ", span.name, "\n");
    for (const auto& call : view.calls)
      print_call(view, call);
  }
  return 0;
}

void probe(const std::string& what, muster::Context& ctx) {
  if (what == "train")
    return train(ctx);
  if (what == "stay away")
    return stay_away(ctx);
  if (what == "walk")
    return walk(ctx);
  if (what == "messages")
    return messages(ctx);
  if (what == "steps")
    return steps(ctx);
  if (what == "trace later")
    return trace_later(ctx);
  if (what == "slow")
    return slow(ctx);
  throw std::invalid_argument("trace_probe: unknown '" + what + "'");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "read")
    return read(argv[2]);
  return muster::run(
      argc, argv, [&](muster::Context& ctx) { probe(argc > 1 ? argv[1] : "", ctx); });
}

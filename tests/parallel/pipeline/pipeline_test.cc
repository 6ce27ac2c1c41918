// Pipelines give the losses of one process, and say what is wrong.
#include "muster/parallel/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <sstream>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/simulation.h"
#include "tests/parallel/pipeline/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kPipelineSteps = 20;
constexpr int64_t kPipelineRows = 16;

enum class Model { mlp, gpt, tied_gpt };

// Every copy begins with the same weights; made by the test's thread, as random numbers are the
// process's.
struct Copy {
  Pieces pieces;
  std::vector<at::Tensor> parameters;
  at::Tensor first_use, last_use;  // of a tied weight
};

Copy make_copy(Model model) {
  if (model == Model::mlp) {
    const auto mlp = make_mlp();
    return {mlp_pieces(mlp), mlp->parameters(), {}, {}};
  }
  const Gpt gpt = make_gpt(model == Model::tied_gpt);
  return {gpt_pieces(gpt), gpt->parameters(), {}, {}};
}

std::vector<Batch> batches_for(Model model) {
  return model == Model::mlp ? number_batches(kPipelineSteps, kPipelineRows)
                             : text_batches(kPipelineSteps, kPipelineRows);
}

PipelineLoss loss_for(Model model) {
  if (model == Model::mlp)
    return squared_error;
  return next_token_loss;
}

std::vector<PipelineSchedule> four_schedules(int ranks, int micro_batches) {
  return {gpipe(ranks, micro_batches),
          one_f_one_b(ranks, micro_batches),
          interleaved(ranks, micro_batches, 2),
          zero_bubble(ranks, micro_batches)};
}

struct PipelineRun {
  std::vector<double> losses;
  std::vector<int> held;
};

PipelineRun run_pipeline(Model model,
                         const PipelineSchedule& schedule,
                         const std::string& backend,
                         bool recompute = false) {
  at::set_num_threads(1);
  const auto batches = batches_for(model);
  std::vector<Copy> copies;
  for (int rank = 0; rank < schedule.ranks; ++rank)
    copies.push_back(make_copy(model));
  PipelineRun run{.losses = {}, .held = std::vector<int>(copies.size())};
  run_ranks(schedule.ranks,
            [&](ProcessGroup& group) {
              const auto rank = static_cast<size_t>(group.rank());
              Pipeline pipeline(
                  stages_of(copies[rank].pieces, group.rank(), group.size(), schedule.stages),
                  group,
                  {.schedule = schedule,
                   .loss = loss_for(model),
                   .recompute = recompute,
                   .share_loss = true});
              const auto losses = train_in_pipeline(pipeline, batches);
              run.held[rank] = pipeline.last_step().held_peak;
              if (group.rank() + 1 == group.size())
                run.losses = losses;
            },
            {.backend = backend, .timeout = std::chrono::seconds(60)});
  return run;
}

std::vector<double> without_pipeline(Model model, int micro_batches) {
  at::set_num_threads(1);  // as the ranks: two threads add in another order
  const Copy copy = make_copy(model);
  return train_alone(
      copy.pieces, copy.parameters, loss_for(model), batches_for(model), micro_batches);
}

class PipelineLosses : public ::testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Models,
                         PipelineLosses,
                         ::testing::Values(Model::mlp, Model::gpt),
                         [](const auto& info) { return info.param == Model::mlp ? "mlp" : "gpt"; });

// The same bits: micro-batches are added in the same order, and no sum is formed elsewhere.
TEST_P(PipelineLosses, EqualThoseOfOneProcess) {
  const auto expected = without_pipeline(GetParam(), 8);
  EXPECT_LT(expected.back(), expected.front());
  for (const int ranks : {1, 2, 4}) {
    for (const auto& schedule : four_schedules(ranks, 8)) {
      SCOPED_TRACE(cat(schedule.name, " on ", ranks));
      const PipelineRun run = run_pipeline(GetParam(), schedule, "shm");
      EXPECT_EQ(run.losses, expected);
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(run.held[static_cast<size_t>(rank)], peak_held(schedule, rank));
    }
  }
}

TEST_P(PipelineLosses, EqualThoseOfOneProcessOverGloo) {
  const auto expected = without_pipeline(GetParam(), 4);
  for (const auto& schedule : four_schedules(4, 4))
    EXPECT_EQ(run_pipeline(GetParam(), schedule, "gloo").losses, expected) << schedule.name;
}

TEST_P(PipelineLosses, AreTheSameWithRecomputation) {
  const auto expected = without_pipeline(GetParam(), 8);
  for (const auto& schedule : four_schedules(4, 8))
    EXPECT_EQ(run_pipeline(GetParam(), schedule, "shm", /*recompute=*/true).losses, expected)
        << schedule.name;
}

// The MLP's stages with random numbers in between: what is recomputed draws them again. One rank,
// as the generator is the process's.
TEST(Pipeline, RecomputationDrawsTheSameNumbers) {
  const auto losses_of = [](bool recompute) {
    std::vector<double> losses;
    auto mlp = make_mlp();
    torch::nn::Sequential first(torch::nn::Linear(12, 16), torch::nn::Dropout(0.5)),
        second(torch::nn::Linear(16, 5), torch::nn::Dropout(0.2));
    const auto batches = number_batches(10, 8);
    run_ranks(1, [&](ProcessGroup& group) {
      Pipeline pipeline(
          {first, second},
          group,
          {.schedule = interleaved(1, 4, 2), .loss = squared_error, .recompute = recompute});
      torch::manual_seed(9);
      losses = train_in_pipeline(pipeline, batches);
    });
    return losses;
  };
  EXPECT_EQ(losses_of(true), losses_of(false));
}

// The sum over both uses is formed after the sums over micro-batches, so the last bits may differ.
TEST(Pipeline, TiedWeightsTrainAsOne) {
  at::set_num_threads(1);
  const auto expected = without_pipeline(Model::tied_gpt, 4);
  const auto batches = batches_for(Model::tied_gpt);
  for (const auto& schedule : {one_f_one_b(4, 4), zero_bubble(4, 4)}) {
    std::vector<Gpt> gpts;
    for (int rank = 0; rank < 4; ++rank)
      gpts.push_back(make_gpt(/*tied=*/true));
    {
      const torch::NoGradGuard no_grad;
      gpts[3]->token->weight.fill_(7);  // tie() makes it the first rank's
    }
    run_ranks(4, [&](ProcessGroup& group) {
      const auto rank = static_cast<size_t>(group.rank());
      Pipeline pipeline(stages_of(gpt_pieces(gpts[rank]), group.rank(), 4, 4),
                        group,
                        {.schedule = schedule, .loss = next_token_loss, .share_loss = true});
      pipeline.tie(rank == 0 || rank == 3 ? gpts[rank]->token->weight : at::Tensor());
      const auto losses = train_in_pipeline(pipeline, batches);
      for (size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]);
    });
    EXPECT_TRUE(gpts[0]->token->weight.equal(gpts[3]->token->weight));
  }
}

// What the first rank alone loads; the last has a copy.
TEST(Pipeline, ATiedWeightThatOneRankLoadsIsTakenByAll) {
  at::set_num_threads(1);
  const auto batches = batches_for(Model::tied_gpt);
  const auto load_before = [](size_t step, const Gpt& gpt) {
    if (step != 0 && step != 2)
      return;
    std::stringstream file;
    torch::save(gpt->token->weight.detach() * (step == 0 ? 0.5 : 1.5), file);
    at::Tensor weight = gpt->token->weight;
    torch::load(weight, file);
  };
  const auto train = [&](const auto& parameters, const auto& before, const auto& loss_of) {
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.2).momentum(0.9));
    std::vector<double> losses;
    for (size_t step = 0; step < 5; ++step) {
      before(step);
      optimizer.zero_grad();
      losses.push_back(loss_of(batches[step]));
      optimizer.step();
    }
    return losses;
  };
  const Gpt alone = make_gpt(/*tied=*/true);
  const auto expected = train(
      distinct_parameters(*alone),
      [&](size_t step) { load_before(step, alone); },
      [&](const Batch& batch) {
        const auto loss = next_token_loss(Gpt(alone)(batch.x), batch.y);
        loss.backward();
        return loss.template item<double>();
      });
  std::vector<Gpt> gpts;
  for (int rank = 0; rank < 4; ++rank)
    gpts.push_back(make_gpt(/*tied=*/true));
  run_ranks(4, [&](ProcessGroup& group) {
    const Gpt& gpt = gpts[static_cast<size_t>(group.rank())];
    Pipeline pipeline(stages_of(gpt_pieces(gpt), group.rank(), 4, 4),
                      group,
                      {.schedule = one_f_one_b(4, 4), .loss = next_token_loss, .share_loss = true});
    pipeline.tie(group.rank() == 0 || group.rank() == 3 ? gpt->token->weight : at::Tensor());
    const auto losses = train(
        pipeline.parameters(),
        [&](size_t step) {
          if (group.rank() == 0)
            load_before(step, gpt);
        },
        [&](const Batch& batch) {
          return pipeline.step(batch.x, batch.y).template item<double>();
        });
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << i;
  });
  EXPECT_TRUE(gpts[0]->token->weight.equal(gpts[3]->token->weight));
}

// Two replicas of two stages: each takes every other row of a micro-batch's, so that sums over rows
// divide differently than one process's.
TEST(Pipeline, ReplicasAverageTheirGradients) {
  at::set_num_threads(1);
  const auto expected = without_pipeline(Model::gpt, 4);
  const auto batches = batches_for(Model::gpt);
  for (const auto& schedule : {one_f_one_b(2, 4), zero_bubble(2, 4), interleaved(2, 4, 2)}) {
    SCOPED_TRACE(schedule.name);
    std::vector<Copy> copies;
    for (int rank = 0; rank < 4; ++rank)
      copies.push_back(make_copy(Model::gpt));
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : copies[2].parameters)
        parameter.add_(1);  // average_over() makes them rank 0's
    }
    run_ranks(4, [&](ProcessGroup& group) {
      Mesh mesh(group, {{"dp", 2}, {"pp", 2}});
      const Pieces& pieces = copies[static_cast<size_t>(group.rank())].pieces;
      Pipeline pipeline(stages_of(pieces, mesh.rank("pp"), 2, schedule.stages),
                        mesh.group("pp"),
                        {.schedule = schedule, .loss = next_token_loss, .share_loss = true});
      pipeline.average_over(mesh.group("dp"));
      std::vector<Batch> mine;
      for (const Batch& batch : batches) {
        const auto half = [&](const at::Tensor& t) {
          return t.chunk(2)[static_cast<size_t>(mesh.rank("dp"))];
        };
        mine.push_back({half(batch.x), half(batch.y)});
      }
      const auto losses = train_in_pipeline(pipeline, mine);
      for (size_t i = 0; i < losses.size(); ++i) {
        at::Tensor mean = torch::full({1}, losses[i], at::kDouble);
        mesh.group("dp").all_reduce(mean, ReduceOp::avg);
        EXPECT_NEAR(mean.item<double>(), expected[i], 1e-5 * expected[i]) << i;
      }
      mesh.shutdown();
    });
  }
}

TEST(Pipeline, EvaluationLeavesTrainingAsItIs) {
  at::set_num_threads(1);
  const auto batches = batches_for(Model::mlp);
  const auto other = number_batches(1, 32)[0];
  const auto mlp = make_mlp();
  const auto loss_of_whole = [&] {
    const torch::NoGradGuard no_grad;
    auto model = mlp;
    return squared_error(model->forward(other.x), other.y).item<double>();
  };
  const double before = loss_of_whole();
  const auto expected = train_alone(mlp_pieces(mlp), mlp->parameters(), squared_error, batches, 8);
  const double after = loss_of_whole();
  EXPECT_GT(std::abs(after - before), 1e-3);
  std::vector<Copy> copies{make_copy(Model::mlp), make_copy(Model::mlp)};
  run_ranks(2, [&](ProcessGroup& group) {
    Pipeline pipeline(
        stages_of(copies[static_cast<size_t>(group.rank())].pieces, group.rank(), 2, 2),
        group,
        {.schedule = one_f_one_b(2, 8), .loss = squared_error, .share_loss = true});
    EXPECT_NEAR(pipeline.evaluate(other.x, other.y).item<double>(), before, 1e-6);
    EXPECT_FALSE(pipeline.parameters()[0].grad().defined());
    EXPECT_EQ(train_in_pipeline(pipeline, batches), expected);
    EXPECT_NEAR(pipeline.evaluate(other.x, other.y).item<double>(), after, 1e-6);
  });
}

// A weight that a stage uses twice, a weight that is computed from another, a stage that does not
// use its input, a frozen weight: the halves add up to the whole backward.
TEST(Pipeline, HalvesOfABackwardAreTheWhole) {
  at::set_num_threads(1);
  struct OddImpl : torch::nn::Module {
    OddImpl() {
      a = register_parameter("a", torch::randn({6, 6}));
      b = register_parameter("b", torch::randn({6}));
      frozen = register_parameter("frozen", torch::randn({6}), false);
    }
    at::Tensor forward(const at::Tensor& x) {
      const auto normed = a / a.norm();
      const auto once = torch::tanh(x.matmul(normed) + b * frozen);
      const auto parts = once.matmul(normed.t()).split(3, 1);
      return torch::cat({parts[1], parts[0]}, 1) * b + once;
    }
    at::Tensor a, b, frozen;
  };
  const auto gradients_of = [](const PipelineSchedule& schedule) {
    torch::manual_seed(12);
    std::vector<std::shared_ptr<OddImpl>> models;
    for (int i = 0; i < 3; ++i)
      models.push_back(std::make_shared<OddImpl>());
    const auto x = torch::randn({8, 6}), y = torch::randn({8, 6});
    run_ranks(3, [&](ProcessGroup& group) {
      Pipeline pipeline({models[static_cast<size_t>(group.rank())]},
                        group,
                        {.schedule = schedule, .loss = squared_error});
      pipeline.step(x, y);
    });
    std::vector<at::Tensor> gradients;
    for (const auto& model : models)
      gradients.insert(gradients.end(), {model->a.grad(), model->b.grad()});
    return gradients;
  };
  const auto whole = gradients_of(one_f_one_b(3, 4)), halves = gradients_of(zero_bubble(3, 4));
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_TRUE(torch::allclose(whole[i], halves[i], 1e-5, 1e-7)) << i << whole[i] << halves[i];
}

// What is wrong is said on every rank, before anything is computed.
void expect_all_say(int ranks,
                    const std::function<void(ProcessGroup&)>& body,
                    const std::vector<std::string>& words,
                    const char* backend = "shm") {
  const auto failures =
      failures_of_ranks(ranks, body, {.backend = backend, .timeout = std::chrono::seconds(30)});
  for (const auto& failure : failures)
    for (const std::string& word : words)
      EXPECT_THAT(message_of(failure), HasSubstr(word));
}

// Ranks with schedules and batches of their own choice.
struct Choice {
  std::function<PipelineSchedule(int rank)> schedule = [](int) {
    return one_f_one_b(2, 4);
  };
  std::function<size_t(int rank)> stages = [](int) {
    return size_t{1};
  };
  std::vector<std::pair<at::Tensor, at::Tensor>> batches = {};
  bool has_loss = true;
};

void run_choice(ProcessGroup& group, const Choice& choice) {
  std::vector<PipelineStage> stages;
  for (size_t i = 0; i < choice.stages(group.rank()); ++i)
    stages.emplace_back(torch::nn::Linear(4, 4));
  Pipeline pipeline(std::move(stages),
                    group,
                    {.schedule = choice.schedule(group.rank()),
                     .loss = choice.has_loss ? PipelineLoss(squared_error) : PipelineLoss()});
  for (const auto& [x, y] : choice.batches)
    pipeline.step(x, y);
}

TEST(Pipeline, WhatDoesNotFitIsRefusedOnAllRanks) {
  at::set_num_threads(1);
  const auto all_say = [](const Choice& choice, const std::vector<std::string>& words) {
    for (const char* backend : {"shm", "gloo"})
      expect_all_say(2, [&](ProcessGroup& group) { run_choice(group, choice); }, words, backend);
  };
  all_say(
      {.schedule = [](int rank) { return rank ? gpipe(2, 4) : one_f_one_b(2, 4); }},
      {"one schedule on all ranks", "'one_f_one_b: 2 ranks", "'gpipe: 2 ranks", "ranks 0 and 1"});
  all_say({.schedule = [](int rank) { return one_f_one_b(2, 4 + rank); }},
          {"4 micro-batches", "5 micro"});
  all_say({.schedule = [](int) { return one_f_one_b(3, 4); }},
          {"of the group's 2 ranks, got one of 3"});
  all_say({.schedule = [](int) { return interleaved(2, 4, 2); },
           .stages = [](int rank) { return rank ? size_t{1} : size_t{2}; }},
          {"expected 2 stages on every rank, as interleaved says, got 1 (rank 1)"});
  all_say({.schedule =
               [](int rank) {
                 auto schedule = one_f_one_b(2, 4);
                 if (rank == 1)
                   schedule.actions[0].pop_back();
                 return schedule;
               }},
          {"1 F, 0 B", "(rank 1)"});
  all_say({.has_loss = false},
          {"expected a loss on the rank of the last stage, got none (rank 1)"});
  const auto x = torch::ones({8, 4}), y = torch::ones({8, 4});
  all_say({.batches = {{torch::ones({6, 4}), y}}},
          {"rows that 4 micro-batches divide, got 6 (rank 0)"});
  all_say({.batches = {{x, torch::ones({9, 4})}}},
          {"rows that 4 micro-batches divide, got 9 (rank 1)"});
  all_say({.batches = {{x, torch::ones({4, 4})}}}, {"got 8 (rank 0) and 4 (rank 1)"});
  all_say({.batches = {{at::Tensor(), y}}}, {"expected an input of [batch, …], got none (rank 0)"});
  all_say({.batches = {{x, y}, {torch::ones({12, 4}), torch::ones({12, 4})}}},
          {"Float [8, 4], got Float [12, 4] in step 1"});
}

// A stage whose output changes within a step says so; the other ranks hear of it.
TEST(Pipeline, AnActivationOfAnotherShapeIsNamed) {
  struct GrowsImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return calls++ < 5 ? x * 1 : torch::cat({x, x}, 1); }
    int calls = 0;
  };
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    std::vector<PipelineStage> stages{torch::nn::Linear(4, 4)};
    if (group.rank() == 1)
      stages = {std::make_shared<GrowsImpl>()};
    Pipeline pipeline(stages, group, {.schedule = one_f_one_b(3, 4), .loss = squared_error});
    for (int i = 0; i < 2; ++i)
      pipeline.step(torch::ones({8, 4}), torch::ones({8, 4}));
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("Float [2, 4] into stage 2, as in the first micro-batch, got "
                          "Float [2, 8] of micro-batch 1 (rank 1)"));
}

// The rank that failed is named by those that are no neighbours of it too.
class PipelineFaults : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, PipelineFaults, ::testing::Values("shm", "gloo"));

TEST_P(PipelineFaults, ARankThatThrowsIsNamedOnEveryRank) {
  struct FailsImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      if (++calls == 7)
        throw std::runtime_error("no space left");
      return x * 1;
    }
    int calls = 0;
  };
  const auto failures = failures_of_ranks(
      4,
      [](ProcessGroup& group) {
        std::vector<PipelineStage> stages{torch::nn::Linear(4, 4)};
        if (group.rank() == 1)
          stages = {std::make_shared<FailsImpl>()};
        Pipeline pipeline(stages, group, {.schedule = one_f_one_b(4, 4), .loss = squared_error});
        for (int i = 0; i < 2; ++i)
          pipeline.step(torch::ones({8, 4}), torch::ones({8, 4}));
      },
      {.backend = GetParam(), .timeout = std::chrono::seconds(30)});
  EXPECT_EQ(message_of(failures[1]), "no space left");
  for (const int rank : {0, 2, 3}) {
    EXPECT_THAT(message_of(failures[static_cast<size_t>(rank)]),
                HasSubstr("step 1, F2 of stage 1 on rank 1: no space left"));
    EXPECT_THROW(std::rethrow_exception(failures[static_cast<size_t>(rank)]), Error);
  }
}

TEST(Pipeline, TiesThatDifferAreRefused) {
  const auto all_say = [](const std::function<at::Tensor(int)>& weight, const std::string& words) {
    expect_all_say(3,
                   [&](ProcessGroup& group) {
                     Pipeline pipeline({torch::nn::Linear(4, 4)},
                                       group,
                                       {.schedule = one_f_one_b(3, 4), .loss = squared_error});
                     pipeline.tie(weight(group.rank()));
                   },
                   {words});
  };
  all_say([](int rank) { return rank == 1 ? at::Tensor() : torch::ones({4, 4 + rank}); },
          "got Float [4, 4], frozen on rank 0 and Float [4, 6], frozen on rank 2");
  all_say([](int) { return at::Tensor(); }, "got none on any");
}

}  // namespace
}  // namespace muster::testing

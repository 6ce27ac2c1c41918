// Learns to balance a pole on a cart (REINFORCE). Each rank plays games of its own.
#include <muster/muster.h>
#include <torch/torch.h>

namespace nn = torch::nn;
constexpr int64_t kUpdates = 60, kGames = 16, kTurns = 100;

// The games, a row each (the cart's place and speed, the pole's angle and its speed), after a push
// to the left (0) or to the right (1).
at::Tensor pushed(const at::Tensor& games, const at::Tensor& actions) {
  const auto speed = games.select(1, 1), angle = games.select(1, 2), turning = games.select(1, 3);
  const auto push = (actions * 20 - 10 + 0.05 * turning.square() * angle.sin()) / 1.1;
  const auto mass = 2.0 / 3 - 0.05 * angle.cos().square() / 1.1;
  const auto turn = (9.8 * angle.sin() - angle.cos() * push) / mass;
  const auto faster = push - 0.05 * turn * angle.cos() / 1.1;
  return games + 0.02 * torch::stack({speed, faster, turning, turn}, 1);
}

auto play(nn::Sequential& policy, at::Device device) {
  const torch::NoGradGuard no_grad;
  auto games = torch::rand({kGames, 4}, device) * 0.1 - 0.05;
  auto alive = torch::ones({kGames}, device);
  std::vector<at::Tensor> states, actions, turns;
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    states.push_back(games);
    turns.push_back(alive);
    actions.push_back(policy->forward(games).softmax(1).multinomial(1).squeeze(1));
    games = pushed(games, actions.back());
    alive = alive * (games.select(1, 0).abs() < 2.4) * (games.select(1, 2).abs() < 0.2095);
  }
  return std::tuple(torch::stack(states), torch::stack(actions), torch::stack(turns));
}

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    torch::manual_seed(ctx.seed(1));
    nn::Sequential policy(nn::Linear(4, 64), nn::Tanh(), nn::Linear(64, 2));
    policy->to(ctx.device());
    muster::optim::Adam optimizer(policy->parameters(), 1e-2);
    muster::Schedule schedule(optimizer, muster::rate::cosine({.steps = kUpdates}));
    muster::Metrics metrics(ctx, {.folder = "runs/pole"});
    muster::Checkpoints checkpoints(ctx, {.folder = "runs/pole", .every = 20, .resume = true});
    checkpoints.add("policy", policy).add("optimizer", optimizer).add("schedule", schedule);
    checkpoints.add("metrics", metrics);
    checkpoints.restore();

    muster::DistributedDataParallel model(policy, ctx.process_group());
    muster::TrainStep step(model, optimizer, {.clip_norm = 1.0, .schedule = &schedule});
    for (const int64_t update : checkpoints.steps(kUpdates)) {
      const auto [states, actions, alive] = play(policy, ctx.device());
      const auto returns = alive.flip(0).cumsum(0).flip(0);
      step.run(1, true, [&] {
        const auto chances = model(states).log_softmax(-1).gather(-1, actions.unsqueeze(-1));
        const auto advantage = (returns - returns.mean()) / returns.std();
        return -(chances.squeeze(-1) * advantage * alive).sum() / alive.sum();
      });
      metrics.mean("turns", returns[0].mean(), kGames);
      metrics.write_every(10, update, {{"lr", schedule.lr()}});
    }
  });
}

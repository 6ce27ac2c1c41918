// Evaluates the classifier: several metrics in one pass, each picture once.
#include <iostream>

#include "network.h"

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    const muster::ImageFolder pictures("pictures/test", {.transform = normalized});
    auto loader = ctx.loader(pictures, {.batch_size = 64}, {.shuffle = false, .pad = false});
    Network net(10);
    muster::load_weights(*net, "runs/classifier/step-200", {}, ctx.process_group());
    net->to(ctx.device());

    muster::Mean loss;
    muster::Accuracy top1, top3({.top = 3});
    muster::ConfusionMatrix confusion(10);
    const auto fill = [&](Network& net, const auto& batch) {
      const auto logits = net(batch.image);
      loss.add(torch::cross_entropy_loss(logits, batch.label), batch.samples);
      top1.add(logits, batch.label);
      top3.add(logits, batch.label);
      confusion.add(logits, batch.label);
    };
    muster::evaluate(ctx, net, loader, fill, loss, top1, top3, confusion);
    if (ctx.is_main()) {
      std::cout << "loss " << loss.value() << " top1 " << top1.value() << " top3 " << top3.value();
      std::cout << "\n" << confusion.value() << std::endl;
    }
  });
}

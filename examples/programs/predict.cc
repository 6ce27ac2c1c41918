// Writes what the classifier takes each picture for, in the order of the folder.
#include <fstream>

#include "network.h"

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    const muster::ImageFolder pictures("pictures/test", {.transform = normalized});
    auto loader = ctx.loader(pictures, {.batch_size = 64}, {.shuffle = false, .pad = false});
    Network net(10);
    muster::load_weights(*net, "runs/classifier/step-200", {}, ctx.process_group());
    net->to(ctx.device());

    const auto classes = muster::predict(ctx, net, loader, [](Network& net, const auto& batch) {
      return net(batch.image).argmax(1);
    });
    std::ofstream file(ctx.is_main() ? "predictions.csv" : "");
    for (int64_t i = 0; ctx.is_main() && i < pictures.size(); ++i)
      file << pictures.file(i) << "," << classes[i].item<int64_t>() << "\n";
  });
}

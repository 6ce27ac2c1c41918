// Neighbours are compared: ranks that take the same samples take all of them, or those of their
// host.
#include "muster/ddp/same_samples.h"

#include "muster/base/strings.h"

namespace muster {

std::optional<Twins> SameSamples::judge(const std::vector<RankGradient>& gradients) {
  if (is_decided() || gradients.empty())
    return std::nullopt;
  if (judged_ == 0)
    twins_ = numbers_below(gradients.size() - 1);
  std::erase_if(twins_, [&](size_t at) {
    return !gradients[at].sample.has_bits_of(gradients[at + 1].sample);
  });
  ++judged_;
  if (judged_ < judged_backwards || twins_.empty())
    return std::nullopt;
  const size_t first = twins_.front();
  return Twins{gradients[first].rank, gradients[first + 1].rank};
}

bool SameSamples::is_decided() const {
  return judged_ == judged_backwards || (judged_ > 0 && twins_.empty());
}

std::string same_samples_warning(const Twins& twins, int64_t rank) {
  return cat("expected each rank to train on samples of its own, got the same gradients on ranks ",
             twins.first,
             " and ",
             twins.second,
             " in the first ",
             SameSamples::judged_backwards,
             " backwards (rank ",
             rank,
             "); give each rank its part of the data: ctx.loader(data), or a sampler of rank and "
             "ranks such as torch::data::samplers::DistributedRandomSampler");
}

}  // namespace muster

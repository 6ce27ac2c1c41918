// Gradient accumulation: k micro-batches, one reduction, the gradient of the joined batch.
//
//   for (const auto& batch : loader) {
//     const auto window = accumulation_window(index++, batch_size, loader.num_samples(), k);  // after
//     loader.skip(n) the first index is n
//     const auto guard = model.no_sync_if(!window.last);
//     (loss_of(batch) * window.weight).backward();
//     if (window.last) step();
//   }
#pragma once

#include <algorithm>
#include <cstdint>

namespace muster {

struct AccumulationWindow {
  bool last = true;  // reduce and step after this micro-batch
  double weight =
      1.0;  // this micro-batch's share of the window's samples: mean losses times this sum to the joined mean
};

// The place of micro-batch `index` (from 0) of an epoch of `num_samples` samples in micro-batches of
// `batch_size`, when every `accumulate` of them make one step. The epoch's last window may be shorter; it is
// weighted by what it has.
inline AccumulationWindow accumulation_window(int64_t index, int64_t batch_size, int64_t num_samples,
                                              int64_t accumulate) {
  const int64_t window_samples = batch_size * accumulate;
  const int64_t window_begin = index / accumulate * window_samples;
  const int64_t window_end = std::min(window_begin + window_samples, num_samples);
  const int64_t begin = index * batch_size;
  const int64_t end = std::min(begin + batch_size, num_samples);
  return {.last = end == window_end,
          .weight = static_cast<double>(end - begin) / static_cast<double>(window_end - window_begin)};
}

}  // namespace muster

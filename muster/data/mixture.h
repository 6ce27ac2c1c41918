// An order that takes more samples of one dataset than of another: the mixture of texts that a
// language model is trained on.
//
//   const muster::ConcatDataset text(std::vector{wikipedia, books, code});
//   auto loader = ctx.loader(text, ctx.sampler(muster::mixture(text.sizes(), {3, 2, 1})),
//                            {.batch_size = 8});
#pragma once

#include <cstdint>
#include <vector>

#include "muster/data/sample_order.h"

namespace muster {

// Over datasets of these sizes, one after the other (ConcatDataset::sizes). Every epoch of
// `samples` samples (0: as many as there are) has each dataset's part of `weights`, exact to one
// sample, in random places. A dataset is gone through in one random order after another, on over
// the ends of epochs: no sample of it comes again before all others have come. It takes no memory.
// Throws: invalid_argument unless there is one weight of 0 or more for each size, one of them above
// 0; for a weight above 0 of a dataset without samples; and for negative `samples`.
SampleOrder mixture(const std::vector<int64_t>& sizes,
                    const std::vector<double>& weights,
                    int64_t samples = 0);

}  // namespace muster

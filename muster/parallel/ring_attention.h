// Context parallelism: scaled dot-product attention over a sequence of which each rank of a group has a part,
// for contexts that do not fit one device. Two forms, with the same result:
//
//   out = muster::ring_attention(q, k, v, cp, {.causal = true});        // keys and values go round
//   out = muster::all_to_all_attention(q, k, v, cp, {.causal = true});  // heads are divided instead
//
// The ring has one block of keys and values more in memory, and needs nothing of the heads; what moves is
// hidden behind what is computed where the backend allows. The other form calls torch's own attention on the
// whole sequence for some heads, so the group must divide these; it is the faster one where it fits. Source:
// Liu et al., arXiv:2310.01889; Jacobs et al. (DeepSpeed-Ulysses), arXiv:2309.14509.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "muster/comm/process_group.h"

namespace muster {

// Which tokens a rank has. zigzag: of 2 · ranks pieces the r-th and the r-th from the end, so that causal
// attention is as much work on every rank; contiguous: the r-th part.
enum class SequenceOrder { contiguous, zigzag };

struct ContextOptions {
  bool causal = false;
  SequenceOrder order = SequenceOrder::contiguous;
  std::optional<double> scale = {};  // of the scores; else 1 / √width
  int64_t tile = 512;                // of the ring: queries, and keys, whose scores exist at once
};

// Where this rank's tokens stand in the sequence, for their position vectors and for taking them out of a
// whole one: x.index_select(1, positions). Shapes: [length / ranks] int64, on the group's device. Throws:
// invalid_argument for a length that the ranks (zigzag: twice as many pieces) do not divide.
at::Tensor sequence_positions(int64_t length, const ProcessGroup& group,
                              SequenceOrder order = SequenceOrder::contiguous);

// Attention of this rank's tokens to all. No tensor is larger than a rank's keys, or than the scores of one
// tile; backward goes round again, and computes the scores again. Shapes: q, k, v and result [batch, heads,
// own tokens, width], the same on every rank. Collective: yes, in backward too. Throws: invalid_argument for
// other shapes, and for own tokens that zigzag does not halve; failed_precondition for a second derivative.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, ProcessGroup group,
                          ContextOptions options = {});

// The same, by four exchanges, in which each rank gets all tokens of its share of the heads. Collective: yes,
// in backward too. Throws: as ring_attention, and invalid_argument for heads that the ranks do not divide.
at::Tensor all_to_all_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                ProcessGroup group, ContextOptions options = {});

}  // namespace muster

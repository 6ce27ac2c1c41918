// Context parallelism: scaled dot-product attention over a sequence divided among the ranks of a
// group, for contexts that do not fit one device. Two forms, with the same result:
//
//   // Keys and values go round:
//   out = muster::ring_attention(q, k, v, cp, {.causal = true});
//   // Heads are divided instead:
//   out = muster::all_to_all_attention(q, k, v, cp, {.causal = true});
//
// The ring needs memory for one more block of keys and values, and works for any number of heads;
// it overlaps communication with computation if the backend allows. The other form calls torch's
// own attention on the whole sequence for some of the heads, so the number of heads must be a
// multiple of the ranks; it is faster if it fits in memory. Source: Liu et al., arXiv:2310.01889;
// Jacobs et al. (DeepSpeed-Ulysses), arXiv:2309.14509.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "muster/comm/process_group.h"

namespace muster {

// Which tokens rank r has. zigzag: of 2 · ranks pieces, the r-th from the start and the r-th from
// the end, which balances causal attention; contiguous: the r-th part.
enum class SequenceOrder { contiguous, zigzag };

struct ContextOptions {
  bool causal = false;
  SequenceOrder order = SequenceOrder::contiguous;
  std::optional<double> scale = {};  // of the scores; default: 1 / √width
  int64_t tile = 512;                // for the ring: queries, and keys, whose scores exist at once
};

// The positions of this rank's tokens in the sequence, for position vectors and to select them from
// a whole one: x.index_select(1, positions). Shapes: [length / ranks] int64, on the group's device.
// Throws: invalid_argument for a length that is not a multiple of the number of ranks (zigzag: of
// twice that).
at::Tensor sequence_positions(int64_t length,
                              const ProcessGroup& group,
                              SequenceOrder order = SequenceOrder::contiguous);

// Attention of this rank's tokens to all tokens. No tensor is larger than a rank's keys, or than
// the scores of one tile; backward passes the blocks round again and recomputes the scores. Shapes:
// q, k, v and result [batch, heads, own tokens, width], the same on every rank. Collective: yes, in
// backward too. Throws: invalid_argument for other shapes, and in zigzag order for an odd number of
// own tokens; failed_precondition for a second derivative.
at::Tensor ring_attention(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          ProcessGroup group,
                          ContextOptions options = {});

// The same by four all-to-all exchanges: each rank gets all tokens of its share of the heads.
// Collective: yes, in backward too. Throws: as ring_attention; invalid_argument if the heads are
// not a multiple of the ranks.
at::Tensor all_to_all_attention(const at::Tensor& q,
                                const at::Tensor& k,
                                const at::Tensor& v,
                                ProcessGroup group,
                                ContextOptions options = {});

}  // namespace muster

// Attention over a sequence that is sharded over ranks. In ring attention keys and values go round:
// each rank attends to the block that is here while the next one is on its way. In all-to-all
// attention the ranks exchange tokens for heads, attend to whole sequences, and exchange back.
#include "muster/parallel/tensor/ring_attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/parallel/tensor/attention_tile.h"
#include "muster/parallel/tensor/group_collectives.h"

namespace muster {

namespace {

// The pieces of the sequence that a rank has, in the order in which it has them. In zigzag order a
// rank has one from the front and one from the back, so that causal attention costs all ranks
// alike.
Int64s pieces_of(int64_t rank, int64_t ranks, SequenceOrder order) {
  if (order == SequenceOrder::contiguous)
    return {rank};
  return {rank, 2 * ranks - 1 - rank};
}

int64_t number_of_pieces(int64_t ranks, SequenceOrder order) {
  return order == SequenceOrder::contiguous ? ranks : 2 * ranks;
}

// It looks at this rank's tensors alone, and compares nothing with other ranks.
void check_attention(const char* call,
                     const Tensor& q,
                     const Tensor& k,
                     const Tensor& v,
                     const ProcessGroup& group,
                     const ContextOptions& options) {
  const auto fail = [&](const std::string& rule, const std::string& got, const char* next) {
    throw invalid_argument(
        call, ": expected ", rule, ", got ", got, " (rank ", group.job_rank(), "); ", next);
  };
  const bool same_shape = q.dim() == 4 && q.sizes() == k.sizes() && q.sizes() == v.sizes();
  const bool same_type = q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type();
  if (!same_shape || !same_type) {
    fail("q, k and v of one type and of one shape [batch, heads, own tokens, width]",
         cat("[", sizes_text(q), "], [", sizes_text(k), "] and [", sizes_text(v), "]"),
         "repeat keys that several heads share");
  }
  if (options.order == SequenceOrder::zigzag && q.size(2) % 2 != 0)
    fail("an even number of own tokens in zigzag order", cat(q.size(2)), "pad the sequence");
  if (options.tile < 1)
    fail("a tile of at least 1", cat(options.tile), "leave it as it is");
}

// Autograd saves the group and the options in it for the backward.
struct RingKept : torch::CustomClassHolder {
  RingKept(ProcessGroup kept_group, ContextOptions kept_options)
      : group(std::move(kept_group)), options(kept_options) {}
  ProcessGroup group;
  ContextOptions options;
};

// Tensors that move one rank on at each step.
class Ring {
 public:
  explicit Ring(ProcessGroup& group) : group_(group) {}

  // Everything in `rows` goes to the next rank, and `come` is filled by the one before: an
  // all_to_all, which all backends do without an order of sends and receives that could meet
  // itself.
  [[nodiscard]] Work shift(const Tensor& come, const Tensor& rows) {
    const int size = group_.size();
    Int64s to(size, 0);
    Int64s from(size, 0);
    to[(group_.rank() + 1) % size] = rows.size(0);
    from[(group_.rank() + size - 1) % size] = rows.size(0);
    return group_.all_to_all_async(come, rows, from, to);
  }

  // The rank whose block is here after so many shifts.
  int64_t owner(int64_t shifts) const {
    return (group_.rank() + group_.size() - shifts) % group_.size();
  }

 private:
  ProcessGroup& group_;
};

// Takes a run of tokens out of a tensor [batch, heads, tokens, …].
struct SequencePart {
  int64_t begin;
  int64_t length;
  Tensor operator()(const Tensor& x) const { return x.narrow(2, begin, length); }
};

// Calls visit(own tokens, the block's, diagonal) for each pair of pieces of which something is
// seen. On the diagonal both are the same piece, so a query sees a part of it.
template <class Visit>
void each_pair(const ProcessGroup& group,
               int64_t owner,
               const ContextOptions& options,
               int64_t own_tokens,
               const Visit& visit) {
  const Int64s mine = pieces_of(group.rank(), group.size(), options.order);
  const Int64s theirs = pieces_of(owner, group.size(), options.order);
  const int64_t length = own_tokens / std::ssize(mine);
  for (const int64_t i : indices_below(std::ssize(mine))) {
    for (const int64_t j : indices_below(std::ssize(theirs))) {
      if (options.causal && theirs[j] > mine[i])
        continue;
      const bool diagonal = options.causal && theirs[j] == mine[i];
      visit(SequencePart{i * length, length}, SequencePart{j * length, length}, diagonal);
    }
  }
}

TileOptions tile_options(const ContextOptions& options, const Tensor& q) {
  return {.scale = options.scale.value_or(1 / std::sqrt(q.size(3))), .tile = options.tile};
}

// `keys` is keys and values, stacked, so that one message moves both. Calls visit(keys, own tokens,
// the block's, diagonal) for each pair of each block, and after(ring) when a block's are over.
template <class Visit, class After>
void each_block(int64_t own_tokens,
                Tensor keys,
                ProcessGroup& group,
                const ContextOptions& options,
                const Visit& visit,
                const After& after) {
  Ring ring(group);
  Tensor come = at::empty_like(keys);
  for (const int64_t step : indices_below(group.size())) {
    std::optional<Work> moving;
    // The last block need not move on.
    if (step + 1 < group.size())
      moving = ring.shift(come, keys);
    each_pair(
        group, ring.owner(step), options, own_tokens, [&](auto... pair) { visit(keys, pair...); });
    if (moving)
      moving->wait();
    std::swap(keys, come);
    after(ring);
  }
}

Attended go_round(const Tensor& q,
                  const Tensor& keys,
                  ProcessGroup& group,
                  const ContextOptions& options) {
  const TileOptions tiles = tile_options(options, q);
  const Attended attended = nothing_attended(q);
  const auto visit = [&](const Tensor& come, auto own, auto block, bool diagonal) {
    attend(own(q),
           block(come[0]),
           block(come[1]),
           diagonal,
           tiles,
           {.out = own(attended.out), .log_sum = own(attended.log_sum)});
  };
  each_block(q.size(2), keys, group, options, visit, [](Ring&) {});
  return attended;
}

// Each block's gradients go round with it, and one step further, to the rank that owns the block.
AttentionGradients go_round_backward(const Tensor& q,
                                     const Tensor& keys,
                                     const Attended& attended,
                                     const Tensor& out,
                                     ProcessGroup& group,
                                     const ContextOptions& options) {
  const TileOptions tiles = tile_options(options, q);
  const ScalarType type = attended.out.scalar_type();
  const Tensor weighted = (out.to(type) * attended.out).sum(-1);
  const Tensor of_q = at::zeros_like(attended.out);
  Tensor of_keys = at::zeros(keys.sizes(), keys.options().dtype(type));
  Tensor come_of_keys = at::empty_like(of_keys);
  const auto visit = [&](const Tensor& come, auto own, auto block, bool diagonal) {
    attend_backward(own(q),
                    block(come[0]),
                    block(come[1]),
                    diagonal,
                    tiles,
                    own(attended.log_sum),
                    own(out),
                    own(weighted),
                    {.q = own(of_q), .k = block(of_keys[0]), .v = block(of_keys[1])});
  };
  // The gradients leave after this block's share is added, so they cannot travel during it.
  const auto move_gradients = [&](Ring& ring) {
    if (group.size() == 1)
      return;
    ring.shift(come_of_keys, of_keys).wait();
    std::swap(of_keys, come_of_keys);
  };
  each_block(q.size(2), keys, group, options, visit, move_gradients);
  return {.q = of_q, .k = of_keys[0], .v = of_keys[1]};
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& q,
                        const Tensor& k,
                        const Tensor& v,
                        ProcessGroup& group,
                        const ContextOptions& options) {
    // Autocast must not touch the tiles, which choose their own types.
    const c10::impl::ExcludeDispatchKeyGuard in_own_types(c10::autocast_dispatch_keyset);
    const Attended attended = go_round(q, at::stack({k, v}), group, options);
    context->saved_data["kept"] =
        IValue::make_capsule(c10::make_intrusive<RingKept>(group, options));
    const Tensor out = attended.out.to(q.scalar_type());
    context->save_for_backward({q, k, v, attended.out, attended.log_sum});
    return out;
  }

  static Tensors backward(AutogradContext* context, Tensors gradients) {
    refuse_second_derivative("ring_attention");
    const c10::impl::ExcludeDispatchKeyGuard in_own_types(c10::autocast_dispatch_keyset);
    const auto capsule = context->saved_data["kept"].toCapsule();
    auto& kept = static_cast<RingKept&>(*capsule);
    const Tensors saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const AttentionGradients of = go_round_backward(q,
                                                    at::stack({k, v}),
                                                    {.out = saved[3], .log_sum = saved[4]},
                                                    gradients[0],
                                                    kept.group,
                                                    kept.options);
    const ScalarType type = q.scalar_type();
    return {of.q.to(type), of.k.to(type), of.v.to(type), {}, {}};
  }
};

// [batch, heads, own tokens, width] to [batch, own heads, tokens, width] and back.
Tensor tokens_for_heads(const Tensor& x,
                        ProcessGroup group,
                        int64_t scatter_dim,
                        int64_t gather_dim) {
  return with_backward(
      x,
      [&](const Tensor& part) { return exchanged(part, group, scatter_dim, gather_dim); },
      [=](const Tensor& gradient) {
        return tokens_for_heads(gradient, group, gather_dim, scatter_dim);
      });
}

// The position of each token after the ranks' parts were joined.
Tensor joined_positions(int64_t length,
                        const ProcessGroup& group,
                        SequenceOrder order,
                        Device device) {
  const int64_t pieces = number_of_pieces(group.size(), order);
  const Tensor all =
      at::arange(length, at::TensorOptions().dtype(kLong).device(device)).view({pieces, -1});
  Tensors joined;
  for (const int64_t rank : indices_below(group.size()))
    for (const int64_t piece : pieces_of(rank, group.size(), order))
      joined.push_back(all[piece]);
  return at::cat(joined);
}

}  // namespace

// It exchanges nothing: positions follow from rank and order.
Tensor sequence_positions(int64_t length, const ProcessGroup& group, SequenceOrder order) {
  const int64_t pieces = number_of_pieces(group.size(), order);
  if (length < 1 || length % pieces != 0) {
    throw invalid_argument("sequence_positions: expected a length that ",
                           pieces,
                           " pieces divide, got ",
                           length,
                           " (rank ",
                           group.job_rank(),
                           "); pad the sequence");
  }
  const Tensor all = joined_positions(length, group, order, group.device());
  return all.view({group.size(), -1})[group.rank()].clone();
}

// All ranks of the group call it together, and run its backward together.
Tensor ring_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, ProcessGroup group, ContextOptions options) {
  check_attention("ring_attention", q, k, v, group, options);
  return RingAttention::apply(q, k, v, group, options);
}

// All ranks of the group call it together, with heads that the ranks divide.
Tensor all_to_all_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, ProcessGroup group, ContextOptions options) {
  constexpr const char* kCall = "all_to_all_attention";
  check_attention(kCall, q, k, v, group, options);
  divisible_dim(kCall, q, group, 1);
  const bool zigzag = options.causal && options.order == SequenceOrder::zigzag;
  const Tensor order = joined_positions(q.size(2) * group.size(), group, options.order, q.device());
  const auto whole = [&](const Tensor& x) {
    const Tensor tokens = tokens_for_heads(x, group, 1, 2);
    // A causal mask needs the tokens in their order, so zigzag is undone here and made again after.
    return zigzag ? tokens.index_select(2, order.argsort()) : tokens;
  };
  const Tensor seen = at::scaled_dot_product_attention(whole(q),
                                                       whole(k),
                                                       whole(v),
                                                       {},
                                                       /*dropout_p=*/0.0,
                                                       options.causal,
                                                       options.scale);
  return tokens_for_heads(zigzag ? seen.index_select(2, order) : seen, group, 2, 1);
}

}  // namespace muster

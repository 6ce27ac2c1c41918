// Gathers of tensors whose first dimension differs between the ranks. The ranks first tell each
// other what they have: so all of them refuse what does not fit, and those that receive know how
// much comes. Then only the rows themselves are moved, without padding.
#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/process_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/byte_reader.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/comm/group_state.h"
#include "muster/comm/process_group_call.h"

namespace muster {

namespace {

// Where a rank's tensor is. One whose device is the CPU goes together with either of the others.
enum class RowsPlace { cpu, host_of_gpu, gpu };

// What a rank gives. Without a row type it gives nothing, whatever the others give.
struct GivenRows {
  bool has_type = false;
  ScalarType type = kFloat;
  RowsPlace place = RowsPlace::cpu;
  int64_t rows = 0;
  Int64s row{};         // the shape of each
  std::string wrong{};  // why it cannot be gathered; empty: it can

  bool fits(const GivenRows& other) const {
    const bool is_apart =
        place != other.place && place != RowsPlace::cpu && other.place != RowsPlace::cpu;
    return type == other.type && row == other.row && !is_apart;
  }
  std::string text() const {
    const char* const where = place == RowsPlace::gpu ? " on a GPU" : "";
    return cat(toString(type), " rows of [", join(row, ", "), "]", where);
  }
};

RowsPlace place_of(bool is_on_host, Device device) {
  if (device.is_cpu())
    return RowsPlace::cpu;
  return is_on_host ? RowsPlace::host_of_gpu : RowsPlace::gpu;
}

GivenRows given_rows(const Tensor& input, Device device) {
  if (!input.defined())
    return {};
  GivenRows given{
      .has_type = true, .type = input.scalar_type(), .place = place_of(input.is_cpu(), device)};
  if (input.layout() != kStrided || input.dim() == 0) {
    given.wrong = cat(c10::toString(input.layout()), " ", tensor_text(input));
  } else if (!input.is_cpu() && input.device() != device) {
    given.wrong = cat("one on ", input.device().str());
  } else {
    given.rows = input.size(0);
    given.row = input.sizes().slice(1).vec();
  }
  return given;
}

std::string written(const GivenRows& given) {
  auto text = cat(given.has_type ? 1 : 0,
                  " ",
                  static_cast<int>(given.type),
                  " ",
                  static_cast<int>(given.place),
                  " ",
                  given.rows,
                  " ",
                  given.row.size(),
                  " ");
  for (const int64_t extent : given.row)
    text += cat(extent, " ");
  return text + given.wrong;
}

GivenRows read_given(const std::string& text) {
  ByteReader reader(text, "gather of varying lengths");
  const auto number = [&] {
    return reader.take_number(' ');
  };
  GivenRows given;
  given.has_type = number() == 1;
  given.type = static_cast<ScalarType>(number());
  given.place = static_cast<RowsPlace>(number());
  given.rows = number();
  given.row.resize(number());
  for (int64_t& extent : given.row)
    extent = number();
  given.wrong = reader.take(reader.left());
  return given;
}

// Throws the same on every rank.
void expect_alike(const char* operation, const std::vector<GivenRows>& all) {
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    throw invalid_argument(
        operation, ": expected ", expected, ", got ", got, "; give such on all ranks");
  };
  int64_t first = -1;
  for (const int64_t rank : indices_below(std::ssize(all))) {
    const GivenRows& given = all[rank];
    if (!given.wrong.empty())
      refuse("a dense tensor with a first dimension, on the host or the rank's device",
             cat(given.wrong, " on rank ", rank));
    if (!given.has_type)
      continue;
    if (first < 0)
      first = rank;
    const GivenRows& before = all[first];
    if (!given.fits(before))
      refuse("rows of one type and shape",
             cat(before.text(), " on rank ", first, " and ", given.text(), " on rank ", rank));
  }
}

// What all ranks give. One that gives nothing takes the others' type.
std::vector<GivenRows> tell_each_other(const char* operation,
                                       const std::string& what,
                                       const Tensor& input,
                                       ProcessGroup& group) {
  std::vector<GivenRows> all =
      mapped(group.all_gather_bytes(written(given_rows(input, group.device())), what), read_given);
  expect_alike(operation, all);
  const auto typed = std::ranges::find(all, true, &GivenRows::has_type);
  if (typed == all.end())
    return all;
  const bool is_on_host = contains(all, RowsPlace::host_of_gpu, &GivenRows::place);
  const GivenRows like = *typed;
  for (GivenRows& given : all) {
    if (given.has_type)
      continue;
    given = like;
    given.rows = 0;
    given.place = place_of(is_on_host, group.device());
  }
  return all;
}

Tensor room_for_rows(const GivenRows& given, int64_t rows, Device device) {
  Int64s shape{rows};
  append_all(shape, given.row);
  const Device where = given.place == RowsPlace::gpu ? device : Device(kCPU);
  return at::empty(shape, at::TensorOptions().dtype(given.type).device(where));
}

}  // namespace

// An all_to_all in which everybody has rows for the root alone.
Tensors ProcessGroup::gather_varying(const Tensor& input, int root) {
  const char* const operation = "gather_varying";
  ProcessGroupCall(operation, *this).check_root(root);
  const NoGradGuard no_grad;
  const auto all = tell_each_other(operation, cat(operation, " to ", root), input, *this);
  const GivenRows& mine = all[rank()];
  const auto rows = mapped(all, &GivenRows::rows);
  const auto sum = sum_of<int64_t>(all, &GivenRows::rows);
  const bool is_root = rank() == root;
  Tensor joined = room_for_rows(mine, is_root ? sum : 0, device());
  const bool is_moved = sum > 0 && !contains(mine.row, 0);
  if (is_moved) {
    const Int64s none(size(), 0);
    Int64s to_root = none;
    to_root[root] = mine.rows;
    all_to_all(joined,
               input.defined() ? input : room_for_rows(mine, 0, device()),
               is_root ? rows : none,
               to_root);
  }
  return is_root ? joined.split_with_sizes(rows, 0) : Tensors();
}

// Every rank's rows are broadcast to where they belong in each rank's own tensor.
Tensors ProcessGroup::all_gather_varying(const Tensor& input) {
  const char* const operation = "all_gather_varying";
  const NoGradGuard no_grad;
  const auto all = tell_each_other(operation, operation, input, *this);
  const auto rows = mapped(all, &GivenRows::rows);
  const auto sum = sum_of<int64_t>(all, &GivenRows::rows);
  const auto parts = room_for_rows(all[rank()], sum, device()).split_with_sizes(rows, 0);
  for (const int from : indices_below(size())) {
    const Tensor& part = parts[from];
    if (from == rank() && input.defined())
      part.copy_(input);
    if (part.numel() > 0)
      broadcast(part, from);
  }
  return parts;
}

}  // namespace muster

// In each round a rank tells what it gives: the indices of its batch, the samples that it has
// skipped, whether it is over, or what it has thrown. Then the outputs follow, flat, since
// rows of other ranks may have other shapes. So no rank waits for another that has failed.
// What rank 0 throws while it writes is told in the round after.
#include "muster/train/prediction_exchange.h"

#include <algorithm>
#include <utility>

#include "muster/base/byte_reader.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/checkpoint/peers.h"

namespace muster::evaluation {

// What a rank tells in a round.
struct PredictionExchange::Said {
  bool is_over = false;
  std::vector<Int64s> shapes{};  // of the outputs
  Int64s indices = {}, skipped = {};
  std::string failure{};
};

namespace {

std::string numbers_text(c10::IntArrayRef numbers) {
  auto text = cat(numbers.size(), " ");
  for (const int64_t number : numbers)
    text += cat(number, " ");
  return text;
}

Int64s take_numbers(ByteReader& reader) {
  Int64s numbers(reader.take_number(' '));
  for (int64_t& number : numbers)
    number = reader.take_number(' ');
  return numbers;
}

void check_rows(const IndexedRows& mine) {
  const int64_t rows = std::ssize(mine.indices);
  for (const Tensor& output : mine.outputs) {
    if (output.defined() && output.dim() > 0 && output.size(0) == rows)
      continue;
    throw invalid_argument("predict: expected outputs with a row for each of ",
                           rows,
                           " samples, got ",
                           output.defined() ? cat("shape [", sizes_text(output), "]")
                                            : std::string("an undefined tensor"),
                           "; return the outputs of all samples of the batch");
  }
}

}  // namespace

PredictionExchange::PredictionExchange(ProcessGroup& group, PredictionExchangeOptions options)
    : group_(group),
      options_(std::move(options)),
      rows_(options_.dataset_size, /*of_one_shape=*/!options_.in_pieces),
      skipped_told_(options_.skipped_before) {}

void PredictionExchange::run(const Callback& body) {
  try {
    body();
  } catch (...) {
    if (is_failed_)
      throw;
    failure_ = std::current_exception();
  }
  while (!are_over_)
    exchange({}, /*is_over=*/true);
  Peers(group_).on_rank0([&] {
    if (failure_)
      std::rethrow_exception(failure_);
    rows_.check_complete();
  });
}

void PredictionExchange::give(const IndexedRows& mine) {
  check_rows(mine);
  exchange(mine, /*is_over=*/false);
}

std::string PredictionExchange::message(const IndexedRows& mine, bool is_over) {
  const Int64s all_skipped = options_.skipped();
  const Int64s skipped(all_skipped.begin() + skipped_told_, all_skipped.end());
  skipped_told_ = std::ssize(all_skipped);
  return cat(is_over ? 1 : 0,
             " ",
             mine.outputs.size(),
             " ",
             sum_of<std::string>(mine.outputs,
                                 [](const Tensor& output) { return numbers_text(output.sizes()); }),
             numbers_text(mine.indices),
             numbers_text(skipped),
             failure_ ? told_failure(failure_) : std::string());
}

PredictionExchange::Said PredictionExchange::read(const std::string& message) {
  ByteReader reader(message, "predict");
  Said said;
  said.is_over = reader.take_number(' ') == 1;
  said.shapes.resize(reader.take_number(' '));
  for (Int64s& shape : said.shapes)
    shape = take_numbers(reader);
  said.indices = take_numbers(reader);
  said.skipped = take_numbers(reader);
  said.failure = reader.take(reader.left());
  return said;
}

// A rank's own error stays what it is.
void PredictionExchange::fail_if_any(const std::vector<Said>& all) {
  const auto failed =
      std::ranges::find_if(all, [](const Said& said) { return !said.failure.empty(); });
  if (failed == all.end())
    return;
  is_failed_ = true;
  if (failure_)
    std::rethrow_exception(failure_);
  fail_as(failed->failure, failed - all.begin());
}

// A rank without a batch gives nothing in a round, whatever the others' outputs are.
void PredictionExchange::exchange(const IndexedRows& mine, bool is_over) {
  is_failed_ = true;  // what a collective throws is thrown on all ranks
  std::vector<Said> all = mapped(group_.all_gather_bytes(message(mine, is_over), "predict"),
                                 [&](const auto& text) { return read(text); });
  fail_if_any(all);
  are_over_ = all_of(all, &Said::is_over);
  const auto count = [](const Said& said) {
    return said.shapes.size();
  };
  const size_t outputs = count(std::ranges::max(all, {}, count));
  TensorLists parts = mapped_indices(outputs, [&](size_t i) {
    const bool is_mine = i < mine.outputs.size();
    return group_.gather_varying(is_mine ? mine.outputs[i].reshape({-1}) : Tensor(), 0);
  });
  is_failed_ = false;
  if (group_.rank() == 0)
    take_in(all, parts);
}

void PredictionExchange::take_in(const std::vector<Said>& all, const TensorLists& parts) {
  try {
    for (const size_t rank : indices_of(all)) {
      IndexedRows rows{.indices = all[rank].indices};
      for (const size_t i : indices_of(all[rank].shapes))
        rows.outputs.push_back(parts[i][rank].cpu().view(all[rank].shapes[i]));
      if (!rows.indices.empty())
        rows_.add(std::move(rows));
      for (const int64_t index : all[rank].skipped) {
        if (!options_.in_pieces)
          throw invalid_argument("predict: expected a row for every sample, got none of sample ",
                                 index,
                                 ", which cannot be read (rank ",
                                 rank,
                                 "); take the pieces by a function, which tells their indices");
        rows_.skip(index);
      }
    }
    for (IndexedRows next = rows_.take(); !next.indices.empty(); next = rows_.take())
      options_.write(next);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

}  // namespace muster::evaluation
